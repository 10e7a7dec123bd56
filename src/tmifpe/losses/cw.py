"""The loss of Carlini and Wagner: the margin itself."""

from __future__ import annotations

__all__ = ["CW"]

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from tmifpe.core.numerics import compute_dtype, margin
from tmifpe.losses.loss import Loss, check_classes, keep_usable
from tmifpe.losses.reference import ReferenceGradient, own_reference


@dataclass(frozen=True)
class CW(Loss):
    """max_{i != y} z_i - z_y, targeted z_t - max_{i != t} z_i; tied rivals share the gradient evenly.

    This is what an attack wants (eq:untargeted_obj_unsuccess, eq:untargeted_obj_success, eq:targeted_obj_unsuccess,
    eq:targeted_obj_success). No exponential, so nothing under- or overflows in any dtype; but only one rival is
    ever seen. T-MIFPE tends to it as t grows.
    """

    name: ClassVar[str] = "cw"

    def __call__(self, logits: Tensor, labels: Tensor, targets: Tensor | None = None) -> Tensor:
        check_classes(self, logits, labels, targets)
        z, usable = keep_usable(logits.to(compute_dtype(logits.dtype)))
        return margin(z, labels, targets).masked_fill(~usable, 0.0)

    def reference(self, logits: Tensor, labels: Tensor) -> ReferenceGradient:
        return own_reference(self, logits, labels)
