"""tmifpe figure1: the paper's Figure 1, corrected or as printed."""

from __future__ import annotations

__all__ = ["figure1"]

from pathlib import Path
from typing import Annotated

import typer


def figure1(
    out: Annotated[Path, typer.Option(help="The picture to write: .png, .svg or .pdf.")] = Path("figure1.png"),
    paper: Annotated[bool, typer.Option("--paper", help="The forms as printed, not the corrected ones.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print the numbers behind it instead of drawing.")] = False,
) -> None:
    """Draw the paper's Figure 1: g(t), delta_sup(t) and t* in the four scenarios."""
    from tmifpe.cli import console, parse
    from tmifpe.report import figure1 as report

    if json:
        console.print_json(report.to_json(paper))
        return
    parse.check_output(str(out))
    report.draw_figure1(out, paper)
    for letter, curve in report.curves(paper).items():
        marks = ", ".join(f"{name} {mark.t_star:.6g}" for name, mark in curve.marks.items())
        first = next(iter(curve.marks.values()))
        typer.echo(
            f"({letter}) {curve.scenario}: "
            + (f"t* = {first.t_star:.6f}, g = {first.g:.6f}" if curve.peaks else f"g only increases; t*: {marks}")
        )
    typer.echo(console.harmless(f"wrote {out}"))
