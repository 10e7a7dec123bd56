"""Robust accuracy per loss and model, as bars with their intervals."""

from __future__ import annotations

__all__ = ["save_bars"]

import math
import re
import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tmifpe.core.errors import InputError, MissingExtra
from tmifpe.core.shown.palette import COLOURS
from tmifpe.core.shown.sheet import fitted
from tmifpe.evaluation.compare import Comparison
from tmifpe.evaluation.curve import Curve
from tmifpe.evaluation.shown_radii import curve_labels, draw_curves, legend_columns
from tmifpe.run.shown.plot import plain_text

HATCHES = ("", "///", "...", "xx", "++")  # beyond six losses, these tell them apart

_BAR, _GAP = 0.2, 0.25  # inches
_CURVES = 3.5  # inches
_KEY = 0.19  # inches per line of a legend
_CHARACTERS = 105  # that a legend takes beside one another
_TALLEST = 400  # inches, beyond which matplotlib's canvas cannot grow


def save_bars(
    results: Mapping[str, Comparison], path: str | Path, title: str, curves: Mapping[str, Curve] | None = None
) -> Path:
    """One group of bars per model, one colour per loss, whiskers for the 95 % interval; returns the path.

    Below them, if there are some, curves over all radii.
    """
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingExtra("figures", "plots") from error
    losses = list(next(iter(results.values())).results)
    comparisons = list(results.values())
    names = [*(plain_text(fitted(loss, 70)) for loss in losses), "clean"]
    across = legend_columns(names, _CHARACTERS, 7)
    height = len(results) * (max(len(losses), 2) * _BAR + _GAP) + 1.3 + _KEY * math.ceil(len(names) / across)
    keys = curve_labels(curves or {})
    columns = legend_columns(keys, _CHARACTERS)
    more = _CURVES + _KEY * math.ceil(len(keys) / columns) if curves else 0.0
    figure = Figure(figsize=(8, min(height + more, _TALLEST)), dpi=150, layout="constrained")
    FigureCanvasAgg(figure)
    panel: Any = figure
    if curves:  # each part has its legend, which may be wider than the axes
        parts: Any = figure.subfigures(2, 1, height_ratios=[height, more])
        panel, lower = parts
        draw_curves(lower.add_subplot(), curves)
        lower.legend(loc="outside lower center", ncols=columns, frameon=False, fontsize=8)
    axes = panel.add_subplot()
    width = 0.85 / len(losses)
    for k, loss in enumerate(losses):
        runs = [comparison.results[loss][0] for comparison in comparisons]
        lengths = [100 * run.robust_accuracy for run in runs]
        below = [max(0.0, x - 100 * run.interval[0]) for x, run in zip(lengths, runs, strict=True)]
        above = [max(0.0, 100 * run.interval[1] - x) for x, run in zip(lengths, runs, strict=True)]
        where = [i + (k - (len(losses) - 1) / 2) * width for i in range(len(runs))]
        colour, hatch = COLOURS[k % len(COLOURS)], HATCHES[k // len(COLOURS) % len(HATCHES)]
        axes.barh(
            where, lengths, width * 0.9, xerr=[below, above], capsize=2, color=colour, hatch=hatch, label=names[k]
        )
        for y, length in zip(where, lengths, strict=True):  # in a column of their own, which nothing crosses
            axes.text(102, y, f"{length:.1f}", va="center", fontsize=8)
    clean = [100 * comparison.clean_accuracy for comparison in comparisons]
    rows = range(len(results))
    axes.vlines(
        clean, [i - 0.46 for i in rows], [i + 0.46 for i in rows], "black", "dashed", linewidth=1, label="clean"
    )
    axes.set_yticks(rows, [_lines(plain_text(fitted(name, 90))) for name in results])
    axes.set_ylim(len(results) - 0.45, -0.55)  # the first on top
    axes.set_xlim(0, 110)
    axes.set_xticks(range(0, 101, 20))
    axes.set_xlabel("robust accuracy, %")
    figure.suptitle(textwrap.fill(plain_text(title), 80), fontsize=12)
    panel.legend(loc="outside lower center", ncols=across, frameon=False, fontsize=9)
    axes.spines[["top", "right"]].set_visible(False)
    path = Path(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path)
    except (OSError, ValueError) as error:
        raise InputError(f"cannot write the figure {path}: {error}") from error
    return path


def _lines(name: str, most: int = 30) -> str:
    """A long name on several lines, broken after a slash, an underscore or the like, where it has one.

    >>> _lines("robustbench:cifar10/Linf/Wong2020Fast_and_more", 30).splitlines()
    ['robustbench:cifar10/Linf/', 'Wong2020Fast_and_more']
    """
    lines = [""]
    for piece in re.split(r"(?<=[\s/_:.-])", name):
        if lines[-1] and len(lines[-1] + piece) > most:
            lines.append("")
        lines[-1] += piece
    return "\n".join(textwrap.fill(line, most) for line in lines)
