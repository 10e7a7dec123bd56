"""Maximum pooling of images."""

from __future__ import annotations

__all__ = ["MaxPool"]

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from tmifpe.certificates.node import Lines, Range, dot, total
from tmifpe.certificates.rounding import Rounding

_OWN = Rounding(torch.float64)


@dataclass(frozen=True)
class MaxPool:
    """The largest value of each window of an image (C, H, W); what the padding adds is -inf.

    Below: the member with the largest lower end. Above: with k the member of the largest upper end and M the next
    largest upper end, max_i x_i <= max(x_k, M), which lies under its chord over [l_k, u_k]. Parallel lines: with k the
    member of the largest lower end, x_k below and x_k + max(0, M - l_k) above.
    """

    inputs: tuple[int, ...]
    before: tuple[int, ...]
    shape: tuple[int, ...]
    kernel: tuple[int, int]
    stride: tuple[int, int]
    padding: tuple[int, int]
    terms: int = 0

    def value(self, *inputs: Tensor) -> Tensor:
        return self._windows(inputs[0], -torch.inf).amax(dim=-1)

    def reach(self, ranges: Sequence[Range], model: Rounding) -> Range:  # noqa: ARG002
        (inner,) = ranges
        low, high = self.value(inner.low), self.value(inner.high)
        error = self._windows(inner.error, 0.0).amax(dim=-1)
        return Range(low, high, error, torch.maximum(low.abs(), high.abs()) + error)

    def undecided(self, inner: Range) -> Tensor:
        """Which values may be the largest of a window with other such values."""
        low, high = self._windows(inner.low, -torch.inf), self._windows(inner.high, -torch.inf)
        rivals = high > low.amax(dim=-1, keepdim=True)
        open_windows = rivals & (rivals.sum(dim=-1, keepdim=True) > 1)
        places = self._places(inner.low.device).expand(len(inner.low), *open_windows.shape[1:])
        # The padding is nobody's rival; its place is -1.
        hits = places.new_zeros(len(inner.low), inner.low[0].numel() + 1)
        hits.scatter_add_(1, (places + 1).flatten(1), open_windows.flatten(1).long())
        return hits[:, 1:].reshape(inner.low.shape) > 0

    def back(self, coefficients: Tensor, ranges: Sequence[Range], own: Range, parallel: bool) -> Lines:
        (inner,) = ranges
        low, high = self._windows(inner.low, -torch.inf), self._windows(inner.high, -torch.inf)
        places = self._places(low.device).expand_as(low)
        safest = low.argmax(dim=-1, keepdim=True)
        top = safest if parallel else high.argmax(dim=-1, keepdim=True)
        under, over = (places.gather(-1, which)[..., 0] for which in (safest, top))
        u, l = (values.gather(-1, top)[..., 0] for values in (high, low))
        rest = torch.maximum(high.scatter(-1, top, -torch.inf).amax(dim=-1), l)
        slope = torch.where(u > l, (u - rest) / torch.where(u > l, u - l, 1.0), 1.0).clamp(0.0, 1.0)
        slope = torch.ones_like(slope) if parallel else slope
        largest = torch.stack([u, l, rest]).abs().amax(dim=0)
        lift = torch.maximum(rest - slope * l, u - slope * u) + 4 * _OWN.of(3 * largest, 4)
        positive, negative = coefficients.clamp(min=0), coefficients.clamp(max=0)
        n, s = coefficients.shape[:2]
        part = coefficients.new_zeros(n, s, inner.low[0].numel())
        for weights, where in ((positive, under), (negative * slope[:, None], over)):
            part.scatter_add_(2, where.flatten(1)[:, None].expand(n, s, -1), weights.flatten(2))
        below = dot(negative, lift)
        above = dot(positive, lift) if parallel else below
        size = total(coefficients, own.size + 4 * largest)
        return Lines((part.reshape(n, s, *self.before),), below, above, size)

    def _windows(self, x: Tensor, fill: float) -> Tensor:
        """(n, C, H', W', members)"""
        (kh, kw), (sh, sw), (ph, pw) = self.kernel, self.stride, self.padding
        padded = F.pad(x, (pw, pw, ph, ph), value=fill)
        return padded.unfold(2, kh, sh).unfold(3, kw, sw).flatten(-2)

    def _places(self, device: torch.device) -> Tensor:
        """(1, C, H', W', members): where in the flat image each member is; -1 for padding."""
        numbers = torch.arange(torch.Size(self.before).numel(), device=device).reshape(1, *self.before)
        return self._windows(numbers.double(), -1.0).long()
