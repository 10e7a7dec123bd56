"""The largest change of any pixel."""

from __future__ import annotations

__all__ = ["Linf"]

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from tmifpe.core import rng
from tmifpe.core.types import Threat


@dataclass(frozen=True)
class Linf:
    name: ClassVar[str] = "linf"

    def size(self, delta: Tensor) -> Tensor:
        return delta.abs().flatten(1).amax(dim=1)

    def project(self, adv: Tensor, x: Tensor, threat: Threat) -> Tensor:
        return self.project_(adv.clone(), x, threat, self.region(x, threat))

    def region(self, x: Tensor, threat: Threat) -> Tensor:
        """(n, 2, ...): ball and box are both boxes, so their intersection is one, and clamping to it is exact."""
        lower = (x - threat.eps).clamp_(min=threat.low)
        upper = (x + threat.eps).clamp_(max=threat.high)
        return torch.stack([lower, upper], dim=1)

    def project_(self, adv: Tensor, x: Tensor, threat: Threat, region: Tensor | None) -> Tensor:
        lower, upper = (self.region(x, threat) if region is None else region).unbind(dim=1)
        return torch.clamp_(adv, lower, upper)

    def direction(self, grad: Tensor) -> Tensor:
        # One lost pixel must not poison the image. On a CPU sign(NaN) is 0, elsewhere that is not promised.
        way = torch.sign(grad)
        return way if way.device.type == "cpu" else torch.nan_to_num_(way, nan=0.0)

    def start(self, x: Tensor, threat: Threat, seed: int, indices: Tensor, stage: int, restart: int) -> Tensor:
        # u ~ Uniform[-eps, eps], then projected, as below eq:pgd.
        noise = rng.uniform(seed, indices, stage, restart, tuple(x.shape[1:])).to(x.dtype)
        moved = noise.mul_(2.0).sub_(1.0).mul_(threat.eps).add_(x)
        return self.project_(moved, x, threat, self.region(x, threat))
