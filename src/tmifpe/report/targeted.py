"""The targeted table as text, from the plain values of `tmifpe table-targeted --json`."""

from __future__ import annotations

__all__ = ["STAR", "cells", "markdown"]

from collections.abc import Sequence
from typing import Any

from tmifpe.report.comparison import TEST

STAR = "* the highest of the row, or as high; not always by more than chance."


def cells(row: dict[str, Any], losses: Sequence[str]) -> list[str]:
    """The success rates of a row in percent, with a star where none of the losses is better."""
    best = max(column["broken"] for column in row["losses"].values())
    texts: list[str] = []
    for loss in losses:
        column = row["losses"].get(loss)
        star = "*" if column is not None and column["broken"] == best else ""
        texts.append("" if column is None else f"{100 * column['success_rate']:.2f}{star}")
    return texts


def markdown(rows: Sequence[dict[str, Any]]) -> str:
    """One line per model and rule; under it which losses differ from the best by more than chance."""
    losses = list(dict.fromkeys(loss for row in rows for loss in row["losses"]))
    lines = ["| model | target | attacked | " + " | ".join(losses) + " |", "|---|---|---:|" + "---:|" * len(losses)]
    lines += [
        f"| {row['model']} | {row['targets']} | {row['attacked']} | {' | '.join(cells(row, losses))} |" for row in rows
    ]
    said = [text for row in rows if (text := _differing(row))]
    return "\n".join(lines) + "\n\n" + "\n".join([f"Success rate in percent of the images attacked; {STAR}", *said])


def _differing(row: dict[str, Any]) -> str:
    real = [f"{pair['first']} / {pair['second']}" for pair in row["pairs"] if pair["differs"]]
    if not real:
        return ""
    return f"{row['model']}, {row['targets']}: more than chance ({TEST}): {', '.join(real)}."
