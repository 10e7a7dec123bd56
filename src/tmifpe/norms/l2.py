"""The Euclidean length of the change."""

from __future__ import annotations

__all__ = ["L2"]

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from tmifpe.core import rng
from tmifpe.core.numerics import row_norm
from tmifpe.norms.ball import Ball, column

_ROUNDS = 30  # the active set settles in 3 to 6 rounds; every round is feasible, so a cap costs only nearness


@dataclass(frozen=True)
class L2:
    name: ClassVar[str] = "l2"
    spreads: ClassVar[bool] = False

    def size(self, delta: Tensor) -> Tensor:
        return row_norm(delta)

    def project(self, adv: Tensor, ball: Ball) -> Tensor:
        """clip(x + s (adv - x)) with the largest s in [0, 1] that stays in the ball.

        The conditions of Karush, Kuhn and Tucker give the nearest point this form; scaling first and clipping
        after, as is common, is feasible but not nearest.
        """
        boxed = ball.boxed(adv)
        outside = row_norm(boxed - ball.x) > ball.radius
        if not bool(outside.any()):
            return boxed
        if bool(outside.all()):
            return _into_ball(adv, ball)
        rows = outside.nonzero()[:, 0]
        boxed[rows] = _into_ball(adv[rows], ball.take(rows))
        return boxed

    def region(self, ball: Ball) -> None:  # noqa: ARG002 - a ball is known by its centre
        return None

    def project_(self, adv: Tensor, ball: Ball, region: Tensor | None) -> Tensor:  # noqa: ARG002
        return self.project(adv, ball)

    def direction(self, grad: Tensor) -> Tensor:
        grad = torch.nan_to_num(grad, nan=0.0)
        norm = row_norm(grad)
        # A zero gradient has no direction: divide by 1 and stay at 0. No epsilon: tiny gradients keep full length.
        norm = torch.where(norm > 0, norm, torch.ones_like(norm))
        return grad / column(norm, grad)

    def spread(self, grad: Tensor, share: Tensor) -> Tensor:  # noqa: ARG002 - every pixel takes part anyway
        return self.direction(grad)

    def start(self, ball: Ball, seed: int, indices: Tensor, stage: int, restart: int) -> Tensor:
        # Uniform in the ball: a normal direction, and a radius whose power d is uniform.
        x, shape = ball.x, tuple(ball.x.shape[1:])
        way = self.direction(rng.normal(seed, indices, stage, restart, shape).to(x.dtype))
        share = rng.uniform(seed ^ 0x5EED, indices, stage, restart, (1,))[:, 0].to(x.dtype)
        radius = ball.radius * share ** (1.0 / math.prod(shape))
        return self.project(x + column(radius, x) * way, ball)


def _into_ball(adv: Tensor, ball: Ball) -> Tensor:
    """Rows known to leave the ball: solve sum_i min(s |d_i|, room_i)^2 = eps^2 for s, from below.

    With the saturated pixels of the current s fixed, s has a closed form; s only grows and never overshoots.
    """
    x, radius = ball.x, ball.radius
    way = (adv - x).flatten(1)
    room = torch.where(way >= 0, ball.high - x.flatten(1), x.flatten(1) - ball.low)
    length = way.abs()
    # Lengths relative to the largest keep the squares away from under- and overflow.
    unit = length.amax(dim=1, keepdim=True)
    length, room, eps = length / unit, room / unit, radius / unit[:, 0]
    s = eps / torch.linalg.vector_norm(length, dim=1)
    for _ in range(_ROUNDS):
        full = length * s[:, None] >= room
        fixed = (room.square() * full).sum(dim=1)
        free = (length.square() * ~full).sum(dim=1)
        left = (eps.square() - fixed).clamp_(min=0)
        grown = torch.where(free > 0, torch.sqrt(left / torch.where(free > 0, free, 1.0)), s)
        if bool((grown <= s).all()):
            break
        s = torch.maximum(s, grown)
    point = (x + column(s, x) * (adv - x)).clamp(ball.low, ball.high)
    # Rounding may leave the point an ulp outside: shrink towards x, and clip again, as this rounds too.
    size = row_norm(point - x)
    shrink = torch.where(size > radius, radius / size, torch.ones_like(size))
    return (x + column(shrink, x) * (point - x)).clamp_(ball.low, ball.high)
