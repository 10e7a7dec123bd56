"""Which rows still have a chance: where even a multiple of what the linear model promises ends short of the boundary,
the steps that are left will not get there either."""

from __future__ import annotations

__all__ = ["Reach", "linear_gain"]

from dataclasses import dataclass

import torch
from torch import Tensor

from tmifpe.attacks.loop.queries import Evaluated
from tmifpe.attacks.loop.rows import Problem
from tmifpe.core import numerics
from tmifpe.norms import Ball, Norm

_LEVEL_TIMES = 1.5
"""What is lost by misjudging who comes near is another try, not a verdict."""
_ROUNDING = 1e-5
"""How far below zero a rival's share of the slope may be by rounding, in units of the label's."""


@dataclass(frozen=True)
class Reach:
    """A row leaves, robust, once margin + `times` · gain < 0, looked at after every `every` steps.

    The gain is the most that the linear model of the objective can rise from here to anywhere in ball and box, in units
    of the margin. Of 11,000 rows of six networks none that this turned away at 5 was broken later by the steps
    that it saved (docs/cost.md). The decision is the row's own: batch, shard and engine do not matter.

    `level`: in a sequence, the share of its clean margin up to which a row that comes near is attacked again. Then it
    stays as long as margin + `_LEVEL_TIMES` · gain could be so near, too.
    """

    times: float = 5.0
    every: int = 10
    level: float = 0.0

    def due(self, looks: Tensor) -> Tensor:
        """Rows that have taken that many looks and are asked at the next (n,)."""
        return (looks > 0) & (looks % self.every == 0)

    def beyond(self, problem: Problem, evaluated: Evaluated, gain: Tensor) -> Tensor:
        """Rows that cannot get there (n,); `gain` (n,) is that of the objective.

        A dead gradient promises nothing, but the attack may wake it: such rows stay.

        Only where the objective's slope is c (Σ a_j e_j − e_y) with c > 0 and shares a_j >= 0, the slope of a mean of
        differences z_j − z_y: then gain / c is that of the mean. Where the slope has rounded to 0, or the objective is
        something else, nobody leaves.
        """
        logits, grad, slope = evaluated.logits, evaluated.grad, evaluated.slope
        if grad is None or slope is None:
            return torch.zeros_like(problem.labels, dtype=torch.bool)
        toward, aim = (slope, problem.labels) if problem.targets is None else (-slope, problem.targets)
        own = -toward.gather(1, aim[:, None])[:, 0]
        rest = toward.scatter(1, aim[:, None], 0.0).amin(dim=1)
        margin, rise = numerics.margin(logits.to(gain.dtype), problem.labels, problem.targets), gain / own
        # A rise that is infinite or NaN compares false.
        beyond = (own > 0) & (rest >= -_ROUNDING * own) & (margin + self.times * rise < 0)
        if self.level and problem.clean is not None:
            clean = numerics.margin(problem.clean.to(gain.dtype), problem.labels, problem.targets)
            beyond &= margin + _LEVEL_TIMES * rise < self.level * clean
        dead = numerics.zero_rows(grad)
        return beyond if dead is None else beyond & ~dead


def linear_gain(norm: Norm, grad: Tensor, x: Tensor, ball: Ball, region: Tensor | None) -> Tensor:
    """The most that <grad, v - x> can be for v in the ball and the box (n,), or more: norms that do not know of the box
    are asked for the ball alone."""
    grad = grad.to(numerics.compute_dtype(grad.dtype))
    known = getattr(norm, "gain", None)
    if known is not None:
        return known(grad, x, ball, region)
    steepest = (grad * norm.direction(grad)).flatten(1).sum(dim=1)
    return ball.radius * steepest + (grad * (ball.x - x)).flatten(1).sum(dim=1)
