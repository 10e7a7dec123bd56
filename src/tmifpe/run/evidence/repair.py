"""A repair: what one other way of attacking found in what `full` had left standing, because its gradients mislead."""

from __future__ import annotations

__all__ = ["Repair", "repaired"]

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tmifpe.attacks.loop.queries import Tally
from tmifpe.run.outcomes import Outcomes


@dataclass(frozen=True)
class Broken:
    """The columns of an example that a repair broke, as in `Outcomes`."""

    index: int
    adv_pred: int
    margin: float
    adv_gap: float
    size: float
    steps_used: int
    marks: int


@dataclass(frozen=True)
class Repair:
    """One way, tried on `examples` survivors; those in `rows` were broken, and read again by the model itself."""

    name: str
    examples: int
    forwards: int
    backwards: int
    seconds: float
    rows: tuple[Broken, ...] = ()

    @property
    def broken(self) -> int:
        return len(self.rows)

    @property
    def tally(self) -> Tally:
        return Tally(self.forwards, self.backwards)

    @property
    def indices(self) -> tuple[int, ...]:
        return tuple(row.index for row in self.rows)

    def __str__(self) -> str:
        return f"{self.name} broke {self.broken} of {self.examples}"

    def to_json(self) -> dict[str, Any]:
        plain = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        return plain | {"broken": self.broken, "rows": [dataclasses.asdict(row) for row in self.rows]}

    @classmethod
    def from_json(cls, plain: Mapping[str, Any]) -> Repair:
        """As a store has it; `KeyError`, `TypeError` or `ValueError` where that is no repair."""
        rows = tuple(
            Broken(
                index=int(row["index"]),
                adv_pred=int(row["adv_pred"]),
                margin=float(row["margin"]),
                adv_gap=float(row["adv_gap"]),
                size=float(row["size"]),
                steps_used=int(row["steps_used"]),
                marks=int(row["marks"]),
            )
            for row in plain["rows"]
        )
        found = cls(
            str(plain["name"]),
            int(plain["examples"]),
            int(plain["forwards"]),
            int(plain["backwards"]),
            float(plain["seconds"]),
            rows,
        )
        if not 0 <= found.broken <= found.examples:
            raise ValueError("no repair")
        return found


def repaired(outcomes: Outcomes, repairs: Sequence[Repair], stage: int, eps: float) -> Outcomes:
    """A copy in which what the repairs broke is broken: by the stage of this number, which comes after the attack's,
    and the part that is the repair's own number."""
    if not any(one.rows for one in repairs):
        return outcomes
    table = outcomes.take(np.arange(len(outcomes)))
    place = {index: row for row, index in enumerate(table.index.tolist())}
    for number, one in enumerate(repairs):
        for broken in one.rows:
            row = place.get(broken.index)
            if row is None:  # of a part of the run
                continue
            for name, value in dataclasses.asdict(broken).items():
                table.arrays[name][row] = value
            table.fooled[row], table.stage[row], table.part[row] = True, stage, number
            table.broken_at[row], table.withstood[row] = eps, max(0.0, float(_below(table.withstood[row], eps)))
    return table


def _below(withstood: float, eps: float) -> float:
    """What it is known to withstand: not eps any longer."""
    return withstood if withstood < eps else 0.0
