"""Attacks that move every row step by step, in the one loop."""

from __future__ import annotations

__all__ = ["Stepwise"]

from abc import abstractmethod
from typing import Any, ClassVar

from torch import Tensor

from tmifpe.attacks.attack import Attack, Budget
from tmifpe.attacks.loop import Loop, Verdicts, run_loop
from tmifpe.attacks.loop.queries import Evaluated, Objective, Queries
from tmifpe.attacks.loop.rows import Problem


class Stepwise(Attack):
    """`init` opens the state of some rows, `objective` says what to climb, `step` moves every row by one step.

    The loop owns the rest: batches, queries, verdicts, best points. It reads `x` and `looks` of the state, which is
    a dataclass of `Rows`.
    """

    reads_clean: ClassVar[bool] = False
    """Whether it needs `problem.clean`; the loop reads it where the caller has not."""

    @property
    @abstractmethod
    def looks(self) -> int:
        """Looks at the model per example, the last of which only judges."""

    @property
    def budget(self) -> Budget:
        clean = int(self.reads_clean)
        return Budget(self.looks + clean, self.looks - 1 if self.needs_gradient else 0)

    @abstractmethod
    def init(self, problem: Problem) -> Any:
        """The state of these rows before their first look."""

    @abstractmethod
    def objective(self, problem: Problem, state: Any) -> Objective:
        """From logits to one value per row, which the step climbs."""

    def smoothness(self, state: Any) -> Tensor | None:  # noqa: ARG002
        """How much each row's backward pass is smoothed at this look (n,); None for the true gradient of all."""
        return None

    def inside(self, problem: Problem, state: Any) -> Tensor | None:  # noqa: ARG002
        """Which rows' points lie in their ball (n,), where some are only on the way there and must not count; None for
        all, which is what a projected attack says."""
        return None

    @property
    def may_stop_early(self) -> bool:
        """Whether rows may stop before their last step where they cannot get to the boundary (`EarlyExit`); the loop
        then asks for `gain`."""
        return False

    def gain(self, problem: Problem, state: Any, grad: Tensor) -> Tensor:
        """The most that the linear model of the objective can still rise for each row (n,)."""
        raise NotImplementedError

    @abstractmethod
    def step(self, problem: Problem, state: Any, evaluated: Evaluated) -> Any:
        """The next state, with `looks` one higher; `evaluated.grad` is None if no row has a step left, or if the
        attack needs no gradient.

        It may overwrite what it is given but for `state.x`, which the loop still reads.
        """

    def run(self, problem: Problem, queries: Queries, loop: Loop) -> Verdicts:
        return run_loop(self, problem, queries, loop)
