"""benchmarks/zoo.py: recipes are well-formed, the halves are those of the hash, training is repeatable; and
benchmarks/judge.py writes down what it measures."""

from __future__ import annotations

import argparse
import hashlib
import importlib
import json
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest
import torch

BENCHMARKS = Path(__file__).resolve().parent.parent / "benchmarks"
HALVES = ("choose", "judge")
SQUARED = 2
"""Networks trained by squared error in each half, at least."""


@pytest.fixture
def zoo(tmp_path, monkeypatch) -> ModuleType:
    """The module, with a folder of its own to write to."""
    monkeypatch.setenv("TMIFPE_ZOO", str(tmp_path / "zoo"))
    monkeypatch.setattr(sys, "path", [str(BENCHMARKS), *sys.path])
    for name in ("zoo", "zoo_training", "strength", "judge"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    return importlib.import_module("zoo")


@pytest.fixture
def judge(zoo, tmp_path, monkeypatch) -> ModuleType:
    """The module, with a small network to judge on and files of its own."""
    name = "digits-fc3-squared"
    monkeypatch.setitem(zoo.RECIPES, name, replace(zoo.RECIPES[name], epochs=6, images=20))
    monkeypatch.setitem(zoo.SIZES, name, {"linf": (0.05,)})
    zoo.make([name])
    module = importlib.import_module("judge")
    monkeypatch.setattr(module, "KEPT", tmp_path / "judge.json")
    monkeypatch.setattr(module, "PAGE", tmp_path / "zoo.md")
    (tmp_path / "zoo.md").write_text((BENCHMARKS.parent / "docs" / "zoo.md").read_text(encoding="utf-8"))
    return module


def test_every_network_has_a_name_of_its_own_and_threats(zoo):
    assert not set(zoo.RECIPES) & set(zoo.SHARED)
    assert set(zoo.SIZES) == set(zoo.RECIPES) | set(zoo.SHARED) == set(zoo.networks())
    assert len(zoo.RECIPES) >= 30
    assert len(set(zoo.RECIPES.values())) == len(zoo.RECIPES)
    for name, network in zoo.networks().items():
        assert {"linf", "l2"} <= set(zoo.SIZES[name])
        for sizes in zoo.SIZES[name].values():
            assert list(sizes) == sorted(set(sizes))
            assert len(sizes) >= 2
        assert 100 <= network.images <= 500


def test_the_hash_of_its_name_puts_a_network_into_a_half(zoo):
    for name, network in zoo.networks().items():
        odd = hashlib.sha256(name.encode()).digest()[-1] % 2
        assert network.half == zoo.half(name) == HALVES[odd], name


@pytest.mark.parametrize("half", HALVES)
def test_each_half_is_a_mixture(zoo, half):
    recipes = [recipe for name, recipe in zoo.RECIPES.items() if zoo.half(name) == half]
    assert Counter(recipe.loss for recipe in recipes)["squared"] >= SQUARED
    assert any(recipe.loss == "squared" and recipe.body == "fully" and len(recipe.widths) >= 4 for recipe in recipes)
    assert {recipe.data.partition("-")[0] for recipe in recipes} == {"mnist", "cifar10", "digits"}
    assert {"fully", "convolutional"} <= {recipe.body for recipe in recipes}
    assert {"vit", "mixer"} & {recipe.body for recipe in recipes}
    assert len({recipe.activation for recipe in recipes}) >= 4
    assert len({recipe.against[0] for recipe in recipes if recipe.against}) >= 2
    assert any(recipe.batchnorm for recipe in recipes)
    assert any(recipe.data.endswith("-pairs") for recipe in recipes), "a hundred classes"
    assert any(recipe.data.partition("-")[2] in ("parity", "vehicles") for recipe in recipes), "two classes"
    assert any(network.half == half and not network.trained for network in zoo.networks().values())
    assert any("l1" in zoo.SIZES[name] for name in zoo.networks() if zoo.half(name) == half)


def test_both_halves_together_hold_what_was_asked_for(zoo):
    recipes = zoo.RECIPES.values()
    assert {recipe.activation for recipe in recipes} == {"relu", "leaky", "gelu", "silu", "tanh", "sigmoid"}
    assert {recipe.loss for recipe in recipes} == {"cross-entropy", "squared", "smoothing", "distilled"}
    assert {recipe.against[0] for recipe in recipes if recipe.against} == {"linf", "l2", "l1"}
    assert {recipe.body for recipe in recipes} == {"fully", "convolutional", "residual", "vit", "mixer"}
    assert any(recipe.maxpool for recipe in recipes)
    assert any(recipe.decay for recipe in recipes)
    assert {len(recipe.widths) for recipe in recipes if recipe.body == "fully"} >= {2, 3, 4, 6, 9, 10}


def test_training_is_repeatable_and_loads_back(zoo, monkeypatch):
    name = "digits-fc3-squared"
    monkeypatch.setitem(zoo.RECIPES, name, replace(zoo.RECIPES[name], epochs=6))
    threads = torch.get_num_threads()
    before = torch.random.get_rng_state()
    zoo.make([name])
    assert torch.equal(torch.random.get_rng_state(), before)
    assert torch.get_num_threads() == threads
    first = zoo.weights(name).read_bytes()
    model, data = zoo.load(name)
    assert not model.training
    assert (len(data), data.classes, tuple(data.shape)) == (500, 10, (1, 8, 8))
    assert zoo.clean_accuracy(name) > 0.7
    zoo.weights(name).unlink()
    zoo.make([name])
    assert zoo.weights(name).read_bytes() == first
    zoo.weights(name).write_bytes(first + b" ")
    zoo.make([name])
    assert zoo.weights(name).read_bytes() == first + b" ", "what is there is kept"


@pytest.mark.parametrize("name", ["digits-fc4-linf", "digits-conv-gelu-decay", "digits-pairs-fc3"])
def test_the_other_recipes_on_digits_train(zoo, monkeypatch, name):
    monkeypatch.setitem(zoo.RECIPES, name, replace(zoo.RECIPES[name], epochs=4, examples=1000))
    zoo.make([name])
    model, data = zoo.load(name)
    assert zoo.clean_accuracy(name) > 10 / data.classes / 4
    assert model(data.fetch([0, 1])[0]).shape == (2, data.classes)


def test_every_recipe_makes_a_network_of_its_classes(zoo):
    shapes = {"mnist": (1, 28, 28), "cifar10": (3, 32, 32), "digits": (1, 8, 8)}
    classes = {"": 10, "pairs": 100, "parity": 2, "vehicles": 2}
    for recipe in zoo.RECIPES.values():
        base, _, kind = recipe.data.partition("-")
        channels, *size = shapes[base]
        shape = (channels * (1 + (kind == "pairs")), *size)
        model = zoo.network(recipe, shape, classes[kind]).eval()
        assert model(torch.rand(2, *shape)).shape == (2, classes[kind])


def test_attacks_of_adversarial_training_stay_in_their_ball(zoo):
    training = sys.modules["zoo_training"]
    model = zoo.network(zoo.RECIPES["digits-fc3-squared"], (1, 8, 8), 10)
    x, y = torch.rand(5, 1, 8, 8), torch.arange(5)
    for norm, order in (("linf", float("inf")), ("l2", 2), ("l1", 1)):
        found = training.attacked(model, x, y, norm, 0.3)
        assert 0 <= float(found.min()) <= float(found.max()) <= 1
        sizes = (found - x).flatten(1).norm(p=order, dim=1)
        assert bool((sizes > 0.01).all())
        assert bool((sizes <= 0.3 * (1 + 1e-5)).all())


def test_shortcuts_are_judged_once_and_shown(judge, monkeypatch):
    options = argparse.Namespace(
        half="judge", networks="digits-fc3-squared", attacks="paper", no_checks=True, fresh=False
    )
    judge.shortcuts(options, judge.read())
    (kept,) = judge.read()["shortcuts"].values()
    assert kept["images"] == 20
    assert kept["shipped"]["robust"] <= kept["clean"] <= 20
    assert abs(kept["shipped"]["robust"] - kept["without"]["robust"]) <= len(kept["differ"])
    assert kept["without"]["passes"] >= kept["shipped"]["passes"] > 0
    judge.page(options, judge.read())
    assert f"| {kept['shipped']['robust']} | {kept['without']['robust']} |" in judge.PAGE.read_text(encoding="utf-8")
    monkeypatch.setattr(judge, "run", lambda *_, **__: pytest.fail("it is there"))
    judge.shortcuts(options, judge.read())


def test_strength_is_full_against_autoattack(judge, monkeypatch):
    def ran(setting, attack, **options):
        seeds = {0: 12, 1: 11, 2: 11}
        return None, {"robust": 11 if attack == "autoattack" else seeds[options["seed"]], "passes": 100, "seconds": 1}

    monkeypatch.setattr(judge, "run", ran)
    options = argparse.Namespace(half="judge", networks="digits-fc3-squared", ours=False, theirs=False, fresh=False)
    judge.strengths(options, judge.read())
    (kept,) = judge.read()["strength"].values()
    assert judge.above(kept) == 0
    assert judge.share(kept) == 1
    judge.page(options, judge.read())
    page = judge.PAGE.read_text(encoding="utf-8")
    assert "at or below AutoAttack on 1 (100%)" in page
    assert "| digits-fc3-squared | linf 0.05 | 20 | 11 | 12, 11, 11 | 100.0% | 100 |" in page


def test_the_page_is_up_to_date(zoo, tmp_path, monkeypatch):
    judge = importlib.import_module("judge")
    monkeypatch.setattr(judge, "PAGE", tmp_path / "zoo.md")
    page = (BENCHMARKS.parent / "docs" / "zoo.md").read_text(encoding="utf-8")
    judge.PAGE.write_text(page, encoding="utf-8")
    judge.page(argparse.Namespace(), json.loads((judge.strength.DATA / "judge.json").read_text()))
    assert judge.PAGE.read_text(encoding="utf-8") == page, "run python benchmarks/judge.py page"


def test_two_processes_may_write(judge):
    judge.keep({"strength": {"a": {"full": {"0": 1}}}})
    judge.keep({"strength": {"a": {"autoattack": 2}}, "shortcuts": {}})
    assert judge.read() == {"strength": {"a": {"full": {"0": 1}, "autoattack": 2}}, "shortcuts": {}}
