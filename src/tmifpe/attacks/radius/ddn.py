"""DDN: gradient steps on a sphere that shrinks while the image is misclassified and grows while it is not.

After Rony et al. 2019. It comes to the boundary from outside the ball, where gradients are alive that are dead inside.
"""

from __future__ import annotations

__all__ = ["DDN"]

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from tmifpe.attacks.loop.queries import Evaluated
from tmifpe.attacks.loop.rows import Problem
from tmifpe.attacks.radius.smallest import BEYOND, Smallest, SmallestState, size_of
from tmifpe.attacks.schedules import get_schedule
from tmifpe.core.errors import InputError, shown
from tmifpe.core.numbers import real_number
from tmifpe.core.types import Threat
from tmifpe.losses import AnyLoss
from tmifpe.norms import column


@dataclass(frozen=True)
class DDN(Smallest):
    """Steps of `step_size` eps at first, less by the schedule, each back onto a sphere; l2 only.

    The radius begins at eps. It shrinks by `gamma` where the point is adversarial and grows by `gamma` where it is not;
    eps itself is never passed over. Points outside the ball are on the way and never count.

    `smallest`: the attack of the paper, which has no eps. Unlike there (where the radius begins at 1), it is at least
    where the boundary would be if the model were linear until an example is found, shrinks faster, by half at most,
    where that is farther back, and steps are in units of the radius.

    >>> DDN(steps=50).budget
    Budget(forwards=51, backwards=50)
    """

    loss: AnyLoss = "tmifpe"  # kept as its canonical text
    steps: int = 100
    gamma: float = 0.05
    schedule: str = "cosine"
    step_size: float = 1.0
    smooth: float = 0.0
    smallest: bool = False

    name: ClassVar[str] = "ddn"

    def __post_init__(self) -> None:
        self.check_options()
        real_number("gamma", self.gamma, above=0, most=0.5)

    def check(self, threat: Threat, *, targeted: bool = False, eot: int = 1) -> None:
        super().check(threat, targeted=targeted, eot=eot)
        if threat.norm != "l2":
            raise InputError(f"ddn knows l2, not {shown(threat.norm)}")

    def begin(self, problem: Problem) -> Tensor:
        return problem.eps / 1000 if self.smallest else problem.eps.clone()

    def moved(
        self, problem: Problem, state: SmallestState, evaluated: Evaluated, adversarial: Tensor
    ) -> tuple[Tensor, Tensor]:
        assert evaluated.grad is not None  # noqa: S101 - the caller has looked
        x, eps = problem.x, problem.eps
        share = get_schedule(self.schedule)(self.number(state).to(x.dtype) / self.steps)
        radius = state.radius * torch.where(adversarial, 1 - self.gamma, 1 + self.gamma)
        unit = eps
        if self.smallest:
            size, far = size_of(problem, state.x), self.boundary(problem, evaluated, self.objective(problem, state))
            nearer = torch.minimum(radius, (size - far).maximum(state.radius * (1 - share / 2)))
            farther = torch.where(
                torch.isinf(state.size) & torch.isfinite(far), radius.maximum(size + (1 + BEYOND) * far), radius
            )
            unit = radius = torch.minimum(torch.where(adversarial, nearer, farther), eps)
        else:
            radius = torch.where((radius - eps) * (state.radius - eps) < 0, eps, radius)
        size = column((unit * self.step_size).to(x.dtype) * share, x)
        way = problem.norm.direction(state.x + size * problem.norm.direction(evaluated.grad) - x)
        # The first look is at the image itself: no gradient, no way.
        moved = problem.ball.boxed(x + column(radius.to(x.dtype), x) * way)
        within = (radius <= eps).nonzero()[:, 0]
        if len(within):
            moved[within] = problem.norm.project(moved[within], problem.ball.take(within))
        return radius, moved
