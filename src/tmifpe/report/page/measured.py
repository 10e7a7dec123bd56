"""The numbers behind the charts, from the outcomes of a run alone."""

from __future__ import annotations

__all__ = [
    "Bins",
    "Confusion",
    "Line",
    "Shares",
    "against_eps",
    "against_steps",
    "bins",
    "confusion",
    "gaps",
    "margins",
    "per_class",
]

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tmifpe.core.stats import wilson
from tmifpe.run.outcomes import Outcomes
from tmifpe.run.result import Result

_POINTS = 200  # more make no difference to the eye
Reals = NDArray[np.float64]


@dataclass(frozen=True)
class Line:
    """A share that changes in steps: `y[k]` holds from `x[k]` on."""

    name: str
    x: tuple[float, ...]
    y: tuple[float, ...]


@dataclass(frozen=True)
class Bins:
    """Counts between `edges`, before and after the attack; what lies outside is counted in the outermost bins."""

    edges: tuple[float, ...]
    before: tuple[int, ...]
    after: tuple[int, ...]
    log: bool


@dataclass(frozen=True)
class Shares:
    """One class: examples, shares that are classified correctly and that are robust, and the interval of the latter."""

    label: int
    n: int
    clean: float
    robust: float
    low: float
    high: float


@dataclass(frozen=True)
class Confusion:
    """How often examples predicted as `labels[i]` at first end as `labels[j]`; the diagonal withstood."""

    labels: tuple[int, ...]
    counts: tuple[tuple[int, ...], ...]
    whole: bool
    """Whether these are all classes, or only those that change most."""


def against_steps(result: Result) -> Line | None:
    """Robust accuracy after 0, 1, 2, ... steps of the attack, stages added up; None where steps say nothing.

    In `strongest` mode every example takes all its steps, `bracket` goes on after the first success, and some attacks
    count none.
    """
    table = result.outcomes.take(result.outcomes.counted)
    used = table.steps_used[table.fooled]
    goes_on = result.spec.mode != "verdict" or any(attack.startswith("bracket") for attack in result.spec.attacks)
    if goes_on or len(np.unique(used)) < 2 or not result.complete:
        return None
    return _falling("robust accuracy", table, np.where(table.fooled, table.steps_used, np.inf).astype(float))


def against_eps(result: Result) -> list[Line]:
    """Robust accuracy against the radius: what was found as upper bound, what was proved as lower one.

    An adversarial example of some size breaks its example at every larger radius too.
    """
    table, eps = result.outcomes.take(result.outcomes.counted), result.spec.threat.eps
    columns = table.arrays
    known = np.fmin(table.size, columns.get("broken_at", np.full(len(table), np.nan)))
    found = known[table.fooled]
    # An attack on one radius goes to its edge, and then sizes say little.
    if not result.complete or not len(found) or not (result.spec.radii or np.median(found) < 0.9 * found.max()):
        return []
    lines = [_falling("attacked", table, np.where(table.fooled, known, np.inf), eps)]
    proved: Any = columns.get("certified_to", np.full(len(table), np.nan))
    if (proved > 0).any():
        line = _falling("certified", table, np.nan_to_num(proved), eps)
        at_eps = int((table.correct & (proved >= eps)).sum()) / max(1, len(table))
        lines.append(Line(line.name, line.x, (*line.y[:-1], at_eps)))  # what is proved for eps holds at eps
    return lines


def _falling(name: str, table: Outcomes, until: Reals, end: float | None = None) -> Line:
    """The share of correct examples whose `until` lies beyond x, thinned to what a chart can show."""
    n = max(1, len(table))
    ends = np.sort(until[table.correct & np.isfinite(until)])
    x = np.concatenate([[0.0], ends])
    if len(np.unique(x)) > _POINTS:
        x = np.concatenate([[0.0], np.quantile(ends, np.linspace(0, 1, _POINTS))])
    x = np.unique(x if end is None else np.concatenate([x[x < end], [end]]))
    left = int(table.correct.sum()) - np.searchsorted(ends, x, side="right")
    return Line(name, tuple(x.tolist()), tuple((left / n).tolist()))


def margins(result: Result) -> Bins | None:
    """Of the attacked examples; negative: classified correctly."""
    table = _attacked(result)
    return bins(table.clean_margin, table.margin)


def gaps(result: Result) -> Bins | None:
    """Between the two largest logits."""
    table = _attacked(result)
    return bins(table.clean_gap, table.adv_gap, log=True)


def bins(before: Reals, after: Reals, log: bool = False, count: int = 40) -> Bins | None:
    """Forty bins over the middle 99 % of both; None where nothing was stored."""
    values = [side[np.isfinite(side)] for side in (before, after)]
    both = np.concatenate(values)
    if log:
        both = both[both > 0]
    if not len(both) or not len(values[0]):
        return None
    low, high = np.quantile(both, [0.005, 0.995])
    if not high > low:
        low, high = (low / 2, low * 2) if log else (low - 1, low + 1)
    edges = np.geomspace(low, high, count + 1) if log else np.linspace(low, high, count + 1)
    counts = [np.histogram(np.clip(side, edges[0], edges[-1]), edges)[0] for side in values]
    return Bins(tuple(edges.tolist()), tuple(counts[0].tolist()), tuple(counts[1].tolist()), log)


def per_class(result: Result) -> list[Shares]:
    """Every label, in order; none where accuracies are not known yet."""
    return (
        []
        if not result.complete
        else [
            Shares(label, n, correct / n, robust / n, *wilson(robust, n))
            for label, (n, correct, robust) in result.per_class().items()
        ]
    )


def confusion(result: Result, most: int = 20) -> Confusion | None:
    """Clean prediction against the prediction on the adversarial example; None if nothing was broken."""
    table = _attacked(result)
    moved = table.fooled & (table.clean_pred != table.adv_pred)
    if not moved.any():
        return None
    ends = np.concatenate([table.clean_pred[moved], table.adv_pred[moved]])
    found = np.union1d(table.clean_pred, ends)
    chosen = found
    if len(found) > most:
        seen, times = np.unique(ends, return_counts=True)
        chosen = np.sort(seen[np.argsort(-times, kind="stable")[:most]])
    place = {int(label): k for k, label in enumerate(chosen)}
    counts = np.zeros((len(chosen), len(chosen)), dtype=int)
    last = np.where(table.fooled, table.adv_pred, table.clean_pred)
    pairs, times = np.unique(np.stack([table.clean_pred, last]), axis=1, return_counts=True)
    for (before, after), n in zip(pairs.T.tolist(), times.tolist(), strict=True):
        if before in place and after in place:
            counts[place[before], place[after]] = n
    return Confusion(tuple(place), tuple(map(tuple, counts.tolist())), len(chosen) == len(found))


def _attacked(result: Result) -> Outcomes:
    table = result.outcomes
    return table.take(table.correct & table.counted)
