"""A table of text, which every format shows in its own way."""

from __future__ import annotations

__all__ = ["Sheet", "fitted", "percent", "visible"]

import unicodedata
from dataclasses import dataclass

_HIDDEN = {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}
"""Controls, marks that turn the direction of text, halves of characters, breaks of lines."""


@dataclass(frozen=True)
class Sheet:
    """`rows` of text under `head`; the first column names the row. `note` is a sentence below it."""

    title: str
    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    note: str = ""
    code: tuple[str, ...] = ()
    """The rows, by name, whose text is to be copied."""

    def __bool__(self) -> bool:
        return bool(self.rows)


def visible(text: str) -> str:
    """Text in which every character shows: names come from files, and must not turn or hide what stands beside them.

    >>> visible("cat\\u202egod\\n") == "cat\N{REPLACEMENT CHARACTER}god\N{REPLACEMENT CHARACTER}"
    True
    """
    if text.isprintable():
        return text
    return "".join("\N{REPLACEMENT CHARACTER}" if unicodedata.category(c) in _HIDDEN else c for c in text)


def fitted(text: str, most: int) -> str:
    """A long name without its middle: names of one family begin alike and end alike.

    >>> fitted("robustbench:cifar10/Linf/Wong2020Fast", 21)
    'robustbenc…ong2020Fast'
    """
    flat = " ".join(text.split())
    return flat if len(flat) <= most + 1 else f"{flat[: most // 2]}…{flat[-(most - most // 2) :]}"


def percent(value: float | None, digits: int = 2) -> str:
    """A share as a percentage, without the sign; empty for None."""
    return "" if value is None else f"{100 * value:.{digits}f}"
