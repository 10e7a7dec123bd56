"""One row per example, kept as columns so that a hundred thousand of them stay small."""

from __future__ import annotations

__all__ = ["Mark", "Outcome", "Outcomes", "as_columns"]

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from enum import IntFlag
from typing import TYPE_CHECKING, Any, overload

import numpy as np
from numpy.typing import NDArray


class Mark(IntFlag):
    """What was observed for an example besides its verdict."""

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
    """Not broken, but at the pace of the last tenth of its steps a fifth more steps would have been enough."""
    STOPPED_EARLY = 64
    """Predicted robust before it had taken all its steps (`EarlyExit`)."""
    EXIT_CHECKED = 128
    """Would have stopped early, and took all its steps as a check."""
    EXIT_WRONG = 256
    """Was broken by a step that early exit would have saved."""


def _column(dtype: type[np.generic], blank: float = 0, absent: float | None = None) -> dict[str, Any]:
    """A column: its dtype, its value in a blank table, and its value in rows that were stored before it existed.

    None: it has been there since 0.1.0. Every other column must say what its absence means, and keep saying it.
    """
    return {"dtype": np.dtype(dtype), "blank": blank, "absent": absent}


@dataclass(frozen=True)
class Outcome:
    """The outcome for one example. The columns of tables, files and SQL are all derived from these fields."""

    index: int = field(metadata=_column(np.int64))
    label: int = field(metadata=_column(np.int32))
    target: int = field(metadata=_column(np.int32, blank=-1))
    clean_pred: int = field(metadata=_column(np.int32))
    adv_pred: int = field(metadata=_column(np.int32))
    fooled: bool = field(metadata=_column(np.bool_))
    stage: int = field(metadata=_column(np.int16, blank=-1))
    """The attack that broke it, -1 if none did."""
    steps_used: int = field(metadata=_column(np.int32))
    margin: float = field(metadata=_column(np.float64))
    """max_{i!=y} z_i - z_y, or that towards the target, at the final point."""
    size: float = field(metadata=_column(np.float64))
    marks: int = field(metadata=_column(np.int32))
    clean_margin: float = field(metadata=_column(np.float64, blank=np.nan, absent=np.nan))
    """The margin at the clean image."""
    clean_gap: float = field(metadata=_column(np.float64, blank=np.nan, absent=np.nan))
    """Between the two largest logits at the clean image."""
    adv_gap: float = field(metadata=_column(np.float64, blank=np.nan, absent=np.nan))
    """Between the two largest logits at the final point."""
    part: int = field(metadata=_column(np.int16, blank=-1, absent=-1))
    """Which part of that attack broke it, where it has parts (`Attack.parts`); -1 if none did or nobody knows."""
    certified: int = field(metadata=_column(np.int8, blank=-1, absent=-1))
    """1 if it is proved that no attack of this threat breaks it, 0 if that is not known, -1 if it was not asked."""
    margin_bound: float = field(metadata=_column(np.float64, blank=np.nan, absent=np.nan))
    """An upper bound of the margin over the whole ball; infinite where none is known, NaN where it was not asked."""
    broken_at: float = field(metadata=_column(np.float64, blank=np.nan, absent=np.nan))
    """The smallest radius at which it is known to be broken: 0 if it is misclassified to begin with, infinite if no
    radius that was tried broke it; NaN if its run was stored by 0.1.0."""
    withstood: float = field(metadata=_column(np.float64, blank=np.nan, absent=np.nan))
    """The largest radius below `broken_at` at which it withstood the attack; 0 if none was tried."""
    certified_to: float = field(metadata=_column(np.float64, blank=np.nan, absent=np.nan))
    """The largest radius that was tried at which it is certified; 0 if at none, NaN where it was not asked."""

    @property
    def correct(self) -> bool:
        return self.clean_pred == self.label

    @property
    def robust(self) -> bool:
        return self.correct and not self.fooled


_COLUMNS: dict[str, Mapping[str, Any]] = {column.name: column.metadata for column in fields(Outcome)}


def as_columns(rows: Sequence[Sequence[object]], dtypes: Mapping[str, str]) -> dict[str, NDArray[Any]]:
    """Rows, e.g. out of a database, as arrays with these names and dtypes."""
    columns = list(zip(*rows, strict=True)) or [()] * len(dtypes)
    named = zip(dtypes.items(), columns, strict=True)
    return {name: np.asarray(values, dtype) for (name, dtype), values in named}


class Outcomes:
    """A table with the fields of `Outcome` as columns; iterates and indexes as rows.

    >>> table = Outcomes.blank(3)
    >>> len(table), table[0].fooled
    (3, False)
    >>> table
    <Outcomes of 3 examples: 3 robust, 0 broken, 0 wrong to begin with>
    """

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> NDArray[Any]: ...

    def __init__(self, **columns: NDArray[Any]) -> None:
        if set(columns) != set(_COLUMNS):
            raise TypeError(f"outcomes have the columns {', '.join(_COLUMNS)}, got {', '.join(columns)}")
        vars(self).update(columns)

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"fill a column in place: outcomes.{name}[:] = ...")

    @classmethod
    def blank(cls, n: int) -> Outcomes:
        return cls(**{name: np.full(n, column["blank"], column["dtype"]) for name, column in _COLUMNS.items()})

    @classmethod
    def concat(cls, parts: Sequence[Outcomes]) -> Outcomes:
        if not parts:
            return cls.blank(0)
        return cls(**{name: np.concatenate([part.arrays[name] for part in parts]) for name in _COLUMNS})

    @classmethod
    def of_columns(cls, stored: Mapping[str, NDArray[Any]]) -> Outcomes:
        """From the columns that some version stored: those unknown here are ignored, missing ones filled in."""
        n = len(stored["index"])
        absent = {
            name: np.full(n, column["absent"], column["dtype"])
            for name, column in _COLUMNS.items()
            if column["absent"] is not None
        }
        return cls(**{name: values for name, values in {**absent, **stored}.items() if name in _COLUMNS})

    @classmethod
    def of_rows(cls, rows: Sequence[Sequence[object]]) -> Outcomes:
        """From rows in the order of `columns()`."""
        return cls(**as_columns(rows, cls.dtypes()))

    def is_table(self) -> bool:
        """Whether every column has its dtype, and all one length; a file may say otherwise."""
        return all(
            values.dtype == _COLUMNS[name]["dtype"] and values.shape == (len(self),)
            for name, values in self.arrays.items()
        )

    @staticmethod
    def columns() -> list[str]:
        return list(_COLUMNS)

    @staticmethod
    def dtypes() -> dict[str, str]:
        """The dtype of each column, as text."""
        return {name: str(column["dtype"]) for name, column in _COLUMNS.items()}

    @property
    def arrays(self) -> dict[str, NDArray[Any]]:
        """The columns by name, in the order of `columns()`."""
        return {name: vars(self)[name] for name in _COLUMNS}

    def rows(self) -> Iterator[tuple[object, ...]]:
        """Plain Python values, in the order of `columns()`."""
        return zip(*(values.tolist() for values in self.arrays.values()), strict=True)

    def take(self, positions: NDArray[np.integer] | NDArray[np.bool_]) -> Outcomes:
        return Outcomes(**{name: values[positions] for name, values in self.arrays.items()})

    def put(self, positions: range, part: Outcomes) -> None:
        """Overwrite the rows at `positions`, a run without gaps."""
        for name, values in self.arrays.items():
            values[positions.start : positions.stop] = part.arrays[name]

    @property
    def correct(self) -> NDArray[np.bool_]:
        return self.clean_pred == self.label

    @property
    def robust(self) -> NDArray[np.bool_]:
        return self.correct & ~self.fooled

    @property
    def counted(self) -> NDArray[np.bool_]:
        return (self.marks & Mark.LEFT_OUT) == 0

    def marked(self, mark: Mark) -> int:
        """How many examples have this mark."""
        return int(((self.marks & mark) != 0).sum())

    def __repr__(self) -> str:
        robust, broken = int(self.robust.sum()), int(self.fooled.sum())
        wrong = int((~self.correct).sum())
        return f"<Outcomes of {len(self)} examples: {robust} robust, {broken} broken, {wrong} wrong to begin with>"

    def __len__(self) -> int:
        return len(self.index)

    @overload
    def __getitem__(self, position: int) -> Outcome: ...

    @overload
    def __getitem__(self, position: slice) -> list[Outcome]: ...

    def __getitem__(self, position: int | slice) -> Outcome | list[Outcome]:
        if isinstance(position, slice):
            return [self[one] for one in range(len(self))[position]]
        return Outcome(*(values[position].item() for values in self.arrays.values()))

    def __iter__(self) -> Iterator[Outcome]:
        return (Outcome(*row) for row in self.rows())  # pyright: ignore[reportArgumentType]
