"""How far a gradient in some precision is from the exact one: per example, and summed up."""

from __future__ import annotations

__all__ = ["Finding", "GradientErrors", "Quantiles", "Side", "compare_gradients", "summarise"]

import dataclasses
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tmifpe.core.numerics import row_norm

Flags = NDArray[np.bool_]
Reals = NDArray[np.float64]


@dataclass(frozen=True)
class GradientErrors:
    """One gradient per example against the exact one. Arrays (n,); an error is NaN where it has no meaning: the
    gradient is not finite, or the exact one is 0 and this one is not."""

    zero: Flags
    """Every entry is exactly 0, although the exact gradient is not."""
    flat: Flags
    """The exact gradient is itself 0: nothing that arithmetic could lose."""
    nonfinite: Flags
    """NaN or infinite, or made from logits that are."""
    error: Reals
    """|g - g_exact| / |g_exact|, Euclidean; 1 for a zero gradient."""
    direction: Reals
    """Distance of the unit vectors, 0 to 2; 1 for a zero gradient, which points nowhere."""
    signs: Reals
    """Share of the entries whose sign (-, 0, +) differs: the pixels that an Linf attack moves wrongly."""

    @staticmethod
    def concat(parts: list[GradientErrors]) -> GradientErrors:
        names = [field.name for field in dataclasses.fields(GradientErrors)]
        return GradientErrors(**{name: np.concatenate([getattr(part, name) for part in parts]) for name in names})


@dataclass(frozen=True)
class Quantiles:
    """Of an error over the examples; None where there is no example to measure."""

    median: float | None
    p90: float | None
    p99: float | None
    max: float | None

    @staticmethod
    def of(values: Reals) -> Quantiles:
        known = values[np.isfinite(values)]
        if not len(known):
            return Quantiles(None, None, None, None)
        return Quantiles(*(float(q) for q in np.quantile(known, [0.5, 0.9, 0.99, 1.0])))


@dataclass(frozen=True)
class Side:
    """One of the two gradients, over the correctly classified examples: shares in [0, 1] and quantiles of errors."""

    zero: float
    flat: float
    nonfinite: float
    error: Quantiles
    direction: Quantiles


@dataclass(frozen=True)
class Finding:
    """What one loss loses in one precision."""

    loss: str
    precision: str
    label_lost: float
    """Share of examples whose gradient with respect to the label's own logit is exactly 0, though it is not."""
    sign_disagreement: float
    """Mean share of pixels at which the input gradient has another sign than in float64."""
    logits: Side
    input: Side

    @property
    def sound(self) -> bool:
        """Every correctly classified example has a finite gradient that still knows its label."""
        gone = (self.label_lost, *(getattr(side, kind) for side in (self.logits, self.input) for kind in _GONE))
        return not any(gone)


_GONE = ("zero", "nonfinite")


def compare_gradients(
    got: Tensor, truth: Tensor, scale: Tensor, usable: Tensor, vanished: Tensor | None = None
) -> GradientErrors:
    """`got` (n, ...), of any dtype, against scale * truth in float64: (n,) and (n, ...).

    The scale divides `got` instead of multiplying the truth: where e^-Delta underflows even float64, a gradient that
    is exactly 0 is still off by 100 %, and the truth's direction is still known. Where the truth itself has
    `vanished` (n,), a zero gradient counts as lost, not as right, and any other has no error that could be told.
    """
    g = got.detach().to(truth.device).to(torch.float64).flatten(1)
    t = truth.flatten(1)
    finite = torch.isfinite(g).all(dim=1) & usable.to(truth.device)
    none, blank = (g == 0).all(dim=1), (t == 0).all(dim=1)
    no_truth = blank if vanished is None else blank & ~vanished.to(truth.device)
    g = torch.where(g == 0, 0.0, g / scale[:, None])
    error = row_norm(g - t) / row_norm(t)
    lost = none & blank & ~no_truth
    error = torch.where(none & blank, lost.to(error.dtype), error)
    known = finite & (none | ~blank)
    distance = torch.where(lost, 1.0, row_norm(_unit(g) - _unit(t)))
    signs = torch.where(lost, 1.0, (torch.sign(g) != torch.sign(t)).to(torch.float64).mean(dim=1))
    return GradientErrors(
        zero=(none & ~no_truth & finite).cpu().numpy(),
        flat=no_truth.cpu().numpy(),
        nonfinite=(~finite).cpu().numpy(),
        error=torch.where(known, error, torch.nan).cpu().numpy(),
        direction=torch.where(known, distance, torch.nan).cpu().numpy(),
        signs=signs.cpu().numpy(),
    )


def summarise(errors: GradientErrors, rows: Flags) -> Side:
    """Shares and quantiles over the examples chosen by `rows`."""
    return Side(
        zero=float(errors.zero[rows].mean()),
        flat=float(errors.flat[rows].mean()),
        nonfinite=float(errors.nonfinite[rows].mean()),
        error=Quantiles.of(errors.error[rows]),
        direction=Quantiles.of(errors.direction[rows]),
    )


def _unit(x: Tensor) -> Tensor:
    size = row_norm(x)[:, None]
    return torch.where(size > 0, x / size, 0.0)
