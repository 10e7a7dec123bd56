"""Robust accuracy per loss and model, as bars with their intervals."""

from __future__ import annotations

__all__ = ["save_bars"]

from collections.abc import Mapping
from pathlib import Path

from tmifpe.core.errors import InputError, MissingExtra
from tmifpe.evaluation.compare import Comparison

# Okabe and Ito's palette: told apart by colour-blind readers too.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00")


def save_bars(results: Mapping[str, Comparison], path: str | Path, title: str) -> Path:
    """One group of bars per loss, one colour per model, whiskers for the 95 % interval; returns the path."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingExtra("figures", "plots") from error
    losses = list(next(iter(results.values())).results)
    figure = Figure(figsize=(8, 4), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    width = 0.8 / len(results)
    for k, (name, comparison) in enumerate(results.items()):
        runs = [comparison.results[loss][0] for loss in losses]
        heights = [100 * run.robust_accuracy for run in runs]
        below = [h - 100 * run.interval[0] for h, run in zip(heights, runs, strict=True)]
        above = [100 * run.interval[1] - h for h, run in zip(heights, runs, strict=True)]
        where = [i + (k - (len(results) - 1) / 2) * width for i in range(len(losses))]
        bars = axes.bar(where, heights, width * 0.92, yerr=[below, above], capsize=2, color=COLOURS[k], label=name)
        axes.bar_label(bars, fmt="%.1f", fontsize=8, label_type="center", color="white", fontweight="bold")
        axes.axhline(100 * comparison.clean_accuracy, color=COLOURS[k], linewidth=0.8, linestyle="--")
    axes.set_xticks(range(len(losses)), losses)
    axes.set_ylabel("robust accuracy, % (dashed: clean)")
    axes.set_ylim(0, 119)
    axes.set_yticks(range(0, 101, 20))
    axes.set_title(title)
    axes.legend(loc="upper right", ncols=len(results), frameon=False)
    axes.spines[["top", "right"]].set_visible(False)
    path = Path(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, dpi=150)
    except (OSError, ValueError) as error:
        raise InputError(f"cannot write the figure {path}: {error}") from error
    return path
