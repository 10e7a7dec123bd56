"""The probability margin, in arithmetic that neither saturates nor cancels."""

from __future__ import annotations

__all__ = ["PM"]

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from tmifpe.core.numerics import attach_gradient, compute_dtype, exp_or_zero, is_usable, rival
from tmifpe.losses.loss import Loss, aim_of, check_classes
from tmifpe.losses.reference import ReferenceGradient, own_reference


@dataclass(frozen=True)
class PM(Loss):
    """max_{i != y} p_i - p_y with p = softmax(z); targeted p_t - max_{i != t} p_i. Tied rivals share the gradient.

    With e_i = exp(z_i - z_r) of the rival r, E their sum over i != y, d = z_y - z_r, A = e^min(d, 0), B = e^-max(d, 0):
    the value is (B - A)/(A + B E), and its gradient has the direction of e_i (A - B) + [i = r] (A + B E) for i != y and
    -A (1 + E) for y. The factor left out, B/(A + B E)^2, falls like e^-d: a softmax in float32 loses such a gradient
    once d exceeds 17. Published code takes that softmax, and a mean over the batch.
    """

    name: ClassVar[str] = "pm"

    def __call__(self, logits: Tensor, labels: Tensor, targets: Tensor | None = None) -> Tensor:
        check_classes(self, logits, labels, targets)
        aim = aim_of(labels, targets)[:, None]
        z = logits.to(compute_dtype(logits.dtype))
        with torch.no_grad():
            usable = is_usable(z)
            others = z.scatter(1, aim, -torch.inf)
            top = rival(z, aim[:, 0])[:, None]
            # One finite logit: every rival is -inf and weighs nothing; any finite shift will do.
            e = exp_or_zero(others - torch.where(top > -torch.inf, top, 0.0))
            total = e.sum(dim=1, keepdim=True)
            lead = z.gather(1, aim) - top
            own, other = torch.exp(lead.clamp(max=0.0)), torch.exp(-lead.clamp(min=0.0))
            ahead = torch.sign(lead) * -torch.expm1(-lead.abs())  # own - other, exact near 0
            share = (others == top).to(z.dtype).scatter(1, aim, 0.0)
            share = share / share.sum(dim=1, keepdim=True).clamp(min=1.0)
            scale = own + other * total
            weights = (e * ahead + share * scale).scatter(1, aim, -own * (1.0 + total))
            weights = torch.where(usable[:, None], weights, 0.0)
            value = torch.where(usable, (-ahead / scale)[:, 0], 0.0)
        return attach_gradient(z, value, weights) if targets is None else attach_gradient(z, -value, -weights)

    def reference(self, logits: Tensor, labels: Tensor) -> ReferenceGradient:
        return own_reference(self, logits, labels)
