"""Robust accuracy against the radius, with what is proved below it."""

from __future__ import annotations

__all__ = ["check_figure", "draw_radius_curves", "save_radius_curves"]

import importlib.util
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from tmifpe.core.errors import InputError, MissingExtra, shorten
from tmifpe.core.shown.palette import COLOURS
from tmifpe.evaluation.curve import Curve

if TYPE_CHECKING:
    from matplotlib.axes import Axes

ENDINGS = (".png", ".svg", ".pdf")
_DASHES = ("-", "--", ":", "-.")


def check_figure(path: str | Path) -> None:
    """`InputError` or `MissingExtra` before the work instead of after it."""
    if Path(path).suffix.lower() not in ENDINGS:
        raise InputError(f"a figure is a {', '.join(ENDINGS[:-1])} or {ENDINGS[-1]} file, not {str(path)!r}")
    if importlib.util.find_spec("matplotlib") is None:
        raise MissingExtra("figures", "plots")


def save_radius_curves(curves: Mapping[str, Curve], path: str | Path, title: str = "") -> Path:
    """The curves of several models in one figure; returns the path."""
    check_figure(path)
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4.5), dpi=150, layout="constrained")
    FigureCanvasAgg(figure)
    draw_radius_curves(figure.add_subplot(), curves)
    if title:
        figure.suptitle(_plain(title), fontsize=12)
    target = Path(path).expanduser()
    target.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(target)
    return target


def draw_radius_curves(axes: Axes, curves: Mapping[str, Curve]) -> None:
    """One colour per model: a line for what the attack left, shading down to what is proved."""
    for number, (name, curve) in enumerate(curves.items()):
        colour, dashes = COLOURS[number % len(COLOURS)], _DASHES[number // len(COLOURS) % len(_DASHES)]
        points = curve.points
        eps = np.array([one.eps for one in points])
        attacked = np.array([100 * one.robust_accuracy for one in points])
        label = _plain(shorten(name, 40))
        axes.step(eps, attacked, where="post", color=colour, linestyle=dashes, label=f"{label}: attacked")
        proved = [one.certified_accuracy for one in points if one.certified_accuracy is not None]
        if len(proved) == len(points):
            low = 100 * np.array(proved)
            axes.step(eps, low, where="pre", color=colour, linestyle=":", label=f"{label}: certified")
            axes.fill_between(eps, low, attacked, color=colour, alpha=0.12, linewidth=0)
    norms = sorted({curve.result.spec.threat.norm for curve in curves.values()})
    axes.set_xlabel(f"eps ({', '.join(norms)})")
    axes.set_ylabel("robust accuracy, %")
    axes.set_ylim(0, 100)
    axes.set_xlim(0, max(curve.to for curve in curves.values()))
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, fontsize=9)


def _plain(text: str) -> str:
    """matplotlib reads dollars as formulas."""
    return text.replace("$", r"\$")
