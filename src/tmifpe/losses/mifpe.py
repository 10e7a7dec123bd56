"""MIFPE: cross-entropy of the logits divided by their gap, with a fixed scale."""

from __future__ import annotations

__all__ = ["MIFPE"]

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from tmifpe.core.numbers import real_number
from tmifpe.core.numerics import compute_dtype
from tmifpe.losses.loss import Loss, aim_of, check_classes
from tmifpe.losses.reference import ReferenceGradient, own_reference
from tmifpe.losses.scaled import Temperature, scaled_cross_entropy


@dataclass(frozen=True)
class MIFPE(Loss):
    """CE(T z/Delta, y) (eq3), Delta = z_1 - z_2 detached; targeted its negative.

    Shifted before it is scaled, and the gradient carries no factor T/Delta: see `losses/scaled.py`.
    """

    T: float = 1.0
    name: ClassVar[str] = "mifpe"

    def __post_init__(self) -> None:
        object.__setattr__(self, "T", real_number("T of mifpe", self.T, above=0))

    def __call__(self, logits: Tensor, labels: Tensor, targets: Tensor | None = None) -> Tensor:
        check_classes(self, logits, labels, targets)
        z = logits.to(compute_dtype(logits.dtype))
        return scaled_cross_entropy(z, aim_of(labels, targets), Temperature(self.T, None), targets is not None)

    def reference(self, logits: Tensor, labels: Tensor) -> ReferenceGradient:
        return own_reference(self, logits, labels)
