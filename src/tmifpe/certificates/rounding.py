"""How far floating point may be from real arithmetic: Higham's bounds, for any order of summation.

A sum of k products, with or without fused operations and in any order, rounds each term at most k + 1 times. So the
computed value differs from the real one by at most gamma_{k+1} * sum |w||x|, where gamma_n = n u / (1 - n u) and u is
the unit roundoff of the dtype (Higham 2002, section 3.1). What may underflow is covered by the smallest normal number.
Convolutions by Winograd's or Fourier's method, and TF32, are not covered: they round more coarsely.
"""

from __future__ import annotations

__all__ = ["Rounding"]

from dataclasses import dataclass

import torch
from torch import Tensor

_MORE = 1 + 2.0**-20
"""The bounds are themselves computed in float64, whose rounding is far below this share of them."""


@dataclass(frozen=True)
class Rounding:
    """The arithmetic of a dtype.

    >>> Rounding(torch.float32).of(torch.tensor(1.0, dtype=torch.float64), terms=4) > 4 * 2.0**-24
    tensor(True)
    """

    dtype: torch.dtype

    def gamma(self, terms: int) -> float:
        """n u / (1 - n u); infinite where a sum has so many terms that nothing is certain."""
        nu = terms * torch.finfo(self.dtype).eps / 2
        return nu / (1 - nu) if nu < 0.5 else torch.inf

    def of(self, size: Tensor, terms: int) -> Tensor:
        """The most that a sum of `terms` terms, whose absolute values add up to `size`, may be off; infinite where it
        may overflow."""
        info = torch.finfo(self.dtype)
        off = size * (self.gamma(terms) * _MORE) + terms * info.tiny
        return off if self.dtype == torch.float64 else off.masked_fill(size > info.max / 4, torch.inf)
