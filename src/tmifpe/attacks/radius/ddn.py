"""DDN: gradient steps on a sphere that shrinks while the image is misclassified and grows while it is not.

After Rony et al. 2019. It comes to the boundary from outside the ball, where gradients are alive that are dead inside.
"""

from __future__ import annotations

__all__ = ["DDN"]

from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from tmifpe.attacks.ascent import Ascent, AscentState
from tmifpe.attacks.loop.queries import Evaluated, Objective
from tmifpe.attacks.loop.rows import Problem
from tmifpe.attacks.schedules import get_schedule
from tmifpe.core.errors import InputError, shown
from tmifpe.core.numbers import real_number
from tmifpe.core.types import Threat
from tmifpe.losses import AnyLoss, get_loss, spelling
from tmifpe.losses.catalogue import spelled_loss
from tmifpe.norms import column


@dataclass
class DDNState(AscentState):
    """Beside the point: the radius of the sphere that it lies on."""

    radius: Tensor = None  # pyright: ignore[reportAssignmentType] - it is given; dataclasses want a default here


@dataclass(frozen=True)
class DDN(Ascent):
    """Steps of `step_size` eps at first, less by the schedule, each back onto a sphere; l2 only.

    The radius begins at eps. It shrinks by `gamma` where the point is adversarial and grows by `gamma` where it is not;
    eps itself is never passed over. Points outside the ball are on the way and never count.

    >>> DDN(steps=50).budget
    Budget(forwards=51, backwards=50)
    """

    loss: AnyLoss = "tmifpe"  # kept as its canonical text
    steps: int = 100
    gamma: float = 0.05
    schedule: str = "cosine"
    step_size: float = 1.0
    smooth: float = 0.0

    name: ClassVar[str] = "ddn"
    restarts: ClassVar[int] = 1  # pyright: ignore[reportIncompatibleVariableOverride] - it draws nothing
    momentum: ClassVar[float] = 0.0  # pyright: ignore[reportIncompatibleVariableOverride]
    momentum_on: ClassVar[str] = "iterate"  # pyright: ignore[reportIncompatibleVariableOverride]

    def __post_init__(self) -> None:
        self.check_options()
        real_number("gamma", self.gamma, above=0, most=0.5)
        object.__setattr__(self, "loss", spelling(get_loss(self.loss)))

    def check(self, threat: Threat, *, targeted: bool = False, eot: int = 1) -> None:
        super().check(threat, targeted=targeted, eot=eot)
        if threat.norm != "l2":
            raise InputError(f"ddn knows l2, not {shown(threat.norm)}")

    def objective(self, problem: Problem, state: AscentState) -> Objective:  # noqa: ARG002
        loss = spelled_loss(self.loss)
        return lambda logits: loss(logits, problem.labels, problem.targets)

    def start(self, problem: Problem, restart: int) -> Tensor:  # noqa: ARG002
        return problem.x.clone()

    def init(self, problem: Problem) -> DDNState:
        begun = super().init(problem)
        return DDNState(begun.x, begun.previous, None, begun.looks, None, radius=problem.eps.clone())

    def inside(self, problem: Problem, state: AscentState) -> Tensor:
        assert isinstance(state, DDNState)  # noqa: S101 - init made it
        return state.radius <= problem.eps

    def step(self, problem: Problem, state: AscentState, evaluated: Evaluated) -> DDNState:
        assert isinstance(state, DDNState)  # noqa: S101 - init made it
        if evaluated.grad is None:  # every row has been judged for the last time
            return replace(state, looks=state.looks + 1)
        x, eps = problem.x, problem.eps
        adversarial = problem.succeeded(evaluated.logits.argmax(dim=1))
        radius = state.radius * torch.where(adversarial, 1 - self.gamma, 1 + self.gamma)
        radius = torch.where((radius - eps) * (state.radius - eps) < 0, eps, radius)
        share = get_schedule(self.schedule)(self.number(state).to(x.dtype) / self.steps)
        size = column((eps * self.step_size).to(x.dtype) * share, x)
        way = problem.norm.direction(state.x + size * problem.norm.direction(evaluated.grad) - x)
        # The first look is at the image itself: no gradient, no way.
        moved = problem.ball.boxed(x + column(radius.to(x.dtype), x) * way)
        within = (radius <= eps).nonzero()[:, 0]
        if len(within):
            moved[within] = problem.norm.project(moved[within], problem.ball.take(within))
        return replace(state, x=moved, previous=state.x, radius=radius, looks=state.looks + 1)
