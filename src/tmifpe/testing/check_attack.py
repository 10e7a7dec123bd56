"""What every attack promises, for authors of attacks outside the package."""

from __future__ import annotations

__all__ = ["check_attack"]

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from tmifpe.attacks import Attack, attack_spelling, get_attack
from tmifpe.core.rng import preserved_rng, seed_rng
from tmifpe.core.types import Threat
from tmifpe.norms import get_norm
from tmifpe.testing.linear import Linear, distance, examples, examples_at
from tmifpe.testing.trial import Trial, try_all

_CALLS = itertools.count()
_FAR = 0.01
"""The distance of the examples with a closed form."""


def check_attack(attack: str | Attack | Callable[..., Attack], *, norms: Sequence[str] = ("linf", "l2")) -> None:
    """`AssertionError`, in one sentence, unless an attack keeps the contract that evaluations rely on.

    At eps = 0 it changes nothing; it stays in ball and box and leaves its input alone; on a linear model of two
    classes it never succeeds within 0.99 of the exact distance and always at 1.01 (without gradients: at thrice the
    distance, half of the time); the same seed gives the same answer, and every batch size the same verdicts; it queries
    the model no more often than its budget allows; and its spelling is read back as itself.

    attack: a name, an attack, its class, or a function that makes one.

    >>> check_attack("pgd(steps=10)", norms=["linf"])
    """
    made = get_attack(attack) if isinstance(attack, str) else attack if isinstance(attack, Attack) else attack()
    name = attack_spelling(made).partition("@")[0].partition("(")[0]
    if get_attack(attack_spelling(made)) != made or hash(made) != hash(get_attack(attack_spelling(made))):
        raise AssertionError(f"{name} is not read back from its own spelling, {attack_spelling(made)}")
    for norm in norms:
        trial = _Trial(f"{name} ({norm})", made, norm)
        try_all(trial, (_nothing, _feasible, _closed_form, _repeatable, _budget))


@dataclass(frozen=True)
class _Trial(Trial):
    attack: Attack
    norm: str

    def __call__(self, model: nn.Module, x: Tensor, labels: Tensor, eps: float, **options: Any) -> Tensor:
        with preserved_rng():  # and every call finds the generators in another state than the one before
            seed_rng(x.device, next(_CALLS))
            return self.attack(model, x, labels, Threat(self.norm, eps), **options)


def _nothing(trial: _Trial) -> None:
    model = Linear(3)
    x, labels = examples(model, 9)
    moved = (trial(model, x, labels, 0.0) - x).abs().max()
    if moved > 0:
        raise trial.fail(f"moves images by {float(moved):.3g} at eps = 0")


def _feasible(trial: _Trial) -> None:
    model, eps = Linear(3), 0.7
    x, labels = examples(model, 9, spread=0.3)
    x = x.clamp(0, 1)
    before, weights = x.clone(), model.weight.detach().clone()
    adv = trial(model, x, labels, eps)
    if not torch.equal(x, before) or not torch.equal(model.weight, weights):
        raise trial.fail("overwrites the images or the model that it is given; work on a copy")
    if adv.shape != x.shape or adv.dtype != x.dtype:
        raise trial.fail(f"returns {adv.dtype} of shape {tuple(adv.shape)} for {x.dtype} of shape {tuple(x.shape)}")
    if not bool(((adv >= 0) & (adv <= 1)).all()):
        raise trial.fail(f"leaves the box [0, 1]: {float(adv.min()):.4g} to {float(adv.max()):.4g}")
    size = float(get_norm(trial.norm).size(adv - x).max())
    if size > eps * (1 + 1e-9):
        raise trial.fail(f"leaves the ball: {size:.6g} for eps = {eps}")


def _closed_form(trial: _Trial) -> None:
    model, n = Linear(2), 32
    x, labels = examples_at(model, n, trial.norm, _FAR)
    by_gradient = trial.attack.needs_gradient
    trials = ((0.99, 0, 0), (1.01, n, n)) if by_gradient else ((0.99, 0, 0), (3.0, n // 2, n))
    for share, least, most in trials:
        adv = trial(model, x, labels, share * _FAR)
        broken = int((model(adv).argmax(dim=1) != labels).sum())
        if not least <= broken <= most:
            wanted = "none can be" if not most else "all can be" if least == n else f"{least} should be"
            raise trial.fail(f"breaks {broken} of {n} examples at {share:g} of the exact distance, where {wanted}")


def _repeatable(trial: _Trial) -> None:
    model, n = Linear(3), 7
    x, labels = examples(model, n)
    far = distance(model, x, labels, trial.norm)[0].sort().values
    eps = float((far[2] * far[3]).sqrt())  # some are broken and some are not, none by a hair
    whole = trial(model, x, labels, eps, seed=3)
    if not torch.equal(whole, trial(model, x, labels, eps, seed=3)):
        raise trial.fail("gives a different result with the same seed")
    verdicts = model(whole).argmax(dim=1) != labels
    cut = trial(model, x, labels, eps, seed=3, batch_size=4)
    if not torch.equal(model(cut).argmax(dim=1) != labels, verdicts):
        raise trial.fail("gives other verdicts in batches of 4: draw random numbers by example index")
    part = torch.tensor([5, 2, 6])
    alone = trial(model, x[part], labels[part], eps, seed=3, indices=part)
    if not torch.equal(model(alone).argmax(dim=1) != labels[part], verdicts[part]):
        raise trial.fail("gives other verdicts for some of the examples: draw random numbers by example index")


def _budget(trial: _Trial) -> None:
    model = _Counting()
    x, labels = examples(model, 5)
    model.seen = 0
    trial(model, x, labels, 1e-6)
    most = trial.attack.budget.forwards
    if model.seen > most * len(x):
        raise trial.fail(
            f"queries the model {model.seen / len(x):g} times per example, with a budget of {most} forwards"
        )


class _Counting(Linear):
    def __init__(self) -> None:
        super().__init__(3)
        self.seen = 0

    def forward(self, x: Tensor) -> Tensor:
        self.seen += len(x)
        return super().forward(x)
