"""One row per example, kept as columns so that a hundred thousand of them stay small."""

from __future__ import annotations

__all__ = ["Mark", "Outcome", "Outcomes"]

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from enum import IntFlag
from typing import Any

import numpy as np
from numpy.typing import NDArray


class Mark(IntFlag):
    """What was seen at an example, beside its verdict."""

    NONE = 0
    UNUSABLE_LOGITS = 1
    """NaN or +inf among the logits at some look; such a look never counts as success."""
    ZERO_GRADIENT = 2
    """The gradient was exactly zero at every step of every attack."""
    SOME_ZERO_GRADIENTS = 4
    """The gradient was exactly zero at some steps."""
    LEFT_OUT = 8
    """Targeted, and predicted as (or labelled) the target from the beginning: not counted."""
    FRAGILE = 16
    """Broken in one precision and not in another."""
    RISING = 32
    """Not broken, but at the pace of the last tenth of its looks a fifth more of them would have done it."""


@dataclass(frozen=True)
class Outcome:
    """What became of one example. `stage` is the attack that broke it, -1 if none did."""

    index: int
    label: int
    target: int
    clean_pred: int
    adv_pred: int
    fooled: bool
    stage: int
    steps_used: int
    margin: float
    size: float
    marks: int
    clean_margin: float
    clean_gap: float
    adv_gap: float

    @property
    def correct(self) -> bool:
        return self.clean_pred == self.label

    @property
    def robust(self) -> bool:
        return self.correct and not self.fooled


_DTYPES: dict[str, type[Any]] = {
    "index": np.int64,
    "label": np.int32,
    "target": np.int32,
    "clean_pred": np.int32,
    "adv_pred": np.int32,
    "fooled": np.bool_,
    "stage": np.int16,
    "steps_used": np.int32,
    "margin": np.float64,
    "size": np.float64,
    "marks": np.int32,
    "clean_margin": np.float64,
    "clean_gap": np.float64,
    "adv_gap": np.float64,
}


@dataclass(frozen=True)
class Outcomes:
    """The columns; iterates and indexes as rows.

    >>> table = Outcomes.blank(3)
    >>> len(table), table[0].fooled
    (3, False)
    """

    index: NDArray[np.int64]
    label: NDArray[np.int32]
    target: NDArray[np.int32]
    clean_pred: NDArray[np.int32]
    adv_pred: NDArray[np.int32]
    fooled: NDArray[np.bool_]
    stage: NDArray[np.int16]
    steps_used: NDArray[np.int32]
    margin: NDArray[np.float64]
    size: NDArray[np.float64]
    marks: NDArray[np.int32]
    clean_margin: NDArray[np.float64]
    clean_gap: NDArray[np.float64]
    adv_gap: NDArray[np.float64]

    @classmethod
    def blank(cls, n: int) -> Outcomes:
        columns = {name: np.zeros(n, dtype) for name, dtype in _DTYPES.items()}
        columns["target"][:] = -1
        columns["stage"][:] = -1
        return cls(**columns)

    @classmethod
    def concat(cls, parts: Sequence[Outcomes]) -> Outcomes:
        if not parts:
            return cls.blank(0)
        return cls(**{name: np.concatenate([getattr(part, name) for part in parts]) for name in _DTYPES})

    @classmethod
    def of_rows(cls, rows: Sequence[Sequence[object]]) -> Outcomes:
        """From rows in the order of `columns()`, e.g. out of a database."""
        columns = list(zip(*rows, strict=True)) or [[] for _ in _DTYPES]
        named = zip(_DTYPES.items(), columns, strict=True)
        return cls(**{name: np.asarray(values, dtype) for (name, dtype), values in named})

    def is_table(self) -> bool:
        """Whether every column has its dtype, and all one length; a file may say otherwise."""
        return all(
            getattr(self, name).dtype == dtype and getattr(self, name).shape == (len(self),)
            for name, dtype in _DTYPES.items()
        )

    @staticmethod
    def columns() -> list[str]:
        return list(_DTYPES)

    def rows(self) -> Iterator[tuple[object, ...]]:
        """Plain Python values, in the order of `columns()`."""
        return zip(*(getattr(self, name).tolist() for name in _DTYPES), strict=True)

    def take(self, positions: NDArray[np.integer] | NDArray[np.bool_]) -> Outcomes:
        return Outcomes(**{name: getattr(self, name)[positions] for name in _DTYPES})

    def put(self, positions: range, part: Outcomes) -> None:
        """Overwrite the rows at `positions`, a run without gaps."""
        for name in _DTYPES:
            getattr(self, name)[positions.start : positions.stop] = getattr(part, name)

    @property
    def correct(self) -> NDArray[np.bool_]:
        return self.clean_pred == self.label

    @property
    def robust(self) -> NDArray[np.bool_]:
        return self.correct & ~self.fooled

    @property
    def counted(self) -> NDArray[np.bool_]:
        return (self.marks & Mark.LEFT_OUT) == 0

    def __len__(self) -> int:
        return len(self.index)

    def __getitem__(self, position: int) -> Outcome:
        return Outcome(*(getattr(self, f.name)[position].item() for f in fields(Outcome)))

    def __iter__(self) -> Iterator[Outcome]:
        return (Outcome(*row) for row in self.rows())  # pyright: ignore[reportArgumentType]
