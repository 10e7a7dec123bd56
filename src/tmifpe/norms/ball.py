"""Where an attacker may go: a ball of its own radius around each image, inside the box of all images."""

from __future__ import annotations

__all__ = ["Ball", "column"]

from dataclasses import dataclass

import torch
from torch import Tensor

from tmifpe.core.numerics import wide_dtype
from tmifpe.core.types import Threat


@dataclass(frozen=True)
class Ball:
    """Images x (n, ...), a radius eps (n,) for each of them, and the box [low, high] that they all lie in.

    >>> ball = Ball.of(torch.zeros(2, 3), Threat("linf", 0.1))
    >>> ball.eps.tolist()
    [0.1, 0.1]
    """

    x: Tensor
    eps: Tensor
    low: float
    high: float

    @classmethod
    def of(cls, x: Tensor, threat: Threat) -> Ball:
        """The same radius for every image."""
        eps = torch.full((len(x),), threat.eps, dtype=wide_dtype(x.device), device=x.device)
        return cls(x, eps, threat.low, threat.high)

    @property
    def radius(self) -> Tensor:
        """eps (n,) in the dtype of the images."""
        return self.eps.to(self.x.dtype)

    def take(self, rows: Tensor) -> Ball:
        return Ball(self.x[rows], self.eps[rows], self.low, self.high)

    def boxed(self, adv: Tensor) -> Tensor:
        """`adv` clipped to the box."""
        return adv.clamp(self.low, self.high)


def column(values: Tensor, like: Tensor) -> Tensor:
    """One number per example (n,), shaped so that it multiplies rows of `like` (n, ...)."""
    return values.reshape(-1, *([1] * (like.dim() - 1)))
