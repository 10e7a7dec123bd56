"""Cross-entropy in its usual form."""

from __future__ import annotations

__all__ = ["CE"]

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor
from torch.nn import functional

from tmifpe.losses.loss import Loss, aim_of, check_classes, keep_usable
from tmifpe.losses.reference import ReferenceGradient, cross_entropy_reference


@dataclass(frozen=True)
class CE(Loss):
    """CE(z, y) = -log p_y (eq:SCE_u, eq:SCE_u_s), targeted -CE(z, y_t) (eq:SCE_targeted_u, eq:SCE_targeted_s).

    The paper writes each twice, shifted by another logit; the value is the same, the largest is the safe one.
    Computed in the dtype of the logits, half precision included: it is here to show what that costs. The label's
    gradient p_y - 1 rounds to 0 once Delta exceeds 16.64 in float32, 7.62 in float16 and 5.55 in bfloat16.
    """

    name: ClassVar[str] = "ce"

    def __call__(self, logits: Tensor, labels: Tensor, targets: Tensor | None = None) -> Tensor:
        check_classes(self, logits, labels, targets)
        z, usable = keep_usable(logits)
        value = functional.cross_entropy(z, aim_of(labels, targets), reduction="none").masked_fill(~usable, 0.0)
        return value if targets is None else -value

    def reference(self, logits: Tensor, labels: Tensor) -> ReferenceGradient:
        return cross_entropy_reference(logits, labels)
