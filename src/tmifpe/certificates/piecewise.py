"""ReLU and its kin: functions of one value that are linear between a few kinks."""

from __future__ import annotations

__all__ = ["Piecewise"]

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import combinations

import torch
from torch import Tensor

from tmifpe.certificates.node import Lines, Range, dot, total
from tmifpe.certificates.rounding import Rounding

_OWN = Rounding(torch.float64)


@dataclass(frozen=True)
class Piecewise:
    """node = function(input), value by value; continuous, and linear between neighbouring `kinks`.

    On [l, u] it lies between two lines. A line of any slope s is right with the intercept max (or min) of f(p) - s p
    over p = l, u and the kinks between, since f(x) - s x is linear from one to the next. Of the slopes through two of
    these points the one that leaves the smallest area is taken. For ReLU that is CROWN's choice (Zhang et al. 2018):
    above, the chord u (x - l) / (u - l); below, x if u > -l and 0 otherwise.
    """

    inputs: tuple[int, ...]
    shape: tuple[int, ...]
    function: Callable[[Tensor], Tensor]
    kinks: tuple[float, ...]
    steepest: float = 1.0
    """The largest absolute slope."""
    terms: int = 0
    """Roundings in the model's own computation of it: none for ReLU, one and that of the slope for leaky ReLU."""

    def value(self, *inputs: Tensor) -> Tensor:
        return self.function(inputs[0])

    def reach(self, ranges: Sequence[Range], model: Rounding) -> Range:
        (inner,) = ranges
        ends = torch.stack([self.function(point) for point in self._points(inner)])
        size = torch.maximum(ends.abs().amax(dim=0), self.steepest * inner.largest)
        low, high = ends.amin(dim=0), ends.amax(dim=0)
        # What is computed lies in the widened range too, and the function may be flat there: a dead ReLU.
        wider = Range(inner.low - inner.error, inner.high + inner.error, inner.error, inner.size)
        reached = torch.stack([self.function(point) for point in self._points(wider)])
        error = torch.minimum(self.steepest * inner.error, reached.amax(dim=0) - reached.amin(dim=0))
        if self.terms:
            wide = _OWN.of(size, 4)
            low, high, error = low - wide, high + wide, error * (1 + 2.0**-20) + model.of(size, self.terms)
        return Range(low, high, error, size + error)

    def undecided(self, inner: Range) -> Tensor:
        """Which values may lie on either side of a kink: for these a tighter range makes tighter lines."""
        kinks = [(inner.low < kink) & (inner.high > kink) for kink in self.kinks]
        return torch.stack(kinks).any(dim=0)

    def back(self, coefficients: Tensor, ranges: Sequence[Range], own: Range, parallel: bool) -> Lines:
        (inner,) = ranges
        (s, t), (steep, lift) = self._parallel(inner) if parallel else self._closest(inner)
        positive, negative = coefficients.clamp(min=0), coefficients.clamp(max=0)
        part = coefficients * s[:, None] if parallel else positive * s[:, None] + negative * steep[:, None]
        below = dot(positive, t) + dot(negative, lift)
        above = dot(positive, lift) + dot(negative, t) if parallel else below
        size = self.steepest * inner.largest + torch.maximum(t.abs(), lift.abs())
        return Lines((part,), below, above, total(coefficients, torch.maximum(size, own.size)))

    def _points(self, inner: Range) -> list[Tensor]:
        between = [torch.clamp(torch.full_like(inner.low, kink), inner.low, inner.high) for kink in self.kinks]
        return [inner.low, *between, inner.high]

    def _parallel(self, inner: Range) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
        """Slope and intercept of the lines below and above, both with the slope of the chord."""
        points = self._points(inner)
        slope, low, high = self._through(inner, points, 0, len(points) - 1)
        return (slope, low), (slope, high)

    def _closest(self, inner: Range) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
        """The same, each with the slope that leaves the smallest area to the function."""
        points = self._points(inner)
        middle = (inner.low + inner.high) / 2
        under, over = self._parallel(inner)
        for first, last in combinations(range(len(points)), 2):
            slope, low, high = self._through(inner, points, first, last)
            better = slope * middle + low > under[0] * middle + under[1]
            under = torch.where(better, slope, under[0]), torch.where(better, low, under[1])
            better = slope * middle + high < over[0] * middle + over[1]
            over = torch.where(better, slope, over[0]), torch.where(better, high, over[1])
        return under, over

    def _through(self, inner: Range, points: list[Tensor], first: int, last: int) -> tuple[Tensor, Tensor, Tensor]:
        """The slope through two of the points, and its intercepts below and above the function."""
        values = [self.function(point) for point in points]
        run, rise = points[last] - points[first], values[last] - values[first]
        slope = torch.where(run > 0, rise / torch.where(run > 0, run, 1.0), 0.0).clamp(-self.steepest, self.steepest)
        off = torch.stack([value - slope * point for point, value in zip(points, values, strict=True)])
        # Each is a difference of two numbers of about this size; outwards by what they may have lost.
        lost = 4 * _OWN.of(torch.stack(values).abs().amax(dim=0) + slope.abs() * inner.largest, 4)
        return slope, off.amin(dim=0) - lost, off.amax(dim=0) + lost
