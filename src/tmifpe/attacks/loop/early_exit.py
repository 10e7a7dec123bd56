"""Early exit: an example stops, predicted robust, where even a multiple of what the linear model promises ends short of
the boundary. Half of the examples go on all the same, as a check of that prediction."""

from __future__ import annotations

__all__ = ["EarlyExit", "Exit", "linear_gain"]

import operator
from dataclasses import dataclass
from enum import IntEnum
from functools import reduce

import torch
from torch import Tensor

from tmifpe.attacks.loop.queries import Evaluated
from tmifpe.attacks.loop.rows import Problem
from tmifpe.core import numerics, rng
from tmifpe.norms import Ball, Norm

CHECKED = 0.5
"""The share of the examples that never stop early: of five wrong exits at least one is among them in 97 % of runs."""
_STREAM = 0xC4EC
"""Keeps the draw of these examples apart from the starts of attacks, whose stages count from 0."""
_LEVEL_TIMES = 1.5
"""What is lost by misjudging who comes near is another try, not a verdict."""
_ROUNDING = 1e-5
"""How far below zero a rival's share of the slope may be by rounding, in units of the label's."""


class Exit(IntEnum):
    """What early exit did with an example. Of several stages, the largest counts."""

    NONE = 0
    """It took every step, or was broken."""
    STOPPED = 1
    """It stopped early, predicted robust."""
    CHECKED = 2
    """It would have stopped, and went on as a check."""
    WRONG = 3
    """It would have stopped, went on as a check, and was broken."""


@dataclass(frozen=True)
class EarlyExit:
    """An example stops once margin + `times` · gain < 0, asked at the queries of the numbers in `at`.

    The gain is the most that the linear model of the objective can rise from here to anywhere in ball and box, in units
    of the margin; the larger one by the true slope and by that of a backward pass smoothed by `smooth`, which sees the
    units that are off now and that an attack may wake. The decision is the example's own: batch, shard and engine do
    not matter. The values were chosen on one half of the networks of benchmarks/zoo.py (docs/cost.md).

    `level`: the share of its clean margin up to which a later stage attacks an example for being near. It goes on as
    long as margin + `_LEVEL_TIMES` · gain could be so near, too.
    """

    times: float = 5.0
    smooth: float = 9.0
    at: tuple[int, ...] = (20, 40, 80)
    level: float = 0.0
    checked: float = CHECKED

    def due(self, looks: Tensor) -> Tensor:
        """Rows whose next query is one of those that ask (n,)."""
        return reduce(operator.or_, (looks == number for number in self.at))

    def checks(self, problem: Problem) -> Tensor:
        """Which rows go on whatever is predicted (n,): a matter of seed and index alone."""
        drawn = rng.uniform(problem.seed, problem.indices, _STREAM, 0, (1,))[:, 0]
        return drawn.to(problem.labels.device) < self.checked

    def robust(self, problem: Problem, evaluated: Evaluated, gain: Tensor) -> Tensor:
        """Rows that are predicted robust (n,); `gain` (n,) is that of the objective, `evaluated` by the true slope.

        A dead gradient promises nothing, but the attack may wake it: such rows go on.

        Only where the objective's slope is c (Σ a_j e_j − e_y) with c > 0 and shares a_j >= 0, the slope of a mean of
        differences z_j − z_y: then gain / c is that of the mean. Where the slope has rounded to 0, or the objective is
        something else, nothing is predicted.
        """
        logits, grad, slope = evaluated.logits, evaluated.grad, evaluated.slope
        if grad is None or slope is None:
            return torch.zeros_like(problem.labels, dtype=torch.bool)
        toward, aim = (slope, problem.labels) if problem.targets is None else (-slope, problem.targets)
        own = -toward.gather(1, aim[:, None])[:, 0]
        rest = toward.scatter(1, aim[:, None], 0.0).amin(dim=1)
        margin, rise = numerics.margin(logits.to(gain.dtype), problem.labels, problem.targets), gain / own
        # A rise that is infinite or NaN compares false.
        robust = (own > 0) & (rest >= -_ROUNDING * own) & (margin + self.times * rise < 0)
        if self.level and problem.clean is not None:
            clean = numerics.margin(problem.clean.to(gain.dtype), problem.labels, problem.targets)
            robust &= margin + _LEVEL_TIMES * rise < self.level * clean
        dead = numerics.zero_rows(grad)
        return robust if dead is None else robust & ~dead


def linear_gain(norm: Norm, grad: Tensor, x: Tensor, ball: Ball, region: Tensor | None) -> Tensor:
    """The most that <grad, v - x> can be for v in the ball and the box (n,), or more: norms that do not know of the box
    are asked for the ball alone."""
    grad = grad.to(numerics.compute_dtype(grad.dtype))
    known = getattr(norm, "gain", None)
    if known is not None:
        return known(grad, x, ball, region)
    steepest = (grad * norm.direction(grad)).flatten(1).sum(dim=1)
    return ball.radius * steepest + (grad * (ball.x - x)).flatten(1).sum(dim=1)
