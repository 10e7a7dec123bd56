"""g(t) and delta_sup(t) of one row of logits: the numbers, and how they are drawn."""

from __future__ import annotations

__all__ = ["Drawn", "Optimum", "curve_of", "draw", "figure", "plot_analysis"]

import math
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from tmifpe.core.errors import InputError, MissingExtra
from tmifpe.core.shown import palette
from tmifpe.theory.analyse import Analysis, t_of
from tmifpe.theory.coefficient import Row, delta_sup, g, row_of
from tmifpe.theory.formats import FORMATS
from tmifpe.theory.scenario import Scenario
from tmifpe.theory.solver import local_maxima

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_POINTS = 600
_ENDINGS = (".png", ".svg", ".pdf")


@dataclass(frozen=True)
class Optimum:
    """t* in one format, and what is reached there."""

    t_star: float
    g: float
    delta_sup: float


@dataclass(frozen=True)
class Drawn:
    """One panel: g on a grid of t, delta_sup = eps_max/g per format, t* per format, further local maxima."""

    title: str
    scenario: str
    t: tuple[float, ...]
    g: tuple[float, ...]
    delta_sup: dict[str, tuple[float, ...]]
    marks: dict[str, Optimum]
    other_maxima: tuple[tuple[float, float], ...]

    @property
    def peaks(self) -> bool:
        """g has a maximum, and t* is its place in every format (u_u and t_s); else g only increases."""
        return Scenario(self.scenario).top

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def curve_of(row: Row, title: str, formats: tuple[str, ...], printed: bool = False) -> Drawn:
    """The numbers of a panel; `printed` takes g as the paper prints it."""
    marks = {}
    for name in formats:
        t = t_of(row, FORMATS[name])
        value = float(g(row, t, printed))
        marks[name] = Optimum(float(t), value, float(delta_sup(value, FORMATS[name])))
    last = max(mark.t_star for mark in marks.values())
    if row.scenario.top:
        grid = torch.linspace(0, max(5.0, 2.5 * last), _POINTS + 1, dtype=torch.float64)[1:]
    else:
        grid = torch.logspace(-1, math.log10(max(10.0, 2.0 * last)), _POINTS, dtype=torch.float64)
    values = g(row, grid, printed)
    bounds = {name: tuple((FORMATS[name].eps_max / values).tolist()) for name in formats}
    found = [(t, height / row.delta) for t, height in local_maxima(row.d[1:])] if row.scenario.top else []
    return Drawn(
        title, str(row.scenario), tuple(grid.tolist()), tuple(values.tolist()), bounds, marks, tuple(found[1:])
    )


def figure(width: float, height: float, path: Path) -> Figure:
    """An empty figure of its own, for `path`: no global state of pyplot is touched, and a bad name is refused first."""
    if path.suffix.lower() not in _ENDINGS:
        raise InputError(f"a picture needs one of the endings {', '.join(_ENDINGS)}, got {path.name!r}")
    if not path.parent.is_dir():
        raise InputError(f"there is no folder {str(path.parent)!r} to write {path.name!r} to")
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingExtra("Plots", "plots") from error
    return Figure(figsize=(width, height), layout="constrained")


def draw(panel: Any, curve: Drawn) -> None:
    """g above and delta_sup (log) below, over the same t, with t* marked and the key at the side."""
    upper, lower = panel.subplots(2, 1, sharex=True, height_ratios=[1, 1.15])
    panel.suptitle(curve.title, fontsize=11)
    upper.plot(curve.t, curve.g, color="black", linewidth=1.6)
    upper.set_ylabel("$g(t)$")
    lower.set_ylabel(r"$\delta_{\mathrm{sup}}(t)$")
    lower.set_xlabel("$t$")
    lower.set_yscale("log")
    if not curve.peaks:
        lower.set_xscale("log")
        upper.set_yscale("log")
    lines = []
    for name, mark in curve.marks.items():
        colour, dashes = palette.FORMATS[name]
        label = f"{name}\n$t^*$ = {mark.t_star:.4g}\n$\\delta$ = {mark.delta_sup:.2e}"
        lines += lower.plot(curve.t, curve.delta_sup[name], color=colour, linestyle=dashes, linewidth=1.8, label=label)
        lower.plot([mark.t_star], [mark.delta_sup], "*", color=colour, markersize=11, markeredgecolor="black")
        upper.plot([mark.t_star], [mark.g], "*", color=colour, markersize=11, markeredgecolor="black", zorder=3)
    if curve.peaks:
        _mark_maximum(upper, curve)
    for axes in (upper, lower):
        for t in {mark.t_star for mark in curve.marks.values()}:
            axes.axvline(t, color="0.6", linestyle="--", linewidth=0.8, zorder=0)
        axes.grid(alpha=0.25, which="major")
    panel.legend(handles=lines, loc="outside right center", fontsize=8, frameon=False, labelspacing=1.2)


def _mark_maximum(axes: Any, curve: Drawn) -> None:
    mark = next(iter(curve.marks.values()))
    axes.plot([mark.t_star], [mark.g], "*", color="#D55E00", markersize=13, markeredgecolor="black", zorder=4)
    for t, value in curve.other_maxima:
        axes.plot([t], [value], "o", markerfacecolor="white", markeredgecolor="black", zorder=4)
    axes.set_ylim(0, 1.12 * max(curve.g))
    # The right upper corner is free: g falls beyond its maximum, which lies in the left half.
    text = f"$t^*$ = {mark.t_star:.6f}\n$g$ = {mark.g:.6f}"
    axes.text(0.97, 0.92, text, transform=axes.transAxes, ha="right", va="top", fontsize=9)


def plot_analysis(found: Analysis, path: Path) -> None:
    """Draw g and delta_sup of an analysed row to a .png, .svg or .pdf file."""
    aim = found.label if found.target is None else found.target
    row = row_of(torch.tensor(found.logits, dtype=torch.float64), aim, found.target is not None)
    named = f"label {found.label}" if found.target is None else f"label {found.label}, target {found.target}"
    formats = tuple(dict.fromkeys(("fp16", "bf16", "fp32", "fp64", found.precision)))
    fig = figure(7.5, 5.5, path)
    draw(fig.subfigures(1, 1), curve_of(row, f"{found.scenario}, {named}, Δ = {found.delta:.4g}", formats))
    fig.savefig(path, dpi=150)
