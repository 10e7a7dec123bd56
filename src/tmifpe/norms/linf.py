"""The largest change of any pixel."""

from __future__ import annotations

__all__ = ["Linf"]

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from tmifpe.core import rng
from tmifpe.norms.ball import Ball, column


@dataclass(frozen=True)
class Linf:
    name: ClassVar[str] = "linf"
    spreads: ClassVar[bool] = False

    def size(self, delta: Tensor) -> Tensor:
        return delta.abs().flatten(1).amax(dim=1)

    def project(self, adv: Tensor, ball: Ball) -> Tensor:
        return self.project_(adv.clone(), ball, self.region(ball))

    def region(self, ball: Ball) -> Tensor:
        """(n, 2, ...): ball and box are both boxes, so their intersection is one, and clamping to it is exact."""
        eps = column(ball.radius, ball.x)
        lower = (ball.x - eps).clamp_(min=ball.low)
        upper = (ball.x + eps).clamp_(max=ball.high)
        return torch.stack([lower, upper], dim=1)

    def project_(self, adv: Tensor, ball: Ball, region: Tensor | None) -> Tensor:
        lower, upper = (self.region(ball) if region is None else region).unbind(dim=1)
        return torch.clamp_(adv, lower, upper)

    def direction(self, grad: Tensor) -> Tensor:
        # One lost pixel must not poison the image. On a CPU sign(NaN) is 0, elsewhere that is not promised.
        way = torch.sign(grad)
        return way if way.device.type == "cpu" else torch.nan_to_num_(way, nan=0.0)

    def gain(self, grad: Tensor, x: Tensor, ball: Ball, region: Tensor | None) -> Tensor:
        """The most that <grad, v - x> can be for v in ball and box (n,): pixel by pixel, up or down."""
        lower, upper = (self.region(ball) if region is None else region).unbind(dim=1)
        return torch.maximum(grad * (upper - x), grad * (lower - x)).flatten(1).sum(dim=1)

    def spread(self, grad: Tensor, share: Tensor) -> Tensor:  # noqa: ARG002 - every pixel takes part anyway
        return self.direction(grad)

    def start(self, ball: Ball, seed: int, indices: Tensor, stage: int, restart: int) -> Tensor:
        # u ~ Uniform[-eps, eps], then projected, as below eq:pgd.
        x = ball.x
        noise = rng.uniform(seed, indices, stage, restart, tuple(x.shape[1:])).to(x.dtype)
        moved = noise.mul_(2.0).sub_(1.0).mul_(column(ball.radius, x)).add_(x)
        return self.project_(moved, ball, self.region(ball))
