"""What counts as a success: foolbox's two criteria."""

from __future__ import annotations

__all__ = ["Misclassification", "TargetedMisclassification", "read_criterion"]

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from tmifpe.core.errors import InputError


@dataclass(frozen=True, eq=False)
class Misclassification:
    """Any class but the label."""

    labels: Tensor


@dataclass(frozen=True, eq=False)
class TargetedMisclassification:
    """The target class."""

    target_classes: Tensor


def read_criterion(criterion: Any) -> tuple[Tensor | None, Tensor | None]:
    """(labels, None) or (None, targets): from labels, from a criterion above, or from one of foolbox itself."""
    if (targets := getattr(criterion, "target_classes", None)) is not None:
        return None, as_tensor(targets)
    labels = as_tensor(getattr(criterion, "labels", criterion))
    if not isinstance(labels, Tensor):
        raise InputError(
            f"the criterion must be labels or a (Targeted)Misclassification, got {type(criterion).__name__}"
        )
    return labels, None


def as_tensor(given: Any) -> Any:
    """The tensor of torch inside an eagerpy tensor; anything else as it is."""
    return getattr(given, "raw", given)
