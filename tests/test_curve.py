"""Every radius at once: curves against the closed form of linear models, lists of radii, the smallest perturbations."""

from __future__ import annotations

import functools
import importlib
import json
import math
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import tmifpe
from tests.linear import Linear, distance, examples
from tmifpe import Threat
from tmifpe.attacks import Loop, Problem, Queries
from tmifpe.attacks.radius.bracket import Bracket
from tmifpe.core.errors import IncompleteError, InputError
from tmifpe.testing import check_attack

NORMS = ("linf", "l2", "l1")


@pytest.fixture(scope="module")
def digits():
    return tmifpe.load_model("digits-robust"), tmifpe.load_data("digits", limit=24)


@pytest.fixture(scope="module")
def small() -> tuple[nn.Module, torch.Tensor, torch.Tensor]:
    """A network with one hidden layer, in float64, and images labelled as it sees them."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(1, 3, 3), nn.ReLU(), nn.Flatten(), nn.Linear(12, 4)).double().eval()
    x = torch.rand(12, 1, 4, 4, dtype=torch.float64)
    with torch.no_grad():
        model[3].weight *= 5
        model[3].bias -= model(x).mean(dim=0)
    return model, x, model(x).detach().argmax(dim=1)


@functools.cache
def linear_curve(norm: str, dtype: torch.dtype) -> tuple[tmifpe.Curve, np.ndarray]:
    """The curve of a linear model of ten classes up to a radius that breaks four of five, and the exact distances."""
    model = Linear(10, dtype=dtype)
    x, y = examples(model, 40)
    exact = distance(model.double(), x.double(), y, norm)[0].numpy()
    to = float(np.quantile(exact, 0.8))
    return tmifpe.curve(model.to(dtype), (x, y), Threat(norm, to), checks=False), exact


@pytest.mark.numerical
@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
class TestLinear:
    def test_the_curve_is_the_closed_form(self, norm, dtype):
        """At every radius the accuracy is that at some radius within 1 %: an example whose distance is within 1 % of
        the radius may fall on either side."""
        line, exact = linear_curve(norm, dtype)
        for point in line.points:
            inner, outer = (exact > 0.99 * point.eps).mean(), (exact > 1.01 * point.eps).mean()
            assert outer - 1e-12 <= point.robust_accuracy <= inner + 1e-12, point.eps

    def test_brackets_hold_the_exact_distance(self, norm, dtype):
        line, exact = linear_curve(norm, dtype)
        withstood, broken = line.brackets.T
        # A sum of 20 products rounds by less than 20 * 20 ulp, over a slope of at least 1.
        rounding = 400 * torch.finfo(dtype).eps
        assert (withstood <= exact + rounding).all()
        assert (exact <= broken + rounding).all()
        found = np.isfinite(broken)
        assert found.sum() >= 0.75 * len(exact)
        assert (broken - withstood <= line.to / 256 * (1 + 1e-6))[found].all()
        assert (withstood == line.to)[~found].all()

    def test_minimal_finds_the_distance(self, norm, dtype):
        """Of two classes, so that there is one boundary; FMN stops a few thousandths above it."""
        model = Linear(2, dtype=dtype)
        x, y = examples(model, 20)
        exact, _ = distance(model.double(), x.double(), y, norm)
        found = tmifpe.minimal(model.to(dtype), x, y, norm, steps=200)
        rounding = 400 * torch.finfo(dtype).eps
        assert bool((found.size >= exact - rounding).all())
        assert bool((found.size <= 1.02 * exact + rounding).all())
        assert bool((model(found.adv).argmax(dim=1) != y).all())


class Rounds(nn.Module):
    """Logits that depend a little on a row's place in the batch, as they do on some processors."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = Linear(2)

    def forward(self, x: Tensor) -> Tensor:
        logits = self.inner(x)
        odd = torch.arange(len(x)) % 2
        return logits + 1e-6 * torch.stack([odd, -odd], dim=1)


@pytest.mark.parametrize("norm", ["linf", "l2"])
def test_minimal_moves_on_from_where_rounding_decides(norm):
    model = Rounds()
    x, y = examples(model.inner, 20)
    exact, _ = distance(model.inner, x, y, norm)
    found = tmifpe.minimal(model, x, y, norm, steps=200)
    assert bool(found.found.all())
    # Over a slope of at least 1, the places differ by less than 4e-6.
    assert bool((found.size <= 1.02 * exact + 4e-6).all())


def test_minimal_of_what_is_wrong_or_cannot_be_broken():
    constant = nn.Sequential(nn.Flatten(), nn.Linear(4, 2))
    with torch.no_grad():
        constant[1].weight.zero_()
        constant[1].bias.copy_(torch.tensor([1.0, 0.0]))
    x = torch.rand(3, 1, 2, 2)
    found = tmifpe.minimal(constant, x, torch.tensor([0, 1, 0]), "linf", steps=5)
    assert found.size.tolist() == [math.inf, 0.0, math.inf]
    assert found.found.tolist() == [False, True, False]
    assert torch.equal(found.adv, x)
    assert "1 of 3 images broken, 1 of them wrong to begin with" in repr(found)  # and no tensors
    with pytest.raises(InputError, match="label 2 is out of range: the model has 2 classes"):
        tmifpe.minimal(constant, x, torch.tensor([0, 2, 0]))
    with pytest.raises(InputError, match="norm"):
        tmifpe.minimal(constant, x, torch.tensor([0, 1, 0]), "l7")
    with pytest.raises(InputError, match=r"\[0, 1\]"):
        tmifpe.minimal(constant, 2 * x, torch.tensor([0, 1, 0]))


def test_bracket_keeps_the_contract_of_attacks():
    check_attack("bracket(descend=20,probe=10)")


class TestCurve:
    def test_falls_and_begins_at_the_clean_accuracy(self, digits):
        line = tmifpe.curve(*digits, Threat("linf", 0.3), resolution=0.01, at=[0, "0.1", 0.3], checks=False)
        heights = [point.robust_accuracy for point in line.points]
        assert heights == sorted(heights, reverse=True)
        assert heights[0] == line.result.clean_accuracy == line.stated[0].robust_accuracy
        assert line.stated[2].robust_accuracy == line.result.robust_accuracy
        assert [point.eps for point in line.stated] == [0, 0.1, 0.3]
        assert line.area == pytest.approx(np.mean(heights), abs=1 / 256)
        assert line.point(line.median).robust_accuracy <= 0.5 < line.point(line.median * 0.999).robust_accuracy
        plain = json.loads(json.dumps(line.to_json()))
        assert len(plain["curve"]) == len(line.to_csv().splitlines()) - 1 == 257
        assert {"index", "withstood", "broken_at", "certified_to"} == set(plain["brackets"][0])
        assert plain["steps_per_example"] == line.steps > 0
        assert "median" in repr(line)
        assert len(repr(line)) < 300

    def test_progress_never_calls_more_broken_than_are_done(self, small):
        model, x, y = small
        seen = []
        tmifpe.curve(model, (x, y), Threat("linf", 0.5), resolution=0.0001, checks=False, progress=seen.append)
        assert seen[-1].wrong > len(x) / 2
        assert all(0 <= step.robust <= step.total - step.wrong for step in seen)

    def test_every_broken_example_is_verified_at_its_radius(self, small):
        model, x, y = small
        line = tmifpe.curve(model, (x, y), Threat("linf", 0.5), keep_adv=True, checks=False)
        table, adv = line.result.outcomes, line.result.adv
        assert table.fooled.sum() > 3
        wrong = (model(adv).argmax(dim=1) != y).numpy()
        assert (wrong == table.fooled).all()
        size = (adv - x).abs().flatten(1).amax(dim=1).numpy()
        assert (size[table.fooled] == table.broken_at[table.fooled]).all()

    def test_batch_shard_and_store_do_not_matter(self, small, tmp_path):
        model, x, y = (one if callable(one) else one[:6] for one in small)
        threat = Threat("l2", 1.0)
        whole = tmifpe.curve(model, (x, y), threat, checks=False).brackets
        cut = tmifpe.curve(model, (x, y), threat, batch_size=2, shard_size=3, store=tmp_path, checks=False)
        # Products round differently in batches of another size, and a hundred steps amplify it.
        np.testing.assert_allclose(cut.brackets, whole, rtol=1e-3)
        again = tmifpe.curve(model, (x, y), threat, batch_size=2, shard_size=3, store=tmp_path, checks=False)
        assert again.result.resumed == len(x)
        np.testing.assert_array_equal(again.brackets, cut.brackets)
        finer = tmifpe.curve(model, (x, y), threat, resolution=0.1, store=tmp_path, checks=False)
        assert finer.result.resumed == 0

    def test_proved_below_attacked_at_every_radius(self, small):
        model, x, y = small
        line = tmifpe.curve(model, (x, y), Threat("linf", 0.5), certify=True, checks=False)
        table = line.result.outcomes
        assert (table.certified_to < table.broken_at).all()
        assert table.certified_to.max() > 0
        for point in line.points:
            assert point.certified_accuracy is not None
            assert point.certified_accuracy <= point.robust_accuracy
        assert "certified_accuracy" in line.to_csv().splitlines()[0]

    @pytest.mark.parametrize(
        ("options", "said"),
        [
            ({"resolution": 0}, "resolution"),
            ({"resolution": "x"}, "resolution"),
            ({"resolution": 9.0}, "resolution"),
            ({"at": [0.5]}, "from 0 to 0.2"),
            ({"at": [-1]}, "from 0 to 0.2"),
            ({"radii": [0.1]}, "every radius"),
            ({"mode": "strongest"}, "mode"),
        ],
    )
    def test_mistakes(self, digits, options, said):
        with pytest.raises(InputError, match=said):
            tmifpe.curve(*digits, Threat("linf", 0.2), **options)

    def test_more_mistakes(self, digits):
        with pytest.raises(InputError, match="above 0"):
            tmifpe.curve(*digits, Threat("linf", 0.0))
        with pytest.raises(InputError, match="Threat"):
            tmifpe.curve(*digits, "linf")
        with pytest.raises(InputError, match="certificates are for the norm linf"):
            tmifpe.curve(*digits, Threat("l2", 0.1), certify=True)
        line = tmifpe.Curve(tmifpe.evaluate(*digits, Threat("linf", 0.1), "fgsm", checks=False))
        with pytest.raises(InputError, match=r"says nothing of 0\.2"):
            line.point(0.2)

    def test_a_radius_beyond_the_box_is_the_whole_box(self, small):
        model, x, y = small
        line = tmifpe.curve(model, (x, y), Threat("linf", 3.0), checks=False)
        assert line.result.outcomes.broken_at[line.result.outcomes.fooled].max() <= 1.0

    def test_targeted(self, small):
        model, x, y = small
        line = tmifpe.curve(model, (x, y), Threat("linf", 0.6), targets=2, checks=False, keep_adv=True)
        fooled = torch.from_numpy(line.result.outcomes.fooled)
        assert bool(fooled.any())
        assert bool((model(line.result.adv[fooled]).argmax(dim=1) == 2).all())


class TestRadii:
    RADII = (0.05, 0.1, 0.2)

    def test_one_run_gives_all(self, digits):
        found = tmifpe.evaluate(*digits, Threat("linf", 0.2), "quick", radii=(0.1, "0.05"), checks=False)
        assert [one.eps for one in found.radii] == list(self.RADII)
        heights = [one.robust_accuracy for one in found.radii]
        assert heights == sorted(heights, reverse=True)
        assert heights[-1] == found.robust_accuracy
        assert [one["eps"] for one in found.to_json()["radii"]] == list(self.RADII)
        table = found.outcomes
        assert set(table.broken_at[table.fooled]) <= set(self.RADII)
        assert (table.withstood < table.broken_at)[table.correct].all()

    def test_agrees_with_separate_runs(self, digits):
        """Going on from the best point is another start, so that single verdicts may differ, not more."""
        found = tmifpe.evaluate(*digits, Threat("linf", 0.2), "pgd(steps=40)", radii=(0.05, 0.1), checks=False)
        for one in found.radii:
            alone = tmifpe.evaluate(*digits, Threat("linf", one.eps), "pgd(steps=40)", checks=False)
            assert abs(one.robust_accuracy - alone.robust_accuracy) * alone.n <= 1

    def test_what_broke_is_not_attacked_again(self, small):
        model, x, y = small
        costs = [
            tmifpe.evaluate(model, (x, y), Threat("linf", 0.9), "pgd(steps=20)", radii=radii, checks=False).tally
            for radii in ((), (0.8,), (0.7, 0.8))
        ]
        # At 0.7 of the box all is broken at once: a larger radius has nothing left to do.
        assert costs[2].backwards <= costs[1].backwards + 2 * len(x)

    def test_the_list_is_part_of_the_key(self, digits, tmp_path):
        threat, plain = Threat("linf", 0.2), {"store": tmp_path, "checks": False, "limit": 8}
        one = tmifpe.evaluate(*digits, threat, "fgsm", **plain)
        several = tmifpe.evaluate(*digits, threat, "fgsm", radii=(0.1,), **plain)
        same = tmifpe.evaluate(*digits, threat, "fgsm", radii=("0.2", 0.1), **plain)
        assert one.key != several.key == same.key
        assert same.resumed == 8
        assert [row.robust_accuracy for row in same.radii] == [row.robust_accuracy for row in several.radii]
        assert tmifpe.evaluate(*digits, threat, "fgsm", radii=(0.2,), **plain).key == one.key

    def test_certified_at_every_radius(self, small):
        model, x, y = small
        found = tmifpe.evaluate(
            model, (x, y), Threat("linf", 0.3), "quick", radii=(0.01, 0.05), certify=True, checks=False
        )
        for one in found.radii:
            alone = tmifpe.certify(model, x, y, Threat("linf", one.eps)).certified.double().mean()
            assert one.certified_accuracy == pytest.approx(float(alone))
        assert found.radii[0].certified_accuracy > 0

    def test_zero_is_the_clean_accuracy(self, digits):
        found = tmifpe.evaluate(*digits, Threat("linf", 0.1), "fgsm", radii=(0,), checks=False)
        assert found.radii[0].robust_accuracy == found.clean_accuracy

    def test_workers_give_the_same(self, digits):
        given = {"radii": (0.05,), "checks": False, "shard_size": 12}
        here = tmifpe.evaluate(*digits, Threat("linf", 0.1), "pgd(steps=5)", **given)
        there = tmifpe.evaluate(*digits, Threat("linf", 0.1), "pgd(steps=5)", workers=1, **given)
        np.testing.assert_array_equal(here.outcomes.broken_at, there.outcomes.broken_at)

    @pytest.mark.parametrize("radii", [(0.3,), (-0.1,), ("x",), "0.1", 5, (math.nan,)])
    def test_mistakes(self, digits, radii):
        with pytest.raises(InputError, match=r"radii|number"):
            tmifpe.evaluate(*digits, Threat("linf", 0.2), radii=radii)

    def test_compare_gives_all(self, digits):
        row = tmifpe.compare(
            *digits, Threat("linf", 0.1), ["ce", "tmifpe"], tmifpe.PGD(steps=5), radii=(0.05,), checks=False
        )
        assert all(len(one["radii"]) == 2 for one in row.to_json()["losses"].values())


def test_an_incomplete_run_has_no_points(digits):
    line = tmifpe.curve(*digits, Threat("linf", 0.1), resolution=0.05, limit=4, checks=False)
    table = line.result.outcomes
    from dataclasses import replace

    with pytest.raises(IncompleteError):
        tmifpe.Curve(replace(line.result, missing=len(table))).point(0.05)


def test_budget_is_kept(small):
    model, x, y = small
    attack = Bracket(descend=10, probe=5, rounds=2)
    queries = Queries(model)
    attack.run(Problem(x, y, None, torch.arange(len(x)), Threat("linf", 0.3), clean=model(x)), queries, Loop(5))
    assert queries.tally.forwards <= attack.budget.forwards * len(x)
    assert queries.tally.backwards <= attack.budget.backwards * len(x)


SHORT = {"descend": 10, "probe": 5, "rounds": 2}
"""Steps of a curve, where how good it is does not matter."""
_KILLED = """
import importlib, json, sys, tmifpe
from functools import partial
from tmifpe.attacks.radius.bracket import Bracket
importlib.import_module("tmifpe.evaluation.curve").Bracket = partial(Bracket, **json.loads(sys.argv[2]))
model, data = tmifpe.load_model("digits-robust"), tmifpe.load_data("digits", limit=24)
tmifpe.curve(model, data, tmifpe.Threat("linf", 0.2), store=sys.argv[1], limit=12, shard_size=4, checks=False,
             progress=lambda step: print(step.done, flush=True))
"""


def test_resumes_after_sigkill(digits, tmp_path: Path, monkeypatch):
    monkeypatch.setattr(
        importlib.import_module("tmifpe.evaluation.curve"), "Bracket", functools.partial(Bracket, **SHORT)
    )
    command = [sys.executable, "-c", _KILLED, str(tmp_path / "killed"), json.dumps(SHORT)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=os.environ | {"OMP_NUM_THREADS": "1"}) as run:
        assert run.stdout is not None
        for line in run.stdout:
            if int(line) > 4:  # the first shard is stored, and the second has begun
                run.send_signal(signal.SIGKILL)
                break
    model, data = digits
    given = {"limit": 12, "shard_size": 4, "checks": False}
    resumed = tmifpe.curve(model, data, Threat("linf", 0.2), store=tmp_path / "killed", **given)
    straight = tmifpe.curve(model, data, Threat("linf", 0.2), store=tmp_path / "straight", **given)
    assert resumed.result.resumed in (4, 8)
    np.testing.assert_array_equal(resumed.brackets, straight.brackets)
