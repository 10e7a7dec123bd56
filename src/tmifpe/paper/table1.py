"""The paper's Table 1, measured again: every row whose weights are available, next to the printed values."""

from __future__ import annotations

__all__ = ["COLUMNS", "MeasuredRow", "measure_row", "printed_value"]

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tmifpe.attacks import PGD
from tmifpe.core.options import parse
from tmifpe.core.stats import wilson
from tmifpe.core.types import Threat
from tmifpe.evaluation.compare import Comparison, compare
from tmifpe.paper.rows import Missing, PaperRow, load_row
from tmifpe.run.request import SharedOptions
from tmifpe.run.shown.progress import Progress

if TYPE_CHECKING:
    from typing_extensions import Unpack

COLUMNS = ("ce", "cw", "dlr", "gama(momentum=0.75)", "mifpe", "tmifpe")


@dataclass(frozen=True)
class MeasuredRow:
    """A row as printed, and as measured where it could be; `needs` says what is missing otherwise."""

    row: PaperRow
    comparison: Comparison | None = None
    needs: str = ""

    def to_json(self) -> dict[str, Any]:
        """Plain values; accuracies, intervals and differences are fractions."""
        row = self.row
        plain: dict[str, Any] = {
            "id": row.id,
            "number": row.number,
            "dataset": row.dataset,
            "norm": row.norm,
            "eps": row.eps,
            "defense": row.defense,
            "architecture": row.architecture,
            "status": "missing" if self.comparison is None else "measured",
            "needs": self.needs,
            "note": row.note,
            "printed": row.printed,
        }
        if self.comparison is None:
            return plain
        first = next(iter(self.comparison.results.values()))[0]
        return plain | {
            "n": first.n,
            "model": first.spec.model,
            "data": first.spec.data,
            "seeds": list(self.comparison.seeds),
            "clean": _next_to(self.comparison.clean_accuracy, row.printed["clean"]),
            "columns": {name: self._column(self.comparison, name) for name in self.comparison.results},
            "spread": self.comparison.spread,
            "pairs": [vars(pair) | {"differs": pair.differs} for pair in self.comparison.pairs()],
            "remarks": self.remarks(),
        }

    def remarks(self) -> list[str]:
        """What a reader of the row must know: few images, other weights, a spread wider than differences, flags."""
        if self.comparison is None:
            return []
        found = [_some_images(self.comparison), _other_weights(self.row, self.comparison)]
        found.append(_below_spread(self.row, self.comparison))
        for name, runs in self.comparison.results.items():
            flags = dict.fromkeys(flag.name for run in runs for flag in run.flags)
            found.append(f"Flags at {name}: {', '.join(flags)}." if flags else "")
        return [remark for remark in found if remark]

    def _column(self, comparison: Comparison, name: str) -> dict[str, Any]:
        runs = comparison.results[name]
        values = comparison.accuracies(name)
        return _next_to(comparison.mean(name), printed_value(self.row, name)) | {
            "interval": list(comparison.interval(name)),
            "values": values,
            "min": min(values),
            "max": max(values),
            "worst_case": comparison.worst_case(name),
            "seconds": [run.seconds for run in runs],
            "forwards": runs[0].tally.forwards,
            "backwards": runs[0].tally.backwards,
            "attack": runs[0].spec.attacks[0],
            "flags": [flag.name for flag in runs[0].flags],
        }


def measure_row(
    row: PaperRow,
    weights_dir: Path,
    data_dir: Path,
    columns: Sequence[str] = COLUMNS,
    attack: PGD = PGD(),  # noqa: B008 - frozen
    *,
    seeds: Sequence[int] = (0,),
    progress: Callable[[str, Progress], None] = lambda column, step: None,
    **options: Unpack[SharedOptions],
) -> MeasuredRow:
    """One row under every column. `options` are those of `compare`: store, limit, device and the rest; every example
    takes every step, as in the paper.

    Weights are looked for in `weights_dir` by file name or in the layout of RobustBench's zoo, or as an export
    named after the row; data in `data_dir/<dataset>`.
    """
    try:
        classifier, data = load_row(
            row, weights_dir, data_dir, options.get("limit"), str(options.get("device") or "cpu")
        )
    except Missing as missing:
        return MeasuredRow(row, needs=str(missing))
    threat = Threat(row.norm, row.eps)  # pyright: ignore[reportArgumentType]
    options["early_exit"] = False
    result = compare(classifier, data, threat, columns, attack, seeds=seeds, progress=progress, **options)
    return MeasuredRow(row, result)


def printed_value(row: PaperRow, column: str) -> float | None:
    """What the paper prints for a column: for a loss with its default options, and for GAMA-PGD in any form."""
    name, options = parse(column)
    return row.printed.get(name) if not options or name in ("gama", "autoattack") else None


def _next_to(measured: float, printed: float | None) -> dict[str, float | None]:
    difference = None if printed is None else round(measured - printed, 6)
    return {"measured": measured, "printed": printed, "difference": difference}


def _some_images(comparison: Comparison) -> str:
    spec = next(iter(comparison.results.values()))[0].spec
    if spec.n == spec.total:
        return ""
    return f"These are {spec.n} of {spec.total} images; their choice is part of the difference from the printed value."


def _other_weights(row: PaperRow, comparison: Comparison) -> str:
    first = next(iter(comparison.results.values()))[0]
    low, high = wilson(int(first.outcomes.correct.sum()), len(first.outcomes), confidence=0.99)
    printed = row.printed["clean"]
    if low <= printed <= high:
        return ""
    return (
        f"The clean accuracy is {100 * comparison.clean_accuracy:.2f} where the paper prints {100 * printed:.2f}: "
        "these may be other weights or other images."
    )


def _below_spread(row: PaperRow, comparison: Comparison) -> str:
    """The paper's differences against what the seed alone does."""
    if comparison.spread is None:
        return ""
    named = [(parse(name)[0], printed_value(row, name)) for name in comparison.results]  # GAMA may stand there twice
    losses = {name: value for name, value in named if value is not None and name != "autoattack"}
    gaps = [round(abs(a - b), 4) for a, b in itertools.combinations(losses.values(), 2)]
    spread = 100 * comparison.spread
    below = sum(gap <= round(comparison.spread, 6) for gap in gaps)
    if not below:
        return ""
    return (
        f"The seed alone moves one loss by up to {spread:.2f} points (seeds {', '.join(map(str, comparison.seeds))}); "
        f"{below} of the {len(gaps)} differences that the paper prints between two losses, at one seed, are not larger "
        "than that and do not say which loss is stronger."
    )
