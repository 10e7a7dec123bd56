"""A result as a figure: where it is robust, and how soon the rest fell."""

from __future__ import annotations

__all__ = ["new_figure", "plain_text", "plot_result", "save_figure"]

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tmifpe.core.errors import InputError
from tmifpe.core.extras import import_extra
from tmifpe.core.shown.palette import COLOURS
from tmifpe.core.shown.sheet import fitted, visible
from tmifpe.core.stats import wilson

if TYPE_CHECKING:
    from tmifpe.run.result import Result

_CLASSES = 30


def new_figure(width: float, height: float) -> Any:
    """A figure of its own, not pyplot's: no global state, no window."""
    import_extra("matplotlib", "figures", "plots")
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), dpi=150, layout="constrained")


def save_figure(figure: Any, path: str | Path | None) -> Any:
    """The figure, also written to `path` if there is one."""
    if path is not None:
        try:
            figure.savefig(path)
        except (OSError, ValueError) as error:
            raise InputError(f"cannot write the figure {path}: {error}") from error
    return figure


def plain_text(text: str) -> str:
    """Text in which matplotlib finds no formula."""
    return visible(text).replace("$", r"\$")


def plot_result(result: Result) -> Any:
    """Robust accuracy of the weakest classes, and of all examples against the steps of the attack."""
    _ = result.robust_accuracy  # which an incomplete run does not have
    figure = new_figure(10, max(4.4, 1.7 + 0.14 * min(_CLASSES, len(result.per_class()))))
    left, right = figure.subplots(1, 2)
    _classes(left, result)
    _steps(right, result)
    names = f"{fitted(result.spec.model, 60)} on {fitted(result.spec.data, 50)}"
    figure.suptitle(f"{plain_text(names)}\n{plain_text(str(result))}", fontsize=9)
    return figure


def _classes(axes: Any, result: Result) -> None:
    found = sorted(result.per_class().items(), key=lambda one: one[1][2] / max(1, one[1][0]))[:_CLASSES]
    names = [plain_text(fitted(result.class_name(label), 28)) for label, _ in found]
    counts = np.array([numbers for _, numbers in found], dtype=float).reshape(-1, 3)
    clean, robust = 100 * counts[:, 1] / counts[:, 0], 100 * counts[:, 2] / counts[:, 0]
    ends = 100 * np.array([wilson(one[2], int(one[0])) for one in counts]).reshape(-1, 2)
    places = np.arange(len(found))
    axes.barh(places, clean, 0.8, color="#BBBBBB", label="clean")
    error = np.abs(np.stack([robust - ends[:, 0], ends[:, 1] - robust]))
    axes.barh(places, robust, 0.5, color=COLOURS[0], xerr=error, ecolor="black", label="robust, 95 % interval")
    axes.set_yticks(places, names, fontsize=7)
    axes.set_ylim(len(found) - 0.4, -0.6)  # the weakest on top
    axes.set_xlim(0, 100)
    axes.set_xlabel("accuracy, %")
    axes.set_title("by class, the weakest first", fontsize=10)
    axes.legend(fontsize=8, frameon=False, loc="upper center", bbox_to_anchor=(0.5, -0.14), ncols=2)


def _steps(axes: Any, result: Result) -> None:
    table = result.outcomes.take(result.outcomes.counted)
    ends = np.sort(table.steps_used[table.fooled])
    steps = np.unique(np.concatenate([[0], ends]))
    left = (int(table.correct.sum()) - np.searchsorted(ends, steps, side="right")) / max(1, len(table))
    axes.step(steps, 100 * left, where="post", color=COLOURS[1])
    axes.set_ylim(0, 100)
    axes.set_xlabel("steps of the attack, all stages counted")
    axes.set_ylabel("robust accuracy, %")
    axes.set_title("against steps", fontsize=10)
