"""What was broken, in a few lines for a log."""

from __future__ import annotations

__all__ = ["describe"]

from tmifpe.run.result import Result

SHOWN = 20


def describe(result: Result, at_least: float | None = None) -> str:
    """The verdict, what was asked, and the first examples that were broken or misclassified."""
    spec, rows = result.spec, list(result.outcomes)
    broken = [f"{row.index} ({row.label} -> {row.adv_pred})" for row in rows if row.fooled]
    wrong = [f"{row.index} ({row.label} -> {row.clean_pred})" for row in rows if not row.correct]
    required = "" if at_least is None else f"; at least {at_least:.2%} is required"
    threat = f"{spec.threat.norm} eps {spec.threat.eps:.6g}, {'; '.join(spec.attacks)}, seed {spec.seed}"
    lines = [
        f"robust accuracy {result.robust_accuracy:.2%} ({result.robust} of {result.n}){required}",
        f"clean accuracy {result.clean_accuracy:.2%}; {spec.model} on {spec.data}, {threat}",
        _listed("broken, as index (label -> prediction)", broken),
        _listed("misclassified without an attack", wrong),
        *(f"flag {flag.name}: {flag.seen} {flag.advice}" for flag in result.flags),
    ]
    return "\n".join(lines)


def _listed(what: str, items: list[str]) -> str:
    more = f" and {len(items) - SHOWN} more" if len(items) > SHOWN else ""
    return f"{what}: {len(items)}" + (": " if items else "") + ", ".join(items[:SHOWN]) + more
