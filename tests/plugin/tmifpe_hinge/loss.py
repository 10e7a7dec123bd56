"""The margin, as far as it is below a threshold."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

import tmifpe
from tmifpe.core.numerics import margin


@dataclass(frozen=True)
class Hinge(tmifpe.Loss):
    """min(max_{i != y} z_i - z_y, kappa): an example that is broken by more than kappa pulls no longer."""

    kappa: float = 10.0
    name: ClassVar[str] = "hinge"

    def __call__(self, logits: Tensor, labels: Tensor, targets: Tensor | None = None) -> Tensor:
        return margin(logits, labels, targets).clamp(max=self.kappa)
