"""The AutoAttack column: the real thing, against a closed form, and without a trace in the caller's process."""

from __future__ import annotations

import sys

import numpy as np
import pytest
import torch
from torch import nn

import tmifpe
from tests.linear import Linear, distance, examples
from tmifpe import InputError, MissingExtra, Threat
from tmifpe.attacks.autoattack import AutoAttack
from tmifpe.run.resolve import resolve_attack

pytestmark = pytest.mark.usefixtures("unchecked")


@pytest.fixture(autouse=True)
def _extra():
    pytest.importorskip("pyautoattack")


class Square(nn.Module):
    """Linear, on images of six by six pixels: AutoAttack's last attack places squares, and needs room for them."""

    def __init__(self):
        super().__init__()
        generator = torch.Generator().manual_seed(6)
        self.weight = nn.Parameter(torch.randn(4, 36, generator=generator))

    def forward(self, x):
        return (x.flatten(1) - 0.5) @ self.weight.t()


@pytest.mark.slow
@pytest.mark.parametrize("norm", ["linf", "l2"])
def test_agrees_with_the_closed_form_of_a_linear_model(norm):
    model = Square()
    x = 0.5 + 0.02 * torch.randn(40, 1, 6, 6, generator=torch.Generator().manual_seed(7))
    y = model(x).argmax(dim=1)
    exact, _ = distance(model, x, y, norm)
    eps = float(exact.median()) * 1.0001
    clear = ((exact - eps).abs() > 0.01 * eps).numpy()
    result = tmifpe.evaluate(model, (x, y), Threat(norm, eps), "autoattack")
    breakable = (exact < eps).numpy()
    assert clear.sum() > 30
    assert (result.outcomes.fooled == breakable)[clear].all()
    assert result.tally.forwards > 1000
    assert result.tally.backwards > 100


def test_breaks_what_is_easy_and_says_with_what():
    model = Linear(5, dtype=torch.float32)
    x, y = examples(model, 30)
    result = tmifpe.evaluate(model, (x, y), Threat("linf", 0.3), "autoattack", limit=20, keep_adv=True)
    assert result.robust_accuracy == 0.0
    assert result.spec.attacks[0].startswith("autoattack(batch_size=250,pyautoattack=0.")
    assert result.outcomes.index.tolist() == list(range(20))
    assert (model(result.adv).argmax(dim=1) != y[:20]).all()
    assert float((result.adv - x[:20]).abs().max()) <= 0.3 * (1 + 1e-6)
    assert (result.outcomes.margin > 0).all()
    assert (result.outcomes.size <= 0.3 * (1 + 1e-6)).all()
    assert result.seconds > 0
    assert resolve_attack(result.spec.attacks[0]) == AutoAttack()


def test_leaves_no_trace(capsys):
    class Moody(nn.Sequential):
        """One part in train mode, on purpose."""

    model = Moody(Linear(5, dtype=torch.float32), nn.Dropout(0.5)).train()
    model[0].weight.requires_grad_(True)
    x, y = examples(model[0], 10)

    def tracer(frame, event, arg):
        return None

    states = torch.get_rng_state(), np.random.get_state()[1].copy()
    before = sys.gettrace()
    sys.settrace(tracer)
    try:
        tmifpe.evaluate(model, (x, y), Threat("linf", 0.3), "autoattack")
        assert sys.gettrace() is tracer
    finally:
        sys.settrace(before)
    assert torch.equal(torch.get_rng_state(), states[0])
    assert (np.random.get_state()[1] == states[1]).all()
    assert model.training
    assert model[1].training
    assert model[0].weight.requires_grad
    assert model[0].weight.grad is None
    assert capsys.readouterr() == ("", "")


def test_a_claim_that_does_not_hold_does_not_count():
    class Lying(AutoAttack):
        def _run(self, problem, queries, loop):
            return problem.x, torch.zeros_like(problem.labels)  # its first part claims all, for nothing

    model = Linear(5, dtype=torch.float32)
    data, threat = examples(model, 8), Threat("linf", 0.3)
    assert tmifpe.evaluate(model, data, threat, Lying()).broken == 0
    assert tmifpe.evaluate(model, data, threat, AutoAttack()).broken == 8


def test_in_a_comparison_it_is_one_column_at_the_first_seed():
    model = Linear(5, dtype=torch.float32)
    x, y = examples(model, 12)
    row = tmifpe.compare(
        model, (x, y), Threat("linf", 0.3), ["ce", "autoattack"], tmifpe.PGD(steps=5), seeds=[3, 4], checks=False
    )
    assert [len(row.results[c]) for c in ("ce", "autoattack")] == [2, 1]
    assert row.results["autoattack"][0].spec.seed == 3
    plain = row.to_json()["losses"]["autoattack"]
    assert plain["robust_accuracies"] == [0.0]
    assert plain["attacks"][0].startswith("autoattack(")
    assert [(p["only_first"], p["only_second"]) for p in row.to_json()["pairs"]] == [(0, 0)]


def test_after_another_attack_it_gets_what_is_left():
    model = Linear(5, dtype=torch.float32)
    x, y = examples(model, 12)
    result = tmifpe.evaluate(model, (x, y), Threat("linf", 0.3), ["fgsm", "autoattack"])
    assert result.robust_accuracy == 0.0
    assert set(result.outcomes.stage.tolist()) <= {0, 1}


@pytest.mark.parametrize(
    ("options", "threat", "word"),
    [
        ({"targets": "second"}, Threat("linf", 0.1), "targeted"),
        ({"eot": 3}, Threat("linf", 0.1), "eot"),
    ],
)
def test_what_it_is_not_defined_for_is_refused_before_any_compute(options, threat, word):
    def never(x):
        raise AssertionError("the model was asked")

    with pytest.raises(InputError, match=word):
        tmifpe.compare(never, (torch.rand(4, 1, 4, 4), torch.zeros(4).long()), threat, ["ce", "autoattack"], **options)


def test_images_too_small_for_its_squares_are_refused():
    model = Linear(5, dtype=torch.float32)
    with pytest.raises(InputError, match="5x5"):
        tmifpe.evaluate(model, examples(model, 4), Threat("l2", 0.1), "autoattack")


def test_three_classes_are_too_few():
    model = Linear(3, dtype=torch.float32)
    with pytest.raises(InputError, match="at least 4 classes"):
        tmifpe.evaluate(model, examples(model, 4), Threat("linf", 0.1), "autoattack")


def test_bad_spellings_are_one_sentence():
    for text in ("autoattack(version=rand)", "autoattack(batch_size=0)", "autoattack(pyautoattack=9.9.9)"):
        with pytest.raises(InputError) as caught:
            resolve_attack(text)
        assert "\n" not in str(caught.value)


def test_without_the_extra_it_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "pyautoattack", None)
    with pytest.raises(MissingExtra, match=r"tmifpe\[autoattack\]"):
        resolve_attack("autoattack")


def test_a_shard_is_one_of_its_own_batches_whatever_else_is_asked():
    """Its draws belong to its batches, so an answer must not hang on how long something took."""
    model = Linear(5, dtype=torch.float32)
    data, threat = examples(model, 20), Threat("linf", 0.3)
    for shard_size in (None, 3, 20):
        result = tmifpe.evaluate(model, data, threat, "autoattack(batch_size=4)", batch_size=2, shard_size=shard_size)
        assert (len(result.plan), result.plan.shard_size) == (5, 4)


class Quantised(nn.Module):
    """Without a gradient, so that only what needs none can break it."""

    def __init__(self):
        super().__init__()
        self.inner = Square()

    def forward(self, x):
        return self.inner(torch.round(8 * x) / 8)


@pytest.fixture(scope="module")
def quantised():
    pytest.importorskip("pyautoattack")
    model = Quantised()
    x = torch.rand(16, 1, 6, 6, generator=torch.Generator().manual_seed(7))
    data, threat = (x, model(x).argmax(dim=1)), Threat("linf", 0.15)
    return tmifpe.evaluate(model, data, threat, "autoattack", keep_adv=True, checks=False)


def test_the_part_that_broke_an_example_is_known(quantised, capfd):
    by = quantised.broken_by()
    assert list(by) == [f"autoattack: {part}" for part in ("apgd-ce", "apgd-t", "fab-t", "square")]
    assert sorted(i for indices in by.values() for i in indices) == np.flatnonzero(quantised.outcomes.fooled).tolist()
    assert len(by["autoattack: square"]) > 3
    assert quantised.to_json()["broken_by"]["autoattack: square"] == by["autoattack: square"].tolist()
    assert ((quantised.outcomes.part >= 0) == quantised.outcomes.fooled).all()


@pytest.mark.checked
def test_its_warning_is_our_flag_and_nothing_goes_to_stderr(capfd):
    model = Quantised()
    x = torch.rand(6, 1, 6, 6, generator=torch.Generator().manual_seed(7))
    result = tmifpe.evaluate(model, (x, model(x).argmax(dim=1)), Threat("linf", 0.2), "autoattack")
    assert capfd.readouterr() == ("", "")
    (flag,) = (flag for flag in result.flags if flag.name == "black-box-beats-white-box")
    square = result.broken_by()["autoattack: square"]
    assert f"square of autoattack broke {len(square)} example" in flag.seen
    assert str(square[0]) in flag.seen
    assert "flags_doc" not in flag.seen + flag.advice


def test_its_parts_one_by_one_are_the_standard_version(quantised):
    """Each part seeds itself anew, so that to call them in turn is to do what the package does by itself."""
    from pyautoattack import AutoAttack as Standard

    model = Quantised()
    x = torch.rand(16, 1, 6, 6, generator=torch.Generator().manual_seed(7))
    y = model(x).argmax(dim=1)
    state = torch.get_rng_state()
    whole = Standard(model, norm="Linf", eps=0.15, seed=0, version="standard", device="cpu")
    whole.apgd_targeted.n_target_classes = whole.fab.n_target_classes = 3
    whole.logger.disabled = True
    try:
        _, predictions = whole.run_standard_evaluation(x, y, batch_size=250)
    finally:
        whole.logger.disabled = False
        torch.set_rng_state(state)
    assert ((predictions != y).numpy() == quantised.outcomes.fooled).all()


def test_another_box_gives_the_same_verdicts():
    model = Linear(5, dtype=torch.float32)
    x, y = examples(model, 12)
    plain = tmifpe.evaluate(model, (x, y), Threat("linf", 0.3), "autoattack", checks=False)
    wide = tmifpe.evaluate(
        lambda v: model(v / 255), (255 * x, y), Threat("linf", 76.5, 0, 255), "autoattack", checks=False, keep_adv=True
    )
    assert (plain.outcomes.fooled == wide.outcomes.fooled).all()
    assert wide.broken == 12
    assert float((wide.adv - 255 * x).abs().max()) <= 76.5 * (1 + 1e-6)
