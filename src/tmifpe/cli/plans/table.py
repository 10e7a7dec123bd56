"""The results of a plan as one table: for a terminal, Markdown, LaTeX, JUnit."""

from __future__ import annotations

__all__ = ["HEADINGS", "cells", "junit", "latex", "markdown"]

import re
from collections.abc import Sequence
from pathlib import PurePath
from xml.etree import ElementTree as ET

from tmifpe.cli.plans.running import PlanRow
from tmifpe.core.shown.formats import markdown_text
from tmifpe.report.broken import describe
from tmifpe.run.shown.sheets import clean_said

HEADINGS = ("run", "threat", "examples", "clean %", "robust %", "95 % interval", "state")
MISSED = "below what is asked"
_ILLEGAL = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def cells(row: PlanRow) -> list[str]:
    """One line of the table, in the order of the headings."""
    result = row.result
    if result is None:
        threat = f"{row.run.how.norm} {row.run.how.eps or ''}".strip()
        return [row.run.name, threat, "", "", "", "", f"failed: {row.error}"]
    threat = result.spec.threat
    low, high = result.interval if result.complete else result.bounds
    said = [row.state if not result.part else f"shard {result.part}"]
    said += [MISSED] if row.missed else []
    said += [", ".join(dict.fromkeys(flag.name for flag in result.flags))] if result.flags else []
    return [
        row.run.name,
        f"{threat.norm} {threat.eps:.6g}",
        str(result.n + result.missing),
        clean_said(result).removesuffix(" %"),
        _percent(result.robust_accuracy) if result.complete else f"{_percent(low)} to {_percent(high)}",
        f"{_percent(low)} to {_percent(high)}" if result.complete else "",
        "; ".join(said),
    ]


def markdown(rows: Sequence[PlanRow]) -> str:
    """With the model, and what was asked of it where that is missed: a page is read without the plan beside it."""
    head = (HEADINGS[0], "model", *HEADINGS[1:])
    lines = [f"| {' | '.join(head)} |", "|---|---|---|" + "---:|" * 4 + "---|"]
    for row in rows:
        name, *told, state = cells(row)
        if row.missed:
            state = state.replace(MISSED, f"{MISSED}: {'; '.join(row.missed)}")
        lines.append(f"| {' | '.join(map(markdown_text, (name, _model(row), *told, state)))} |")
    return "\n".join(lines) + "\n"


def latex(rows: Sequence[PlanRow]) -> str:
    """With booktabs."""
    lines = [r"\begin{tabular}{llrrrrl}", r"\toprule", " & ".join(map(_tex, HEADINGS)) + r" \\", r"\midrule"]
    lines += [" & ".join(map(_tex, cells(row))) + r" \\" for row in rows]
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}"]) + "\n"


def junit(rows: Sequence[PlanRow]) -> str:
    """A test case per run: an error where there is no number, a failure where a gate is missed."""
    errors = [row for row in rows if row.state != "done"]
    missed = [row for row in rows if row.missed or row.flagged]
    counts = {"tests": str(len(rows)), "errors": str(len(errors)), "failures": str(len(missed)), "skipped": "0"}
    suite = ET.Element("testsuite", {"name": "tmifpe", **counts})
    for row in rows:
        case = ET.SubElement(suite, "testcase", {"classname": "tmifpe.plan", "name": _legal(row.run.name)})
        first, text = map(_legal, _said(row))
        if row.state != "done":
            ET.SubElement(case, "error", {"type": "tmifpe", "message": first}).text = text
        elif row.missed or row.flagged:
            ET.SubElement(case, "failure", {"type": "tmifpe", "message": first}).text = text
        else:
            ET.SubElement(case, "system-out").text = text
    ET.indent(suite)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + ET.tostring(suite, encoding="unicode") + "\n"


def _said(row: PlanRow) -> tuple[str, str]:
    """In a line what decided, and in full what `tmifpe evaluate --junit` says."""
    result = row.result
    if result is None:
        return row.error, row.error
    if not result.complete or result.part:
        return str(result), str(result)
    flags = ["flags were raised: " + ", ".join(dict.fromkeys(flag.name for flag in result.flags))]
    decided = [*row.missed, *(flags if row.flagged else [])]
    full = describe(result, row.run.fail_below)
    more = [said for said in decided if said not in full]
    return "; ".join(decided) or full.partition("\n")[0], "\n".join([full, *more])


def _model(row: PlanRow) -> str:
    weights = row.run.source.weights
    return row.run.source.model + (f" ({PurePath(weights).name})" if weights else "")


def _percent(value: float) -> str:
    return f"{100 * value:.2f}"


def _legal(text: str) -> str:
    return _ILLEGAL.sub("\N{REPLACEMENT CHARACTER}", text)


def _tex(text: str) -> str:
    flat = " ".join(text.split()).replace("\\", r"\textbackslash ")
    for character in "&%$#_{}":
        flat = flat.replace(character, f"\\{character}")
    return flat.replace("~", r"\textasciitilde ").replace("^", r"\textasciicircum ")
