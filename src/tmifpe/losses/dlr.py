"""The difference-of-logits ratio of AutoAttack, untargeted and targeted."""

from __future__ import annotations

__all__ = ["DLR"]

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from tmifpe.core.numerics import attach_gradient, compute_dtype, is_usable, rival, safe_gap
from tmifpe.losses.loss import Loss, check_classes
from tmifpe.losses.reference import ReferenceGradient, own_reference


@dataclass(frozen=True)
class DLR(Loss):
    """-(z_y - max_{i != y} z_i)/(z_(1) - z_(3)); targeted -(z_y - z_t)/(z_(1) - (z_(3) + z_(4))/2).

    The gradient goes through the denominator too, as published, less the positive factor 1/(z_(1) - z_(3)), which turns
    no direction and overflows in half precision where logits lie close; equal logits share it evenly. In place of the
    published +1e-12, which vanishes beside large logits and distorts small ones, an exact tie of the denominator
    becomes the smallest gap there can be and is held constant, and an infinite one (logits of -inf) becomes 1:
    then the direction is that of `cw`. Where y is third, the untargeted ratio is the constant 1 and its gradient 0.
    """

    name: ClassVar[str] = "dlr"

    def min_classes(self, targeted: bool) -> int:
        return 4 if targeted else 3

    def __call__(self, logits: Tensor, labels: Tensor, targets: Tensor | None = None) -> Tensor:
        check_classes(self, logits, labels, targets)
        z = logits.to(compute_dtype(logits.dtype))
        with torch.no_grad():
            own = z.gather(1, labels[:, None])
            if targets is None:
                other = rival(z, labels)[:, None]
                toward = _share(z.scatter(1, labels[:, None], -torch.inf), other)
                ranks = (2,)
            else:
                other = z.gather(1, targets[:, None])
                toward = torch.zeros_like(z).scatter_(1, targets[:, None], 1.0)
                ranks = (2, 3)
            away = torch.zeros_like(z).scatter_(1, labels[:, None], 1.0)
            spread, slope = _spread(z, ranks)
            # Label and target both -inf: neither leads, and -inf - -inf must not be NaN.
            ratio = torch.where(other == own, 0.0, other - own) / spread
            # A label at -inf is lost for good: no change of the spread matters to an infinite ratio.
            pull = torch.where(torch.isfinite(ratio), ratio, 0.0) * slope
            weights = torch.nan_to_num(toward - away - pull)
            usable = is_usable(z)
            value = torch.where(usable, ratio[:, 0], 0.0)
            weights = torch.where(usable[:, None], weights, 0.0)
        return attach_gradient(z, value, weights)

    def reference(self, logits: Tensor, labels: Tensor) -> ReferenceGradient:
        return own_reference(self, logits, labels)


def _share(z: Tensor, value: Tensor) -> Tensor:
    """The gradient of an order statistic: 1 spread evenly over the classes that attain it."""
    hit = (z == value).to(z.dtype)
    return hit / hit.sum(dim=1, keepdim=True).clamp(min=1.0)


def _spread(z: Tensor, ranks: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    """z_(1) minus the mean of the logits of those ranks (0 is the top), never 0 or infinite, and its gradient."""
    ordered = torch.topk(z, ranks[-1] + 1, dim=1).values
    top = ordered[:, :1]
    low = ordered[:, ranks[0] :].mean(dim=1, keepdim=True)
    slope = _share(z, top) - sum(_share(z, ordered[:, k : k + 1]) for k in ranks) / len(ranks)
    bounded = low > -torch.inf
    # Where all of these logits tie, both shares are the same and the slope is 0: the gap put in is held constant.
    return torch.where(bounded, safe_gap(top, low), 1.0), torch.where(bounded, slope, 0.0)
