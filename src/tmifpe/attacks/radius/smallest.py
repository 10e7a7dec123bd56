"""What attacks that look for the smallest perturbation share: a radius that moves, and the smallest example so far."""

from __future__ import annotations

__all__ = ["BEYOND", "Smallest", "SmallestState", "size_of"]

from abc import abstractmethod
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from tmifpe.attacks.ascent import Ascent, AscentState
from tmifpe.attacks.loop import Loop, Verdicts
from tmifpe.attacks.loop.queries import Evaluated, Objective, Queries
from tmifpe.attacks.loop.rows import Problem
from tmifpe.core import numerics
from tmifpe.core.errors import InputError, shown
from tmifpe.losses import AnyLoss, get_loss, spelling
from tmifpe.losses.catalogue import spelled_loss

_CONJUGATE = {"linf": 1.0, "l2": 2.0, "l1": torch.inf}
BEYOND = 1e-3
"""How much farther than the linear model says, so that rounding does not decide on which side the point lies."""
_ULPS = 8


@dataclass
class SmallestState(AscentState):
    """Beside the point: the radius of its ball, and the smallest adversarial example so far with its size."""

    radius: Tensor = None  # pyright: ignore[reportAssignmentType] - these are given; dataclasses want a default
    found: Tensor = None  # pyright: ignore[reportAssignmentType]
    size: Tensor = None  # pyright: ignore[reportAssignmentType]
    """Infinite until one is found."""


class Smallest(Ascent):
    """An `Ascent` whose radius is the row's own. A subclass adds `begin` and `moved`.

    With `smallest` the last look is at the smallest example found, and is the only one that counts. Without it a row
    leaves with the first example within eps, which is enough for a verdict.
    """

    loss: AnyLoss
    smallest: bool

    restarts: ClassVar[int] = 1  # pyright: ignore[reportIncompatibleVariableOverride] - they draw nothing
    momentum: ClassVar[float] = 0.0  # pyright: ignore[reportIncompatibleVariableOverride]
    momentum_on: ClassVar[str] = "iterate"  # pyright: ignore[reportIncompatibleVariableOverride]

    @abstractmethod
    def begin(self, problem: Problem) -> Tensor:
        """The radius at first (n,)."""

    @abstractmethod
    def moved(
        self, problem: Problem, state: SmallestState, evaluated: Evaluated, adversarial: Tensor
    ) -> tuple[Tensor, Tensor]:
        """The next radius (n,) and the next point, where `adversarial` (n,) says what this one is."""

    def check_options(self) -> None:
        super().check_options()
        object.__setattr__(self, "loss", spelling(get_loss(self.loss)))
        if not isinstance(self.smallest, bool):
            raise InputError(f"smallest must be true or false, got {shown(self.smallest)}")

    def objective(self, problem: Problem, state: AscentState) -> Objective:  # noqa: ARG002
        loss = spelled_loss(self.loss)
        return lambda logits: loss(logits, problem.labels, problem.targets)

    def start(self, problem: Problem, restart: int) -> Tensor:  # noqa: ARG002
        return problem.x.clone()

    def init(self, problem: Problem) -> SmallestState:
        begun = super().init(problem)
        size = torch.full_like(problem.eps, torch.inf)
        return SmallestState(
            begun.x, begun.previous, None, begun.looks, None, self.begin(problem), begun.x.clone(), size
        )

    def inside(self, problem: Problem, state: AscentState) -> Tensor:
        assert isinstance(state, SmallestState)  # noqa: S101 - init made it
        rounding = _ULPS * torch.finfo(state.x.dtype).eps
        near = size_of(problem, state.x) <= problem.eps * (1 + rounding)
        return near & (state.looks >= self.steps) if self.smallest else near

    def step(self, problem: Problem, state: AscentState, evaluated: Evaluated) -> SmallestState:
        assert isinstance(state, SmallestState)  # noqa: S101 - init made it
        if evaluated.grad is None:  # every row has been judged for the last time
            return replace(state, looks=state.looks + 1)
        usable = numerics.is_usable(evaluated.logits)
        adversarial = problem.succeeded(evaluated.logits.argmax(dim=1)) & usable
        size = size_of(problem, state.x)
        smaller = (adversarial & (size < state.size)).nonzero()[:, 0]
        state.found.index_copy_(0, smaller, state.x.index_select(0, smaller))
        state = replace(state, size=state.size.index_copy(0, smaller, size.index_select(0, smaller)))
        radius, moved = self.moved(problem, state, evaluated, adversarial)
        if self.smallest:
            ends = ((state.looks + 1 >= self.steps) & torch.isfinite(state.size)).nonzero()[:, 0]
            moved[ends] = state.found[ends]
        return replace(state, x=moved, previous=state.x, radius=radius, looks=state.looks + 1)

    def boundary(self, problem: Problem, evaluated: Evaluated, objective: Objective) -> Tensor:
        """How far from each point the boundary would be if the model were linear (n,): |margin| / ‖∇margin‖*; infinite
        where the gradient is zero.

        The objective's slope at the logits is c (Σ a_j e_j − e_y) with shares a_j, so that its gradient is c times that
        of a mean of margins.
        """
        assert evaluated.grad is not None  # noqa: S101 - the caller has looked
        logits = evaluated.logits.detach().to(problem.x.dtype)
        with torch.enable_grad():
            leaf = logits.clone().requires_grad_()
            slope = torch.autograd.grad(objective(leaf).sum(), leaf)[0]
        toward, aim = (-slope, problem.labels) if problem.targets is None else (slope, problem.targets)
        factor = toward.gather(1, aim[:, None])[:, 0]
        order = _CONJUGATE.get(problem.threat.norm, 2.0)
        steep = torch.linalg.vector_norm(torch.nan_to_num(evaluated.grad).flatten(1), ord=order, dim=1)
        gap = numerics.margin(logits, problem.labels, problem.targets).abs()
        known = (steep > 0) & (factor > 0) & torch.isfinite(gap)
        return torch.where(known, gap * factor / torch.where(steep > 0, steep, 1.0), torch.inf).to(problem.eps)

    def run(self, problem: Problem, queries: Queries, loop: Loop) -> Verdicts:
        found = super().run(problem, queries, loop)
        if self.smallest:
            found.rise = torch.zeros_like(found.rise)  # only one look counts: nothing can be said of its rise
        return found


def size_of(problem: Problem, x: Tensor) -> Tensor:
    """In the precision of eps: an example of that size lies in the ball of that radius."""
    wide = problem.eps.dtype
    return problem.norm.size(x.to(wide) - problem.x.to(wide))
