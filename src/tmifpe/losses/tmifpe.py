"""T-MIFPE, the paper's loss, in arithmetic that is right for every gap."""

from __future__ import annotations

__all__ = ["TMIFPE"]

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from tmifpe.core.errors import InputError, shown
from tmifpe.core.numbers import real_number
from tmifpe.core.numerics import compute_dtype
from tmifpe.losses.loss import Loss, aim_of, check_classes
from tmifpe.losses.reference import ReferenceGradient, own_reference
from tmifpe.losses.scaled import Temperature, scaled_cross_entropy
from tmifpe.theory.formats import lam_of


@dataclass(frozen=True)
class TMIFPE(Loss):
    """CE(t* z/Delta, y) (eq15), targeted -CE(t* z/Delta, y_t) (eq16), with t* anew for each row and call.

    `t_rule` chooses t* where the class named is the top one: `exact` solves eq:t_star, `one-step` evaluates it once
    at t = 1 as if it were a closed form, a number is taken as it is (`mifpe(T=...)` fixes it in every scenario).
    Elsewhere t* = max(1, `lam` Delta/(z_1 - z_y)) (eq:increase_t_star), lambda by default that of the dtype
    computed in. Half logits are computed in float32. Weights are right to about 1e-7 in float32 for every gap.
    """

    t_rule: str | float = "exact"
    lam: float | None = None
    name: ClassVar[str] = "tmifpe"

    def __post_init__(self) -> None:
        object.__setattr__(self, "t_rule", _checked(self.name, self.t_rule))
        if self.lam is not None:
            object.__setattr__(self, "lam", real_number(f"lam of {self.name}", self.lam, above=0))

    def __call__(self, logits: Tensor, labels: Tensor, targets: Tensor | None = None) -> Tensor:
        check_classes(self, logits, labels, targets)
        z = logits.to(compute_dtype(logits.dtype))
        return scaled_cross_entropy(z, aim_of(labels, targets), self.temperature(z.dtype), targets is not None)

    def temperature(self, dtype: torch.dtype) -> Temperature:
        """How t* is chosen for logits of a dtype."""
        return Temperature(self.t_rule, lam_of(dtype) if self.lam is None else self.lam)

    def reference(self, logits: Tensor, labels: Tensor) -> ReferenceGradient:
        return own_reference(self, logits, labels)


def _checked(owner: str, t_rule: object) -> str | float:
    """`exact`, `one-step` or a number above 0."""
    if isinstance(t_rule, str):
        if t_rule not in ("exact", "one-step"):
            raise InputError(f"t_rule of {owner} must be exact, one-step or a number, got {shown(t_rule)}")
        return t_rule
    return real_number(f"t_rule of {owner}", t_rule, above=0)
