"""The sum of the changes of all pixels: few pixels may change much."""

from __future__ import annotations

__all__ = ["L1"]

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from tmifpe.core import rng
from tmifpe.norms.ball import Ball, column

_ROUNDS = 100  # 5 to 10 are usual; a quarter of them halve the bracket, which leaves nothing but rounding
_ULPS = 16  # how far from eps a sum of thousands of pixels may end, in units of its rounding


@dataclass(frozen=True)
class L1:
    name: ClassVar[str] = "l1"

    def size(self, delta: Tensor) -> Tensor:
        return delta.abs().flatten(1).sum(dim=1)

    def project(self, adv: Tensor, ball: Ball) -> Tensor:
        """x + sign(w) clamp(|w| - c, 0, room) with w = adv - x, the room that the box leaves, and the c >= 0 at which
        the sizes add up to eps: the conditions of Karush, Kuhn and Tucker.

        Projecting onto the ball and clipping after is feasible but not nearest: it gives away what the box cuts off
        (Croce and Hein 2021, "Mind the box").
        """
        boxed = ball.boxed(adv)
        outside = self.size(boxed - ball.x) > ball.radius
        if not bool(outside.any()):
            return boxed
        rows = outside.nonzero()[:, 0]
        boxed[rows] = _into_ball(adv[rows], ball.take(rows))
        return boxed

    def region(self, ball: Ball) -> None:  # noqa: ARG002 - a ball is known by its centre
        return None

    def project_(self, adv: Tensor, ball: Ball, region: Tensor | None) -> Tensor:  # noqa: ARG002
        return self.project(adv, ball)

    def direction(self, grad: Tensor) -> Tensor:
        """One pixel, that of the largest gradient; pixels that tie share the step."""
        size = torch.nan_to_num(grad, nan=0.0).abs()
        top = size.flatten(1).amax(dim=1)
        return _even(torch.where((size == column(top, size)) & (size > 0), torch.sign(grad), 0.0))

    def spread(self, grad: Tensor, share: Tensor) -> Tensor:
        """A step of size one, spread evenly over the `share` (n,) of the pixels with the largest gradients, one at
        least: what `direction` is to the first of many steps (Croce and Hein 2021)."""
        grad = torch.nan_to_num(grad, nan=0.0)
        size = grad.abs().flatten(1)
        pixels = size.shape[1]
        count = (share * pixels).long().clamp(1, pixels)
        # The k-th largest of each row bounds its pixels from below. Sorting no more than the largest k of all rows.
        ranked = torch.topk(size, int(count.max()), dim=1).values
        least = ranked.gather(1, count[:, None] - 1)[:, 0]
        return _even(torch.where(grad.abs() >= column(least, grad), torch.sign(grad), 0.0))

    def start(self, ball: Ball, seed: int, indices: Tensor, stage: int, restart: int) -> Tensor:
        # Uniform in the ball: sizes of a flat simplex (exponentials over their sum), signs by a coin, and a radius
        # whose power d is uniform.
        x, shape = ball.x, tuple(ball.x.shape[1:])
        draw = 2 * rng.uniform(seed, indices, stage, restart, shape).to(x.dtype) - 1
        lengths = -torch.log1p(-draw.abs())
        share = rng.uniform(seed ^ 0x5EED, indices, stage, restart, (1,))[:, 0].to(x.dtype)
        radius = ball.radius * share ** (1.0 / math.prod(shape))
        total = self.size(lengths)
        way = torch.sign(draw) * lengths / column(torch.where(total > 0, total, 1.0), x)
        return self.project(x + column(radius, x) * way, ball)


def _even(signs: Tensor) -> Tensor:
    """Steps of size one over the pixels that are not 0; a row without any stays 0."""
    count = signs.abs().flatten(1).sum(dim=1)
    return signs / column(count.clamp(min=1), signs)


def _into_ball(adv: Tensor, ball: Ball) -> Tensor:
    """Rows known to leave the ball."""
    x, radius = ball.x, ball.radius
    way = (adv - x).flatten(1)
    room = torch.where(way >= 0, ball.high - x.flatten(1), x.flatten(1) - ball.low)
    length = way.abs()
    size = torch.minimum((length - _cut(length, room, radius)[:, None]).clamp_(min=0), room)
    point = (x + (torch.sign(way) * size).view_as(x)).clamp_(ball.low, ball.high)
    # Rounding may leave the point a little outside: shrink towards x, and clip again, as this rounds too.
    reached = (point - x).abs().flatten(1).sum(dim=1)
    shrink = torch.where(reached > radius, radius / reached, torch.ones_like(reached))
    return (x + column(shrink, x) * (point - x)).clamp_(ball.low, ball.high)


def _cut(length: Tensor, room: Tensor, eps: Tensor) -> Tensor:
    """The c (n,) with sum_i clamp(length_i - c, 0, room_i) = eps.

    The sum falls with c, in straight pieces. Newton's step is exact once it starts on the piece of the solution. Two
    steps of eight halve the bracket instead, since the sum is not convex.
    """
    found = torch.zeros_like(eps)
    rows = torch.arange(len(eps), device=eps.device)
    c, low, high = found, found, length.amax(dim=1)
    for number in range(_ROUNDS):
        left = length - c[:, None]
        kept = torch.minimum(left.clamp(min=0), room)
        free = (kept == left).sum(dim=1)
        beyond = kept.sum(dim=1) - eps
        low, high = torch.where(beyond >= 0, c, low), torch.where(beyond >= 0, high, c)
        change = beyond / free.clamp(min=1)
        fine = torch.finfo(c.dtype).eps
        moving = (beyond.abs() > _ULPS * fine * eps) & ((change.abs() > fine * c) | (free == 0))
        newton = c + change
        bold = (newton > low) & (newton < high) & (number % 8 < 6)
        c = torch.where(moving, torch.where(bold, newton, (low + high) / 2), c)
        found[rows] = c
        if not bool(moving.any()):
            break
        if 2 * int(moving.sum()) <= len(rows):  # most are through: go on with the others
            rows, length, room = rows[moving], length[moving], room[moving]
            c, low, high, eps = c[moving], low[moving], high[moving], eps[moving]
    return found
