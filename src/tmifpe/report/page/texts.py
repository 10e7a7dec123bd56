"""The content of a report as Markdown, LaTeX, JSON and CSV: the same tables as in the page."""

from __future__ import annotations

__all__ = ["FORMATS", "as_text", "sheets_of"]

import csv
import io
import json
import math
from collections.abc import Callable, Sequence
from typing import Any

from tmifpe.core.shown.formats import markdown_text, sheet_latex, sheet_markdown
from tmifpe.core.shown.sheet import Sheet, csv_text, visible
from tmifpe.report.page import facts, measured
from tmifpe.report.page.reported import Reported, titled
from tmifpe.run.shown.sheets import result_sheets


def sheets_of(reported: Reported) -> list[Sheet]:
    """The tables of one run, those without rows left out."""
    result = reported.result
    steps, sizes = measured.against_steps(result), measured.against_eps(result)
    pairs = measured.confusion(result)
    found = [
        *result_sheets(result),
        facts.line_sheet("Robust accuracy against steps", "steps", [steps] if steps else []),
        facts.line_sheet("Robust accuracy against eps", "eps", sizes),
        facts.classes_sheet(result, measured.per_class(result)),
        facts.confusion_sheet(result, pairs) if pairs else Sheet("", (), ()),
        facts.layers_sheet(result),
        facts.provenance_sheet(reported),
    ]
    return [sheet for sheet in found if sheet]


def _compared(reports: Sequence[Reported]) -> list[Sheet]:
    if len(reports) < 2:
        return []
    return [sheet for sheet in (facts.comparison_sheet(reports), facts.differences(reports)) if sheet]


def _markdown(reports: Sequence[Reported]) -> str:
    parts = ["# Robustness report", *(f"## {sheet.title}\n\n{sheet_markdown(sheet)}" for sheet in _compared(reports))]
    for one in reports:
        parts.append(f"## {markdown_text(facts.name_of(one))}")
        parts += [f"### {sheet.title}\n\n{sheet_markdown(sheet)}" for sheet in sheets_of(one)]
    return "\n\n".join(parts) + "\n"


def _latex(reports: Sequence[Reported]) -> str:
    parts = [sheet_latex(sheet) for sheet in _compared(reports)]
    for one in reports:
        parts.append(f"% {visible(facts.name_of(one))}")
        parts += [sheet_latex(sheet) for sheet in sheets_of(one)]
    return "\n\n".join(parts) + "\n"


def _json(reports: Sequence[Reported]) -> str:
    runs = [_plain(one) for one in reports]
    plain = {"runs": runs, "compared": [_sheet_json(sheet) for sheet in _compared(reports)]}
    return json.dumps(_finite(plain), indent=2, allow_nan=False, ensure_ascii=True) + "\n"


def _plain(one: Reported) -> dict[str, Any]:
    result = one.result
    curves = {"steps": measured.against_steps(result), "eps": measured.against_eps(result)}
    numbers = {"margin": measured.margins(result), "gap": measured.gaps(result)}
    return {
        "run": one.run,
        "started": one.started,
        "finished": one.finished,
        "sessions": list(one.sessions),
        "result": result.to_json(),
        "curves": {name: _vars(found) for name, found in curves.items()},
        "histograms": {name: _vars(found) for name, found in numbers.items()},
        "classes": [vars(one) | {"name": result.class_name(one.label)} for one in measured.per_class(result)],
        "confusion": _vars(measured.confusion(result)),
        "tables": [_sheet_json(sheet) for sheet in sheets_of(one)],
    }


def _vars(found: Any) -> Any:
    return [_vars(each) for each in found] if isinstance(found, list) else None if found is None else vars(found)


def _sheet_json(sheet: Sheet) -> dict[str, Any]:
    return {
        "title": sheet.title,
        "head": list(sheet.head),
        "rows": [list(row) for row in sheet.rows],
        "note": sheet.note,
    }


def _finite(value: Any) -> Any:
    """JSON knows no NaN and no infinity, so they become null; nor does it know halves of characters."""
    if isinstance(value, dict):
        return {key: _finite(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _csv(reports: Sequence[Reported]) -> str:
    """One value per line: run, table, row, column, value."""
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(("run", "table", "row", "column", "value"))
    for one in reports:
        for sheet in sheets_of(one):
            for row in sheet.rows:
                for column, value in zip(sheet.head[1:] or ("value",), row[1:], strict=False):
                    writer.writerow([csv_text(text) for text in (one.run, sheet.title, row[0], column, value)])
    return buffer.getvalue()


FORMATS: dict[str, Callable[[Sequence[Reported]], str]] = {
    "md": _markdown,
    "latex": _latex,
    "json": _json,
    "csv": _csv,
}


def as_text(reports: Sequence[Reported], kind: str) -> str:
    """The report in one of `FORMATS`."""
    return FORMATS[kind](titled(reports))
