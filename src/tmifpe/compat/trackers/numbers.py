"""What a tracker is told of a result."""

from __future__ import annotations

__all__ = ["numbers_of", "settings_of", "title_of"]

from tmifpe.core.errors import InputError, shorten
from tmifpe.run.result import Result
from tmifpe.run.shown.sheets import checks_said
from tmifpe.version import __version__


def numbers_of(result: Result) -> dict[str, float]:
    """Accuracies as fractions with the ends of the 95 % interval, and the cost. An incomplete result has no number to
    tell, and is refused."""
    if result.part:
        raise InputError(f"this is part {result.part} of a run; merge the parts, and track the whole run")
    low, high = result.interval
    numbers = {
        "clean_accuracy": result.clean_accuracy,
        "robust_accuracy": result.robust_accuracy,
        "robust_accuracy_lower": low,
        "robust_accuracy_upper": high,
        "examples": result.n,
        "broken": result.broken,
        "forwards": result.tally.forwards,
        "backwards": result.tally.backwards,
        "seconds": result.seconds,
        "flags": len(result.flags),
    }
    if result.certified_accuracy is not None:
        numbers["certified_accuracy"] = result.certified_accuracy
    if result.spec.verify != "none":
        numbers["second_robust_accuracy"] = result.second_robust_accuracy
    for radius in result.radii:
        numbers[f"robust_accuracy_at_{radius.eps:.6g}"] = radius.robust_accuracy
    return {name: float(number) for name, number in numbers.items()}


def settings_of(result: Result) -> dict[str, str]:
    """What was evaluated, as text."""
    spec = result.spec
    settings = {
        "model": spec.model,
        "data": spec.data,
        "norm": spec.threat.norm,
        "eps": f"{spec.threat.eps:.6g}",
        "attack": spec.attack_title,
        "targets": "" if spec.targets == "none" else spec.targets,
        "seed": str(spec.seed),
        "precision": spec.precision,
        "checks": checks_said(result),
        "flags": ", ".join(dict.fromkeys(flag.name for flag in result.flags)),
        "key": result.key or spec.key(),
        "version": __version__,
    }
    return {name: text.encode(errors="replace").decode() for name, text in settings.items() if text}


def title_of(result: Result) -> str:
    """What the run is called in the tracker."""
    spec = result.spec
    words = f"{spec.model} {spec.threat.norm} {spec.threat.eps:.6g} {spec.attack_title}"
    return shorten(words, 120).encode(errors="replace").decode()
