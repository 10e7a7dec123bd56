"""T-MIFPE literally as printed, so that anyone can measure what the arithmetic costs."""

from __future__ import annotations

__all__ = ["TMIFPENaive"]

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional

from tmifpe.core.numerics import compute_dtype, is_usable, safe_gap
from tmifpe.losses.loss import aim_of, check_classes, keep_usable
from tmifpe.losses.reference import ReferenceGradient, gradient
from tmifpe.losses.scaled import chosen_t
from tmifpe.losses.tmifpe import TMIFPE
from tmifpe.theory.formats import lam_of


@dataclass(frozen=True)
class TMIFPENaive(TMIFPE):
    """F.cross_entropy(t* z/Delta, y) (eq15, eq16), in the dtype of the logits, by autograd with t* and Delta detached.

    Options and t* are those of `tmifpe`. The gradient carries the factor c = t*/Delta and errs by about u t* |z|/Delta.
    Where the printed formula is not a number (an exact tie, an overflow) the row has value and gradient 0.
    """

    name: ClassVar[str] = "tmifpe-naive"

    def __call__(self, logits: Tensor, labels: Tensor, targets: Tensor | None = None) -> Tensor:
        check_classes(self, logits, labels, targets)
        aim = aim_of(labels, targets)
        with torch.no_grad():
            z = logits.to(compute_dtype(logits.dtype))
            t = chosen_t(z, aim, self.temperature(logits.dtype)).to(logits.dtype)[:, None]
            first, second = torch.topk(logits, 2, dim=1).values.split(1, dim=1)
            gap = first - second
            usable = is_usable(t * logits / gap)
        z, _ = keep_usable(logits)
        scaled = t * z.masked_fill(~usable[:, None], 0.0) / torch.where(usable[:, None], gap, 1.0)
        value = functional.cross_entropy(scaled, aim, reduction="none").masked_fill(~usable, 0.0)
        return value if targets is None else -value

    def reference(self, logits: Tensor, labels: Tensor) -> ReferenceGradient:
        """c = t*/Delta times the weights of the shifted loss, which carries no scale."""
        z = logits.detach().to(torch.float64)
        lam = lam_of(torch.float32) if self.lam is None else self.lam
        top = torch.topk(z, 2, dim=1).values
        wide = TMIFPE(self.t_rule, lam)
        t = chosen_t(z, labels, wide.temperature(z.dtype))
        weights = gradient(wide, z, labels)
        return ReferenceGradient(weights, t / safe_gap(top[:, 0], top[:, 1]))
