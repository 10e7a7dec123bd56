"""A result as Markdown, for the summary page of a CI job."""

from __future__ import annotations

__all__ = ["summary", "summary_of_error"]

import re

from tmifpe.report.broken import listed
from tmifpe.report.gates import Gates
from tmifpe.run.result import Result
from tmifpe.run.shown.sheets import checks_said


def summary(result: Result, gates: Gates = Gates()) -> str:  # noqa: B008 - frozen
    """The numbers, every gate with its verdict, the flags, and which examples were broken."""
    if not result.complete:
        return summary_of_error(result.spec.model, str(result))
    spec, (low, high) = result.spec, result.interval
    missed = gates.missed(result)
    rows = [
        ("robust accuracy", f"**{result.robust_accuracy:.2%}** (95 %: {low:.2%} to {high:.2%})"),
        ("clean accuracy", f"{result.clean_accuracy:.2%}"),
        ("examples", f"{result.n}, of which broken {result.broken}"),
        ("threat", _text(f"{spec.threat.norm}, eps {spec.threat.eps:.6g}")),
        ("attack", _text(spec.attack_title)),
    ]
    lines = [f"### {'Failed' if missed else 'Passed'}: {_text(spec.model)} on {_text(spec.data)}", ""]
    lines += ["| | |", "|---|---|", *(f"| {name} | {value} |" for name, value in rows), ""]
    lines += [f"- {'passed' if case.passed else '**missed**'}: {_text(case.said)}" for case in gates.cases(result)]
    lines += [f"- flag {_text(flag.name)}: {_text(f'{flag.seen} {flag.advice}')}" for flag in result.flags]
    lines += [f"- checks {_text(checks_said(result))}"] if result.checks_cut else []
    lines += [f"- note: {_text(note)}" for note in result.notes]
    lines += ["", *(f"{_text(line)}  " for line in listed(result))]
    return "\n".join(lines) + "\n"


def summary_of_error(model: str, said: str) -> str:
    """For a run that ended without a result."""
    return f"### Error: {_text(model)}\n\n{_text(said)}\n"


def _text(text: str) -> str:
    """Text of one line that Markdown shows as it is: names come from files."""
    flat = "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in " ".join(text.splitlines()))
    return re.sub(r"([\\`*_\[\]<>|#&])", r"\\\1", flat)
