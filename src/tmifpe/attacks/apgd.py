"""Auto-PGD: steps that halve where progress stalls, and begin again at the best point (Croce and Hein 2020, 2021)."""

from __future__ import annotations

__all__ = ["APGD"]

import itertools
import math
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import ClassVar

import torch
from torch import Tensor

from tmifpe.attacks.ascent import WIDE, Ascent, AscentState
from tmifpe.attacks.loop.queries import Evaluated, Objective
from tmifpe.attacks.loop.rows import Problem
from tmifpe.core import numerics, rng
from tmifpe.core.errors import InputError, shown
from tmifpe.losses import AnyLoss, get_loss, spelling
from tmifpe.losses.catalogue import spelled_loss
from tmifpe.norms import column

_CPU = torch.device("cpu")
_RISES = 0.75
"""The share of the steps between two checkpoints that must raise the margin."""
_L1_CHECKS = 0.04
_L1_THINNER = 1.5
"""At l1: the share of the steps between two checkpoints, and by how much fewer pixels the steps after one change."""


@dataclass
class APGDState(AscentState):
    """Beside the point: the best one with its gradient and margin, what has happened since the last checkpoint, the
    step size in units of eps, and at l1 the share of the pixels that a step changes."""

    best: Tensor = None  # pyright: ignore[reportAssignmentType] - all are given; dataclasses want defaults here
    best_grad: Tensor = None  # pyright: ignore[reportAssignmentType]
    best_value: Tensor = None  # pyright: ignore[reportAssignmentType]
    value: Tensor = None  # pyright: ignore[reportAssignmentType]
    checked: Tensor = None  # pyright: ignore[reportAssignmentType]
    rises: Tensor = None  # pyright: ignore[reportAssignmentType]
    halved: Tensor = None  # pyright: ignore[reportAssignmentType]
    size: Tensor = None  # pyright: ignore[reportAssignmentType]
    share: Tensor = None  # pyright: ignore[reportAssignmentType]


@dataclass(frozen=True)
class APGD(Ascent):
    """PGD on `loss` with a step size of its own for every row, `step_size` eps at first (at l1 half of that).

    At checkpoints, which come closer and closer, a row's step is halved and its best point is taken up again if fewer
    than three quarters of the steps before it have raised the margin, or if neither step size nor best margin have
    changed since the last one. At l1 steps change few pixels: ever fewer, as the best point has fewer changed pixels.
    Progress is that of the margin: the value of a scale-free loss says nothing about it.

    >>> APGD(loss="dlr", steps=50).budget
    Budget(forwards=51, backwards=50)
    """

    loss: AnyLoss = "tmifpe"  # kept as its canonical text
    steps: int = 100
    restarts: int = 1
    step_size: float = 2.0
    momentum: float = 0.75
    random_start: bool = True
    smooth: float = 0.0

    name: ClassVar[str] = "apgd"
    schedule: ClassVar[str] = "constant"  # pyright: ignore[reportIncompatibleVariableOverride]
    momentum_on: ClassVar[str] = "iterate"  # pyright: ignore[reportIncompatibleVariableOverride]

    def __post_init__(self) -> None:
        self.check_options()
        object.__setattr__(self, "loss", spelling(get_loss(self.loss)))
        if not isinstance(self.random_start, bool):
            raise InputError(f"random_start must be true or false, got {shown(self.random_start)}")

    def objective(self, problem: Problem, state: AscentState) -> Objective:  # noqa: ARG002
        loss = spelled_loss(self.loss)
        return lambda logits: loss(logits, problem.labels, problem.targets)

    def start(self, problem: Problem, restart: int) -> Tensor:
        if not self.random_start:
            return problem.x.clone()
        if problem.threat.norm != "l1":
            return problem.norm.start(problem.ball, problem.seed, problem.indices, problem.stage, restart)
        # As published: the projection leaves few pixels of it, so that starts differ in where they can go.
        shape = tuple(problem.x.shape[1:])
        noise = rng.normal(problem.seed, problem.indices, problem.stage, restart, shape).to(problem.x.dtype)
        return problem.norm.project(problem.x + noise, problem.ball)

    def init(self, problem: Problem) -> APGDState:
        # The first look of a restart sets all but the point.
        begun, zero = super().init(problem), torch.zeros_like(problem.eps)
        return APGDState(
            begun.x,
            begun.previous,
            None,
            begun.looks,
            begun.region,
            best=begun.x.clone(),
            best_grad=torch.zeros_like(begun.x),
            best_value=zero,
            value=zero.clone(),
            checked=zero.clone(),
            rises=zero.clone(),
            halved=zero.bool(),
            size=zero.clone(),
            share=zero.clone(),
        )

    def step(self, problem: Problem, state: AscentState, evaluated: Evaluated) -> APGDState:
        assert isinstance(state, APGDState)  # noqa: S101 - init made it
        if evaluated.grad is None:  # every row has been judged for the last time
            return replace(state, looks=state.looks + 1)
        number = self.number(state)
        state = self._noted(problem, state, evaluated, number)
        sparse = problem.threat.norm == "l1"
        state, again = self._checked_sparse(problem, state, number) if sparse else self._checked(state, number)
        x = torch.where(column(again, state.x), state.best, state.x)
        grad = torch.where(column(again, x), state.best_grad, evaluated.grad)
        norm, ball = problem.norm, problem.ball
        size = column((ball.eps * state.size).to(x.dtype), x)
        moved = norm.project_(x + size * norm.spread(grad, state.share), ball, state.region)
        if 0 < self.momentum < 1 and not sparse:
            weight = column(torch.where((number == 0) | again, 1.0, self.momentum).to(x.dtype), x)
            coast = torch.lerp(state.previous, x, 2.0)
            moved = norm.project_(torch.lerp(coast, moved, weight), ball, state.region)
        state = replace(state, x=moved, previous=x, looks=state.looks + 1)
        if self.restarts > 1:
            self._restarted(problem, state)
        return state

    def _noted(self, problem: Problem, state: APGDState, evaluated: Evaluated, number: Tensor) -> APGDState:
        """What this look says: whether the margin has risen, and whether it is the best so far."""
        assert evaluated.grad is not None  # noqa: S101 - the caller has looked
        logits = evaluated.logits.to(state.value.dtype)
        value = numerics.margin(logits, problem.labels, problem.targets)
        value = value.masked_fill(~numerics.is_usable(logits), -torch.inf)
        first = number == 0
        better = first | (value > state.best_value)
        longest = self._longest(problem)
        return replace(
            state,
            best=torch.where(column(better, state.x), state.x, state.best),
            best_grad=torch.where(column(better, state.x), evaluated.grad, state.best_grad),
            best_value=torch.where(better, value, state.best_value),
            value=value,
            checked=torch.where(first, value, state.checked),
            rises=torch.where(first, 0.0, state.rises + (value > state.value)),
            halved=state.halved | first,
            size=torch.where(first, longest, state.size),
            share=torch.where(first, self._first_share(problem, state), state.share),
        )

    def _longest(self, problem: Problem) -> float:
        """The first step in units of eps: as published, half as long at l1."""
        return self.step_size / 2 if problem.threat.norm == "l1" else self.step_size

    def _first_share(self, problem: Problem, state: APGDState) -> Tensor | float:
        """At l1: a fifth of the pixels from a random start; from a given one as many fewer than it has changed as after
        any checkpoint."""
        if problem.threat.norm != "l1" or problem.start is None:
            return WIDE
        changed = _changed(problem, state.x)
        return torch.where((state.looks == 0) & (changed > 0), changed / _L1_THINNER, WIDE)

    def _checked(self, state: APGDState, number: Tensor) -> tuple[APGDState, Tensor]:
        """Rows at a checkpoint, and those that halve their steps and go back to their best point."""
        since = _windows(self.steps, number.device)[number]
        here = since > 0
        stalled = (state.rises < _RISES * since) | (~state.halved & (state.best_value <= state.checked))
        again = here & stalled
        return replace(
            state,
            size=torch.where(again, state.size / 2, state.size),
            checked=torch.where(here, state.best_value, state.checked),
            rises=torch.where(here, 0.0, state.rises),
            halved=torch.where(here, stalled, state.halved),
        ), again

    def _checked_sparse(self, problem: Problem, state: APGDState, number: Tensor) -> tuple[APGDState, Tensor]:
        """The same at l1: full steps again where the best point has fewer changed pixels, smaller ones elsewhere."""
        every = max(1, int(_L1_CHECKS * self.steps))
        here = (number > 0) & (number % every == 0)
        changed = _changed(problem, state.best)
        before = _L1_THINNER * state.share
        if problem.start is None or self.restarts > 1:  # of a random start, all pixels count as changed
            drawn = (number == every) & ((state.looks > self.steps) | (problem.start is None))
            before = torch.where(drawn, 1.0, before)
        thinner = changed < 0.95 * before
        again = here & thinner
        longest = self._longest(problem)
        size = torch.where(thinner, longest, (state.size / _L1_THINNER).clamp(min=0.1 * longest))
        return replace(
            state,
            size=torch.where(here, size, state.size),
            share=torch.where(here, changed / _L1_THINNER, state.share),
        ), again


def _changed(problem: Problem, x: Tensor) -> Tensor:
    """The share of the pixels that differ from the image's (n,)."""
    return (x != problem.x).flatten(1).to(problem.eps.dtype).mean(dim=1)


@lru_cache(maxsize=64)
def _windows(steps: int, device: torch.device = _CPU) -> Tensor:
    """(steps + 1,): at a checkpoint the steps since the one before it, elsewhere 0.

    Checkpoints lie at shares 0, 0.22 and then each closer to the one before by 0.03, never closer than 0.06.

    >>> [number for number, since in enumerate(_windows(100).tolist()) if since]
    [22, 41, 57, 70, 80, 87, 93, 99]
    """
    shares = [0.0, 0.22]
    while shares[-1] < 1:
        shares.append(shares[-1] + max(shares[-1] - shares[-2] - 0.03, 0.06))
    places = sorted({math.ceil(round(share * steps, 6)) for share in shares if share <= 1})
    windows = [0] * (steps + 1)
    for before, here in itertools.pairwise(places):
        windows[here] = here - before
    with torch.inference_mode(False):  # what is kept must be of use anywhere
        return torch.tensor(windows, device=device)
