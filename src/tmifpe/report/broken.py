"""What was broken, in a few lines for a log."""

from __future__ import annotations

__all__ = ["describe", "listed"]

from tmifpe.run.result import Result
from tmifpe.run.shown.sheets import checks_said

SHOWN = 20


def describe(result: Result, at_least: float | None = None) -> str:
    """The verdict, what was asked, and the first examples that were broken or misclassified."""
    spec = result.spec
    required = "" if at_least is None else f"; at least {at_least:.2%} is required"
    threat = f"{spec.threat.norm} eps {spec.threat.eps:.6g}, {spec.attack_title}, seed {spec.seed}"
    lines = [
        f"robust accuracy {result.robust_accuracy:.2%} ({result.robust} of {result.n}){required}",
        f"clean accuracy {result.clean_accuracy:.2%}; {spec.model} on {spec.data}, {threat}",
        *listed(result),
        *([f"checks {checks_said(result)}"] if result.checks_cut else []),
        *(f"flag {flag.name}: {flag.seen} {flag.advice}" for flag in result.flags),
    ]
    return "\n".join(lines)


def listed(result: Result) -> tuple[str, str]:
    """Which examples were broken, and which were misclassified to begin with."""
    rows, called = list(result.outcomes), result.class_name
    names = result.files or tuple(str(row.index) for row in rows)
    both = list(zip(names, rows, strict=True))
    broken = [f"{name} ({called(row.label)} -> {called(row.adv_pred)})" for name, row in both if row.fooled]
    wrong = [f"{name} ({called(row.label)} -> {called(row.clean_pred)})" for name, row in both if not row.correct]
    return (
        _listed(f"broken, as {'file' if result.files else 'index'} (label -> prediction)", broken),
        _listed("misclassified without an attack", wrong),
    )


def _listed(what: str, items: list[str]) -> str:
    more = f" and {len(items) - SHOWN} more" if len(items) > SHOWN else ""
    return f"{what}: {len(items)}" + (": " if items else "") + ", ".join(items[:SHOWN]) + more
