"""FMN: the smallest perturbation, by steps in a ball that shrinks while the point is adversarial and grows while not.

After Pintor et al. 2021, for every norm; at L2 it resembles DDN. It comes to the boundary from outside, where gradients
are alive that are dead inside.
"""

from __future__ import annotations

__all__ = ["FMN"]

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from tmifpe.attacks.loop.queries import Evaluated
from tmifpe.attacks.loop.rows import Problem
from tmifpe.attacks.radius.smallest import BEYOND, Smallest, SmallestState, size_of
from tmifpe.attacks.schedules import get_schedule
from tmifpe.core.numbers import real_number
from tmifpe.losses import AnyLoss
from tmifpe.norms import column, get_norm

_L2 = get_norm("l2")


@dataclass(frozen=True)
class FMN(Smallest):
    """Looks for the smallest adversarial example, not for any within eps; every look but the last is on the way there.

    Until one is found the radius is where the boundary would be if the model were linear: ‖δ‖ + |margin| / ‖∇margin‖*
    (Algorithm 1, line 6). Then it shrinks by `gamma` where the point is adversarial and grows by it where not (lines 8
    and 10), at most to `reach` eps; `gamma` and the steps, of `step_size` radii at first, fall to `last` of their size.
    Unlike the paper's it shrinks faster, by half at most, where the linear boundary is farther back than that.

    >>> FMN(steps=50).budget
    Budget(forwards=51, backwards=50)
    """

    loss: AnyLoss = "tmifpe"  # kept as its canonical text
    steps: int = 100
    gamma: float = 0.1
    step_size: float = 1.0
    schedule: str = "cosine"
    last: float = 0.02
    reach: float = 2.0
    smooth: float = 0.0
    smallest: bool = True

    name: ClassVar[str] = "fmn"

    def __post_init__(self) -> None:
        self.check_options()
        real_number("gamma", self.gamma, above=0, most=0.9)
        real_number("last", self.last, least=0, most=1)
        real_number("reach", self.reach, least=1, most=1000)

    def begin(self, problem: Problem) -> Tensor:
        return torch.zeros_like(problem.eps)

    def moved(
        self, problem: Problem, state: SmallestState, evaluated: Evaluated, adversarial: Tensor
    ) -> tuple[Tensor, Tensor]:
        assert evaluated.grad is not None  # noqa: S101 - the caller has looked
        share = get_schedule(self.schedule)(self.number(state).to(problem.eps) / self.steps)
        share = self.last + (1 - self.last) * share
        least, widest = state.size, self.reach * problem.eps
        size, far = size_of(problem, state.x), self.boundary(problem, evaluated, self.objective(problem, state))
        reached = torch.minimum(state.radius, least)
        inwards = (size - (1 - BEYOND) * far).maximum(reached * (1 - share / 2))
        shrunk = torch.minimum(reached * (1 - self.gamma * share), inwards)
        grown = torch.minimum(state.radius * (1 + self.gamma * share), least)
        # A little larger than the last one in any case: so near the boundary that the margin is rounding, the linear
        # model promises nothing more.
        further = torch.maximum(size + (1 + BEYOND) * far, state.radius * (1 + self.gamma * share / 10))
        grown = torch.where(torch.isinf(least), further, grown)
        radius = torch.where(adversarial, shrunk, torch.minimum(grown, widest))
        length = column((radius * self.step_size * share).to(state.x.dtype), state.x)
        way = problem.norm.direction(evaluated.grad)
        if problem.threat.norm == "l1":
            # The steepest way is one pixel alone, the paper's takes all, of which the projection leaves few: by turns.
            alone = column(state.looks % 2 == 1, way)
            way = torch.where(alone, way, 2 * _L2.direction(evaluated.grad))
        return radius, problem.norm.project(torch.addcmul(state.x, way, length), problem.at(radius).ball)
