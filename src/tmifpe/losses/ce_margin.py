"""Cross-entropy in its margin form: the same loss on the same logits, without the cancellation in 1 - p_y."""

from __future__ import annotations

__all__ = ["CEMargin"]

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional

from tmifpe.core.numerics import attach_gradient, compute_dtype, exp_or_zero, is_usable, rival
from tmifpe.losses.loss import Loss, aim_of, check_classes
from tmifpe.losses.reference import ReferenceGradient, cross_entropy_reference


@dataclass(frozen=True)
class CEMargin(Loss):
    """CE(z, y) = softplus(x), x = logsumexp_{i != y} z_i - z_y, with gradient sigmoid(x) (softmax_{i != y} - e_y).

    The control that the paper lacks: no scaling, yet right to the last digits until sigmoid(x) itself underflows
    (Delta about 104 in float32, where plain `ce` has lost its label at 16.64). If a scaled loss does better than
    this one, temperature is the reason and not floating point.
    """

    name: ClassVar[str] = "ce-margin"

    def __call__(self, logits: Tensor, labels: Tensor, targets: Tensor | None = None) -> Tensor:
        check_classes(self, logits, labels, targets)
        aim = aim_of(labels, targets)[:, None]
        z = logits.to(compute_dtype(logits.dtype))
        with torch.no_grad():
            usable = is_usable(z)
            top = rival(z, aim[:, 0])[:, None]
            # One finite logit: every rival is -inf and weighs nothing; any finite shift will do.
            shift = torch.where(top > -torch.inf, top, 0.0)
            e = exp_or_zero(z - shift).scatter(1, aim, 0.0)
            total = e.sum(dim=1, keepdim=True)
            x = (shift - z.gather(1, aim)) + torch.log(total)
            # sigmoid(x) as a quotient: torch's own is 0 from x = -89 on, where e^-x overflows.
            pull = torch.exp(x.clamp(max=0.0)) / (1.0 + torch.exp(-x.abs()))
            weights = (e * (pull / total.clamp(min=1.0))).scatter(1, aim, -pull)  # total >= 1 unless it is 0
            weights = torch.where(usable[:, None], weights, 0.0)
            # The default threshold of 20 replaces softplus by the identity, wrong by 2e-9.
            value = torch.where(usable, functional.softplus(x[:, 0], threshold=40.0), 0.0)
        return attach_gradient(z, value, weights) if targets is None else attach_gradient(z, -value, -weights)

    def reference(self, logits: Tensor, labels: Tensor) -> ReferenceGradient:
        return cross_entropy_reference(logits, labels)
