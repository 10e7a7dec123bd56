"""What a run says of one of several radii."""

from __future__ import annotations

__all__ = ["Radius"]

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Radius:
    """What stands at one radius: certified_accuracy <= robust accuracy of the model <= robust_accuracy."""

    eps: float
    robust_accuracy: float
    interval: tuple[float, float]
    certified_accuracy: float | None = None
    """None if that was not asked."""

    def to_json(self) -> dict[str, Any]:
        plain = {"eps": self.eps, "robust_accuracy": self.robust_accuracy, "interval": list(self.interval)}
        return plain if self.certified_accuracy is None else plain | {"certified_accuracy": self.certified_accuracy}
