"""tmifpe theory: what the paper's analysis says about one row of logits."""

from __future__ import annotations

__all__ = ["read_logits", "theory"]

import re
from pathlib import Path
from typing import Annotated

import typer

from tmifpe.core.errors import InputError


def theory(
    logits: Annotated[str | None, typer.Argument(help="Numbers such as 2.5,-1.3,0.8 or a file of them.")] = None,
    label: Annotated[int | None, typer.Option(help="The true class, counted from 0.")] = None,
    target: Annotated[int | None, typer.Option(help="The class that a targeted attack wants.")] = None,
    precision: Annotated[str, typer.Option(help="fp16, bf16, fp32, fp64, fp8-e4m3 or fp8-e5m2.")] = "fp32",
    plot: Annotated[Path | None, typer.Option(help="Also draw g and delta_sup: .png, .svg or .pdf.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout.")] = False,
    page: Annotated[
        bool, typer.Option("--page", help="Write a page that computes all this for logits you type.")
    ] = False,
    out: Annotated[Path, typer.Option(help="The file of --page.")] = Path("theory.html"),
) -> None:
    """Scenario, Delta, t*, g, delta_sup and the gradient of one row of LOGITS."""
    from tmifpe.cli import console, parse
    from tmifpe.theory import analyse

    if page:
        if json:
            raise InputError("--page writes a page, and --json prints an analysis; give one of them")
        from tmifpe.report.page.theory import theory_html

        parse.write_file(str(out), theory_html().encode())
        typer.echo(console.harmless(f"wrote {out}"))
        return
    if logits is None or label is None:
        raise InputError("theory needs logits and --label, as in tmifpe theory 2.5,-1.3,0.8 --label 0; or --page")
    parse.check_output(None if plot is None else str(plot))
    found = analyse(read_logits(logits), label, target, precision)
    if plot is not None:
        from tmifpe.report.curves import plot_analysis

        plot_analysis(found, plot)
    if json:
        console.print_json(found.to_json())
        return
    typer.echo(str(found))
    if plot is not None:
        typer.echo("\n" + console.harmless(f"wrote {plot}"))


def read_logits(text: str) -> list[float]:
    """Numbers from the text itself, or from the file that it names; commas, spaces and brackets separate them.

    >>> read_logits("[-1.5, 2 3e-1]")
    [-1.5, 2.0, 0.3]
    """
    shown = text if len(text) <= 40 else text[:40] + "..."
    try:
        from_file = Path(text).is_file()
    except (OSError, ValueError):
        from_file = False  # too long or too odd to be a name
    try:
        inside = Path(text).read_text(encoding="utf-8") if from_file else text
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"cannot read logits from the file {shown!r}: {error}") from None
    numbers = []
    for word in re.split(r"[\s,;\[\]()]+", inside):
        if not word:
            continue
        try:
            numbers.append(float(word))
        except ValueError:
            where = f"in {shown!r} " if from_file else ""
            hint = "" if from_file else "; no file has that name either"
            raise InputError(f"{word[:40]!r} {where}is not a number: write logits as 2.5,-1.3,0.8{hint}") from None
    return numbers
