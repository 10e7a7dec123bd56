"""The largest change of any pixel, counted twice."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from torch import Tensor

from tmifpe.norms import Ball
from tmifpe.norms.linf import Linf


@dataclass(frozen=True)
class HalfLinf(Linf):
    """2 max_i |delta_i|: with eps it allows what `linf` allows with eps/2."""

    name: ClassVar[str] = "half-linf"

    def size(self, delta: Tensor) -> Tensor:
        return 2 * super().size(delta)

    def region(self, ball: Ball) -> Tensor:
        return super().region(replace(ball, eps=ball.eps / 2))

    def direction(self, grad: Tensor) -> Tensor:
        return super().direction(grad) / 2
