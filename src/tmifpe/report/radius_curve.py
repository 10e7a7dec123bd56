"""Robust accuracy against the radius, with what is proved below it, in a file."""

from __future__ import annotations

__all__ = ["check_figure", "save_radius_curves"]

import importlib.util
from collections.abc import Mapping
from pathlib import Path

from tmifpe.core.errors import InputError, MissingExtra
from tmifpe.evaluation.curve import Curve
from tmifpe.evaluation.shown_radii import plot_curves
from tmifpe.run.shown.plot import save_figure

ENDINGS = (".png", ".svg", ".pdf")


def check_figure(path: str | Path) -> None:
    """`InputError` or `MissingExtra` before the work instead of after it."""
    if Path(path).suffix.lower() not in ENDINGS:
        raise InputError(f"a figure is a {', '.join(ENDINGS[:-1])} or {ENDINGS[-1]} file, not {str(path)!r}")
    if importlib.util.find_spec("matplotlib") is None:
        raise MissingExtra("figures", "plots")


def save_radius_curves(curves: Mapping[str, Curve], path: str | Path, title: str = "") -> Path:
    """The curves of several models in one figure; returns the path."""
    check_figure(path)
    target = Path(path).expanduser()
    target.parent.mkdir(parents=True, exist_ok=True)
    save_figure(plot_curves(curves, title), target)
    return target
