"""Robust accuracy against the radius, and the sizes of smallest perturbations: as tables and as figures."""

from __future__ import annotations

__all__ = [
    "curve_labels",
    "curve_sheet",
    "draw_curves",
    "legend_columns",
    "minimal_sheet",
    "plot_curves",
    "plot_minimal",
]

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from tmifpe.core.shown.palette import COLOURS
from tmifpe.core.shown.sheet import Sheet, fitted, percent
from tmifpe.run.shown.plot import new_figure, plain_text

if TYPE_CHECKING:
    from tmifpe.evaluation.curve import Curve
    from tmifpe.evaluation.minimal import Minimal

DASHES = ("-", "--", "-.", (0, (5, 1, 1, 1, 1, 1)), (0, (8, 3)))  # dots are for what is proved
_LONGEST = 60
_CHARACTERS = 92  # that a legend takes beside one another


def curve_sheet(curve: Curve) -> Sheet:
    """The radii that were asked for, or nine evenly spaced ones."""
    result = curve.result
    proved = result.spec.certify != "none"
    median = f"{curve.median:.4g}" if math.isfinite(curve.median) else f"beyond {curve.to:.4g}"
    rows = []
    for one in curve.stated or curve.points[:: len(curve.points) // 8]:
        low, high = map(percent, one.interval)
        row = (f"{one.eps:.6g}", percent(one.robust_accuracy), f"{low} to {high}")
        rows.append((*row, percent(one.certified_accuracy)) if proved else row)
    return Sheet(
        f"{result.spec.model} on {result.spec.data}: {result.spec.threat.norm} 0 to {curve.to:.6g}",
        ("eps", "robust %", "95 % interval", *(("certified %",) if proved else ())),
        tuple(rows),
        f"Half of the {result.n} examples are broken at {median}; mean accuracy over all radii "
        f"{percent(curve.area)} %. {curve.steps:.0f} steps per example, {result.seconds:.1f} s.",
    )


def minimal_sheet(found: Minimal) -> Sheet:
    """How many images were broken, and how far that took."""
    sizes = found.size.cpu().numpy()
    broken = sizes[np.isfinite(sizes)]
    rows = [
        ("images", str(len(sizes))),
        ("wrong to begin with", str(int((sizes == 0).sum()))),
        ("broken", str(len(broken))),
    ]
    if len(broken):
        rows.append(("sizes of these", f"{broken.min():.4g} to {broken.max():.4g}"))
    half = f"{found.median:.4g}" if math.isfinite(found.median) else "none: half of the images or more withstood"
    return Sheet("Smallest perturbations", (), (*rows, ("median size of all images", half)))


def legend_columns(labels: Sequence[str], widest: int, most: int = 4) -> int:
    """How many of these labels stand beside one another in a figure that takes so many characters.

    >>> legend_columns(["ce", "tmifpe"], 90), legend_columns(["x" * 60] * 9, 90)
    (2, 1)
    """
    return max(1, min(most, len(labels), widest // (8 + max(map(len, labels), default=1))))


def curve_labels(curves: Mapping[str, Curve]) -> list[str]:
    """What the lines are called, in the order in which they are drawn."""
    kinds = {name: ("attacked", "certified")[: 1 + (c.result.spec.certify != "none")] for name, c in curves.items()}
    return [f"{plain_text(fitted(name, _LONGEST))}: {kind}" for name, two in kinds.items() for kind in two]


def plot_curves(curves: Mapping[str, Curve], title: str = "") -> Any:
    """The curves of several models, with a legend below that covers none of them."""
    labels = curve_labels(curves)
    columns = legend_columns(labels, _CHARACTERS)
    figure = new_figure(7, 4 + 0.19 * math.ceil(len(labels) / columns))
    draw_curves(figure.add_subplot(), curves)
    figure.legend(loc="outside lower center", frameon=False, fontsize=8, ncols=columns)
    if title:
        figure.suptitle(plain_text(fitted(title, 80)), fontsize=11)
    return figure


def draw_curves(axes: Any, curves: Mapping[str, Curve]) -> None:
    """One colour per model: a line for what the attack left, shading down to what is proved."""
    labels = iter(curve_labels(curves))
    for number, curve in enumerate(curves.values()):
        colour, dashes = COLOURS[number % len(COLOURS)], DASHES[number // len(COLOURS) % len(DASHES)]
        points = curve.points
        eps = np.array([one.eps for one in points])
        attacked = np.array([100 * one.robust_accuracy for one in points])
        axes.step(eps, attacked, where="post", color=colour, linestyle=dashes, label=next(labels))
        if curve.result.spec.certify != "none":
            low = 100 * np.array([one.certified_accuracy for one in points], dtype=float)
            axes.step(eps, low, where="pre", color=colour, linestyle=":", linewidth=1, label=next(labels))
            axes.fill_between(eps, low, attacked, color=colour, alpha=0.12, linewidth=0)
    norms = sorted({curve.result.spec.threat.norm for curve in curves.values()})
    axes.set_xlabel(f"eps ({', '.join(norms)})")
    axes.set_ylabel("robust accuracy, %")
    axes.set_ylim(0, 100)
    axes.set_xlim(0, max(curve.to for curve in curves.values()))
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)


def plot_minimal(found: Minimal) -> Any:
    """How many images are not broken yet, against the size of the perturbation."""
    sizes = np.sort(found.size.cpu().numpy())
    broken = sizes[np.isfinite(sizes)]
    steps, last = np.unique(np.concatenate([[0.0], broken])), float(broken.max(initial=0.0)) or 1.0
    left = 100 * (1 - np.searchsorted(broken, steps, side="right") / max(1, len(sizes)))
    figure = new_figure(7, 4)
    axes = figure.add_subplot()
    axes.step([*steps, 1.05 * last], [*left, left[-1]], where="post", color=COLOURS[0])
    axes.set_ylim(0, 100)
    axes.set_xlim(0, 1.05 * last)
    axes.set_xlabel("size of the perturbation")
    axes.set_ylabel("images that are not broken, %")
    axes.set_title(f"{len(broken)} of {len(sizes)} images broken", fontsize=10)
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    return figure
