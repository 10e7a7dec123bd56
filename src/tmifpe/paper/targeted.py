"""Targeted attacks under every loss: how often each reaches the class it aims at."""

from __future__ import annotations

__all__ = ["TargetedRow", "targeted_rows"]

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from tmifpe.attacks import PGD
from tmifpe.core.stats import wilson
from tmifpe.core.types import Classifier, Data, Threat
from tmifpe.evaluation.compare import Comparison, compare
from tmifpe.run.request import SharedOptions
from tmifpe.run.result import Result
from tmifpe.run.shown.progress import Progress

if TYPE_CHECKING:
    from typing_extensions import Unpack


@dataclass(frozen=True)
class TargetedRow:
    """One model and one rule for the target, under every loss."""

    model: str
    rule: str
    comparison: Comparison

    def to_json(self) -> dict[str, Any]:
        """Plain values; success rates and intervals as fractions of the examples attacked."""
        results = {loss: runs[0] for loss, runs in self.comparison.results.items()}
        first = next(iter(results.values()))
        return {
            "model": self.model,
            "data": first.spec.data,
            "norm": first.spec.threat.norm,
            "eps": first.spec.threat.eps,
            "targets": self.rule,
            "seed": first.spec.seed,
            "attacked": _attacked(first),
            "losses": {loss: _column(result) for loss, result in results.items()},
            "pairs": [vars(pair) | {"differs": pair.differs} for pair in self.comparison.pairs()],
        }


def targeted_rows(
    classifier: Classifier,
    data: Data,
    threat: Threat,
    losses: Sequence[str],
    rules: Sequence[str | int],
    attack: PGD = PGD(),  # noqa: B008 - frozen
    *,
    seed: int = 0,
    progress: Callable[[str, Progress], None] = lambda loss, step: None,
    **options: Unpack[SharedOptions],
) -> list[TargetedRow]:
    """Every rule under every loss; `options` are those of `compare`. Every example takes every step."""
    return [
        TargetedRow(
            classifier.name,
            str(rule),
            compare(
                classifier,
                data,
                threat,
                losses,
                attack,
                seeds=(seed,),
                progress=progress,
                **cast("SharedOptions", options | {"targets": rule, "early_exit": False}),
            ),
        )
        for rule in rules
    ]


def _attacked(result: Result) -> int:
    return int((result.outcomes.correct & result.outcomes.counted).sum())


def _column(result: Result) -> dict[str, Any]:
    attacked = _attacked(result)
    return {
        "success_rate": result.success_rate,
        "interval": list(wilson(result.broken, attacked)),
        "broken": result.broken,
        "seconds": result.seconds,
        "attack": result.spec.attacks[0],
        "flags": [flag.name for flag in result.flags],
    }
