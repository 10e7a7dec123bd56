"""Robust accuracy at every radius, from one run that looks for the smallest perturbation of every example."""

from __future__ import annotations

__all__ = ["Curve", "curve"]

import csv
import io
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tmifpe.attacks.radius.bracket import Bracket
from tmifpe.core.errors import InputError, shorten
from tmifpe.core.extras import import_extra
from tmifpe.core.numbers import read_number, real_number
from tmifpe.core.shown.formats import sheet_html, sheet_latex, sheet_markdown
from tmifpe.core.types import Classifier, Model, Threat
from tmifpe.evaluation.evaluate import evaluate
from tmifpe.evaluation.shown_radii import curve_sheet, plot_curves
from tmifpe.run.request import EvaluateOptions
from tmifpe.run.result import Radius, Result
from tmifpe.run.shown.plot import save_figure

if TYPE_CHECKING:
    from typing_extensions import Unpack

POINTS = 256
"""Intervals between the points of the curve."""
FINEST = 2**20
"""The smallest resolution is this share of the largest radius: below it, float32 images cannot tell radii apart."""


@dataclass(frozen=True)
class Curve:
    """The result of one run of `bracket`, read at every radius from 0 to the threat's eps."""

    result: Result
    at: tuple[float, ...] = ()
    """The radii that were asked for."""

    @property
    def to(self) -> float:
        """The largest radius."""
        return self.result.spec.threat.eps

    def point(self, eps: float) -> Radius:
        """What stands at this radius, read off the run.

        >>> import tmifpe
        >>> model, data = tmifpe.load_model("digits-robust"), tmifpe.load_data("digits", limit=8)
        >>> line = tmifpe.curve(model, data, tmifpe.Threat("linf", 0.3), resolution=0.01)
        >>> line.point(0.0).robust_accuracy == line.result.clean_accuracy
        True
        """
        eps = read_number("eps", eps)
        if not 0 <= eps <= self.to:
            raise InputError(f"the curve goes from 0 to {self.to:g}; it says nothing of {eps:g}")
        return self.result.standing(eps)

    @property
    def points(self) -> tuple[Radius, ...]:
        """Evenly spaced from 0 to the largest radius."""
        return tuple(self.result.standing(float(eps)) for eps in np.linspace(0, self.to, POINTS + 1))

    @property
    def stated(self) -> tuple[Radius, ...]:
        """The points at the radii that were asked for."""
        return tuple(self.point(eps) for eps in self.at)

    @property
    def brackets(self) -> NDArray[np.float64]:
        """(n, 2), in the order of evaluation: the largest radius that withstood, the smallest that is broken (infinite
        if none is). A misclassified image has 0 and 0."""
        table = self.result.outcomes
        return np.stack([table.withstood, table.broken_at], axis=1)

    @property
    def area(self) -> float:
        """The mean robust accuracy over all radii from 0 to the largest: exact, not from the points."""
        sizes = self._sizes
        return float(np.minimum(sizes, self.to).mean() / self.to) if len(sizes) and self.to else self._clean

    @property
    def median(self) -> float:
        """The radius at which half of the examples are broken; infinite if that is beyond the largest radius."""
        sizes = np.sort(self._sizes)
        return float(sizes[(len(sizes) - 1) // 2]) if len(sizes) else math.nan

    @property
    def steps(self) -> float:
        """Steps per example, on average."""
        table = self.result.outcomes
        return float(table.steps_used[table.counted].mean()) if self.result.n else 0.0

    @property
    def _sizes(self) -> NDArray[np.float64]:
        return self.result.outcomes.broken_at[self.result.outcomes.counted]

    @property
    def _clean(self) -> float:
        return self.result.clean_accuracy

    def __repr__(self) -> str:
        spec = self.result.spec
        told = ", ".join(f"{one.robust_accuracy:.2%} at {one.eps:.6g}" for one in self.stated)
        median = f"{self.median:.4g}" if math.isfinite(self.median) else f"beyond {self.to:.4g}"
        what = shorten(f"{spec.model} on {spec.data}", 200)
        return (
            f"<Curve of {what}, {spec.threat.norm} 0 to {self.to:.6g}: median {median}, "
            f"area {self.area:.4f}, clean {self._clean:.2%}, n = {self.result.n}{f'; {told}' if told else ''}>"
        )

    def to_json(self) -> dict[str, Any]:
        """The result with the curve and, for every example, its bracket. What is infinite is null."""
        table = self.result.outcomes
        rows = zip(table.index.tolist(), *(table.arrays[name].tolist() for name in _BRACKET), strict=True)
        return self.result.to_json() | {
            "to": self.to,
            "curve": [one.to_json() for one in self.points],
            "at": [one.to_json() for one in self.stated],
            "area": self.area,
            "median": _finite(self.median),
            "steps_per_example": self.steps,
            "brackets": [
                {"index": index} | {name: _finite(value) for name, value in zip(_BRACKET, values, strict=True)}
                for index, *values in rows
            ],
        }

    def to_markdown(self) -> str:
        """The radii that were asked for, or nine evenly spaced ones, in Markdown."""
        return sheet_markdown(curve_sheet(self))

    def to_latex(self) -> str:
        """The same in LaTeX: a `tabular`, without packages."""
        return sheet_latex(curve_sheet(self))

    def _repr_html_(self) -> str:
        return sheet_html(curve_sheet(self))

    def plot(self, path: str | Path | None = None) -> Any:
        """Robust accuracy against the radius, with what is proved below it. Returns a matplotlib figure (extra
        `plots`).

        It is also written to `path` if one is given.
        """
        return save_figure(plot_curves({self.result.spec.model: self}), path)

    def to_pandas(self) -> Any:
        """One row per point as a DataFrame (extra `pandas`), with the columns of `to_csv`.

        `result.to_pandas()` has a row per example, with its bracket.
        """
        pandas: Any = import_extra("pandas", "tables of curves", "pandas")
        head, *rows = self._table()
        return pandas.DataFrame(rows, columns=head)

    def to_csv(self) -> str:
        """The points as a table with the columns eps, robust_accuracy, low, high and, if known, certified_accuracy."""
        lines = io.StringIO()
        csv.writer(lines, lineterminator="\n").writerows(self._table())
        return lines.getvalue()

    def _table(self) -> Iterator[list[Any]]:
        proved = self.result.spec.certify != "none"
        yield ["eps", "robust_accuracy", "low", "high", *(["certified_accuracy"] if proved else [])]
        for one in self.points:
            yield [one.eps, one.robust_accuracy, *one.interval, *([one.certified_accuracy] if proved else [])]


_BRACKET = ("withstood", "broken_at", "certified_to")


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def curve(
    model: Model | Classifier,
    data: Any,
    threat: Threat,
    *,
    resolution: float | str | None = None,
    at: Sequence[float | str] = (),
    **options: Unpack[EvaluateOptions],
) -> Curve:
    """Robust accuracy at every radius up to the threat's eps, from one run.

    resolution: how narrow the bracket of every example is to be, in the units of eps; eps / 256 by default.
    at: radii to state.
    options: those of `evaluate`.

    >>> import tmifpe
    >>> model, data = tmifpe.load_model("digits-robust"), tmifpe.load_data("digits", limit=8)
    >>> line = tmifpe.curve(model, data, tmifpe.Threat("linf", 0.3), resolution=0.01, at=[0.1])
    >>> line.stated[0].eps, line.points[0].robust_accuracy >= line.points[-1].robust_accuracy
    (0.1, True)
    """
    if not isinstance(threat, Threat):
        raise InputError(f"the threat must be a Threat, e.g. Threat('linf', 16/255), got {type(threat).__name__}")
    if threat.eps <= 0:
        raise InputError("a curve needs a largest radius above 0")
    if options.get("radii"):
        raise InputError("a curve has every radius; give `at` for those to state, and leave out `radii`")
    if options.get("mode", "verdict") != "verdict":
        raise InputError("a curve looks for the smallest perturbation; leave out `mode`")
    share = Bracket().resolution
    if resolution is not None:
        wanted = read_number("resolution", resolution)
        share = real_number("resolution", wanted, least=threat.eps / FINEST, most=threat.eps) / threat.eps
    wanted_at = tuple(read_number("at", eps) for eps in at)
    for eps in wanted_at:
        if not 0 <= eps <= threat.eps:
            raise InputError(f"the curve goes from 0 to {threat.eps:g}, so that `at` cannot be {eps:g}")
    result = evaluate(model, data, threat, Bracket(resolution=share), **options)
    return Curve(result, wanted_at)
