"""FMN: the smallest perturbation, by steps in a ball that shrinks while the point is adversarial and grows while not.

After Pintor et al. 2021, for every norm; at L2 it resembles DDN. It comes to the boundary from outside, where gradients
are alive that are dead inside.
"""

from __future__ import annotations

__all__ = ["FMN", "size_of"]

from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from tmifpe.attacks.ascent import Ascent, AscentState
from tmifpe.attacks.loop import Loop, Verdicts
from tmifpe.attacks.loop.queries import Evaluated, Objective, Queries
from tmifpe.attacks.loop.rows import Problem
from tmifpe.attacks.schedules import get_schedule
from tmifpe.core import numerics
from tmifpe.core.numbers import real_number
from tmifpe.losses import AnyLoss, get_loss, spelling
from tmifpe.losses.catalogue import spelled_loss
from tmifpe.norms import column


@dataclass
class FMNState(AscentState):
    """Beside the point: the radius of its ball, and the smallest adversarial example so far with its size."""

    radius: Tensor = None  # pyright: ignore[reportAssignmentType] - these are given; dataclasses want a default
    found: Tensor = None  # pyright: ignore[reportAssignmentType]
    size: Tensor = None  # pyright: ignore[reportAssignmentType]
    """Infinite until one is found."""


@dataclass(frozen=True)
class FMN(Ascent):
    """Looks for the smallest adversarial example, not for any within eps; every look but the last is on the way there.

    The radius begins at `begin` eps. It shrinks by `gamma` where the point is adversarial and grows by it where not, at
    most to `reach` eps; `gamma` and the steps, of `step_size` radii at first, fall to `last` of their size. The last
    look is at the smallest example found, and is the only one that counts: what is larger than eps does not.

    >>> FMN(steps=50).budget
    Budget(forwards=51, backwards=50)
    """

    loss: AnyLoss = "tmifpe"  # kept as its canonical text
    steps: int = 100
    gamma: float = 0.1
    step_size: float = 1.0
    schedule: str = "cosine"
    last: float = 0.02
    begin: float = 1.0
    reach: float = 2.0
    smooth: float = 0.0

    name: ClassVar[str] = "fmn"
    restarts: ClassVar[int] = 1  # pyright: ignore[reportIncompatibleVariableOverride] - it draws nothing
    momentum: ClassVar[float] = 0.0  # pyright: ignore[reportIncompatibleVariableOverride]
    momentum_on: ClassVar[str] = "iterate"  # pyright: ignore[reportIncompatibleVariableOverride]

    def __post_init__(self) -> None:
        self.check_options()
        real_number("gamma", self.gamma, above=0, most=0.9)
        real_number("last", self.last, least=0, most=1)
        real_number("begin", self.begin, above=0, most=1)
        real_number("reach", self.reach, least=1, most=1000)
        object.__setattr__(self, "loss", spelling(get_loss(self.loss)))

    def objective(self, problem: Problem, state: AscentState) -> Objective:  # noqa: ARG002
        loss = spelled_loss(self.loss)
        return lambda logits: loss(logits, problem.labels, problem.targets)

    def start(self, problem: Problem, restart: int) -> Tensor:  # noqa: ARG002
        return problem.x.clone()

    def init(self, problem: Problem) -> FMNState:
        given = problem.start
        x = problem.x.clone() if given is None else problem.norm.project(given, problem.ball)
        size = torch.full_like(problem.eps, torch.inf)
        radius = problem.eps * self.begin
        return FMNState(x, x.clone(), None, torch.zeros_like(problem.labels), None, radius, x.clone(), size)

    def inside(self, problem: Problem, state: AscentState) -> Tensor:
        assert isinstance(state, FMNState)  # noqa: S101 - init made it
        return (state.looks >= self.steps) & (size_of(problem, state.x) <= problem.eps)

    def step(self, problem: Problem, state: AscentState, evaluated: Evaluated) -> FMNState:
        assert isinstance(state, FMNState)  # noqa: S101 - init made it
        if evaluated.grad is None:  # every row has been judged for the last time
            return replace(state, looks=state.looks + 1)
        norm, x = problem.norm, problem.x
        usable = numerics.is_usable(evaluated.logits)
        adversarial = problem.succeeded(evaluated.logits.argmax(dim=1)) & usable
        size = size_of(problem, state.x)
        smaller = (adversarial & (size < state.size)).nonzero()[:, 0]
        state.found.index_copy_(0, smaller, state.x.index_select(0, smaller))
        least = state.size.index_copy(0, smaller, size.index_select(0, smaller))
        share = get_schedule(self.schedule)(self.number(state).to(problem.eps) / self.steps)
        share = self.last + (1 - self.last) * share
        shrunk = torch.minimum(state.radius, least) * (1 - self.gamma * share)
        grown = torch.minimum(state.radius * (1 + self.gamma * share), self.reach * problem.eps)
        radius = torch.where(adversarial, shrunk, torch.minimum(grown, least))
        length = column((radius * self.step_size * share).to(x.dtype), x)
        within = problem.at(radius)
        way = self._way(within, evaluated.grad, self.number(state))
        moved = norm.project(torch.addcmul(state.x, way, length), within.ball)
        ends = ((state.looks + 1 >= self.steps) & torch.isfinite(least)).nonzero()[:, 0]
        if len(ends):
            moved[ends] = state.found[ends]
        return replace(state, x=moved, previous=state.x, radius=radius, size=least, looks=state.looks + 1)

    def run(self, problem: Problem, queries: Queries, loop: Loop) -> Verdicts:
        found = super().run(problem, queries, loop)
        found.rise = torch.zeros_like(found.rise)  # only one look counts, so that nothing can be said of its rise
        return found


def size_of(problem: Problem, x: Tensor) -> Tensor:
    """In the precision of eps: an example of that size lies in the ball of that radius."""
    wide = problem.eps.dtype
    return problem.norm.size(x.to(wide) - problem.x.to(wide))
