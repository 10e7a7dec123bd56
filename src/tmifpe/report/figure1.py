"""The paper's Figure 1: g(t) and delta_sup(t) in the four scenarios, corrected or as printed."""

from __future__ import annotations

__all__ = ["PANELS", "Panel", "curves", "draw_figure1", "to_json"]

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from tmifpe.report.curves import Drawn, curve_of, draw, figure
from tmifpe.theory.coefficient import row_of


@dataclass(frozen=True)
class Panel:
    """One panel: the logits of the paper's caption, with the class that it leaves undefined filled in."""

    letter: str
    title: str
    logits: tuple[float, ...]
    label: int
    target: int | None = None
    filled_in: str = ""


_CLEAN = (2.5, -1.3, 0.8, 3.8, -0.9, 1.7, -2.1, 3.6, 0.4, -1.5)

PANELS = (
    Panel("a", "untargeted, unsuccessful (y = 3)", _CLEAN, 3),
    # The caption calls y = 5 the "misclassification label", which is the prediction: the true label is that of (a).
    Panel(
        "b",
        "untargeted, successful (y = 3)",
        (1.2, -1.5, 0.5, 1.9, -1.2, 4.2, -2.3, 2.0, 0.1, -1.8),
        3,
        filled_in="label",
    ),
    # The caption says only that the target is not 3; the natural one is that of (d).
    Panel("c", "targeted, unsuccessful (target 1)", _CLEAN, 3, 1, filled_in="target"),
    Panel(
        "d",
        "targeted, successful (target 1)",
        (1.0, 4.5, 0.3, 1.2, -1.0, 1.5, -2.5, 2.8, 0.0, -1.8),
        3,
        1,
    ),
)


def curves(paper: bool = False) -> dict[str, Drawn]:
    """The four panels by letter: corrected and with bf16, or (`paper`) in the printed form and formats."""
    formats = ("fp16", "fp32", "fp64") if paper else ("fp16", "bf16", "fp32", "fp64")
    result = {}
    for panel in PANELS:
        aim = panel.label if panel.target is None else panel.target
        row = row_of(torch.tensor(panel.logits, dtype=torch.float64), aim, panel.target is not None)
        result[panel.letter] = curve_of(row, f"({panel.letter}) {panel.title}", formats, printed=paper)
    return result


def to_json(paper: bool = False) -> dict[str, Any]:
    """The numbers behind the figure."""
    panels = {panel.letter: asdict(panel) for panel in PANELS}
    drawn = {letter: curve.to_json() for letter, curve in curves(paper).items()}
    return {"paper": paper, "panels": [panels[letter] | drawn[letter] for letter in drawn]}


def draw_figure1(path: Path, paper: bool = False) -> None:
    """Draw the four panels to a .png, .svg or .pdf file."""
    fig = figure(13.0, 9.5, path)
    parts: Any = fig.subfigures(2, 2, wspace=0.03, hspace=0.04)
    for part, curve in zip(parts.flat, curves(paper).values(), strict=True):
        draw(part, curve)
    fig.savefig(path, dpi=150)
