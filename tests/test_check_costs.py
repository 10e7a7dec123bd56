"""Checks cost at most 5 % of a long run, and of a short one never more than the attack, and still see what matters."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import tmifpe
from tests.masked import Honest, Wrapped, images, quantise
from tmifpe import PGD, Threat, evaluate
from tmifpe.attacks import quick
from tmifpe.checks.allowance import FEWEST, OF_FULL, SHARE, SMALL, cost
from tmifpe.models.normalize import Normalize


class Counted(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner, self.images = inner, 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.images += len(x)
        return self.inner(x)


def labelled(n: int = 500) -> tuple[torch.Tensor, torch.Tensor]:
    x = images(n)
    return x, Honest()(x).argmax(dim=1)


def normalised() -> nn.Module:
    return Normalize(Wrapped(lambda u: 0.3081 * u + 0.1307), (0.1307,), (0.3081,))


CASES = {
    "robust": (Honest, 0.001, PGD(steps=30)),
    "weak": (Honest, 0.3, PGD(steps=30)),
    "one step": (Honest, 0.05, PGD(steps=1)),
    "nothing": (Honest, 0.0, PGD(steps=2)),
    "two attacks": (Honest, 0.02, [PGD(steps=10), PGD(loss="ce", steps=10)]),
    "masked": (lambda: Wrapped(quantise), 0.02, PGD(steps=30)),
    "no normalisation": (lambda: Wrapped(lambda u: 0.3081 * u + 0.1307), 0.3, PGD(steps=20)),
}


@pytest.mark.parametrize("case", CASES)
def test_checks_stay_within_their_share(case):
    make, eps, attack = CASES[case]
    x, y = labelled()
    if case == "no normalisation":
        y = normalised()(x).argmax(dim=1)
    model = Counted(make())
    result = evaluate(model, (x, y), Threat("linf", eps), attack, tune="off")  # whose copies count for themselves
    assert model.images == result.tally.forwards + result.check_forwards
    assert 0 < cost(result.checked) <= max(SHARE * cost(result.tally), min(SMALL, cost(result.tally)), FEWEST)
    assert result.to_json()["checks_cut"] == list(result.checks_cut)
    names = {flag.name for flag in result.flags}
    if case == "masked":
        assert {"unavailable-gradients", "zero-gradients", "unconstrained-failure"} <= names
    if case == "no normalisation":
        assert "normalisation" in names
    if case in ("robust", "weak", "two attacks"):
        assert names == set()


def test_a_long_run_is_checked_in_full():
    result = evaluate(Honest(), labelled(600), Threat("linf", 0.001), PGD(steps=100))
    assert cost(result.checked) <= SHARE * cost(result.tally)
    assert not any("left out" in text for text in result.checks_cut)


@pytest.mark.parametrize(("attack", "share"), [(quick(), 1.0), ("full", OF_FULL)])
@pytest.mark.parametrize("n", [8, 40])
def test_checks_of_large_images_cost_no_more_than_their_share(attack, share, n):
    """A pass of a large image takes time; of small ones a few hundred are nothing."""
    model = Counted(nn.Sequential(nn.AdaptiveAvgPool2d(4), Honest()))
    x = nn.functional.interpolate(images(n), scale_factor=64)
    result = evaluate(model, (x, Honest()(images(n)).argmax(dim=1)), Threat("linf", 0.02), attack)
    assert model.images == result.spent.forwards
    assert 0 < cost(result.checked) <= share * cost(result.tally)
    assert result.checks_cut  # and what was left out is said, everywhere
    assert all(text in result.to_markdown() for text in result.checks_cut)


def test_every_column_of_a_comparison_stays_within_its_share():
    row = tmifpe.compare(Honest(), labelled(), Threat("linf", 0.02), ["ce", "cw", "tmifpe"], PGD(steps=10))
    for runs in row.results.values():
        spent = cost(runs[0].tally)
        assert cost(runs[0].checked) <= max(SHARE * spent, min(SMALL, spent), FEWEST)


def test_a_stored_run_remembers_what_was_left_out(tmp_path):
    asked = {"store": tmp_path}
    first = evaluate(Honest(), labelled(), Threat("linf", 0.02), PGD(steps=5), **asked)
    again = evaluate(Honest(), labelled(), Threat("linf", 0.02), PGD(steps=5), **asked)
    assert again.resumed == 500
    assert first.checks_cut == again.checks_cut != ()
    assert first.check_forwards == again.check_forwards
