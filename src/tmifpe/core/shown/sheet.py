"""A table of text, which every format shows in its own way."""

from __future__ import annotations

__all__ = ["Sheet", "csv_text", "fitted", "percent", "visible"]

import re
import unicodedata
from dataclasses import dataclass

_FORMULA = re.compile("[=+\\-@\t\r\n\uff1d\uff0b\uff0d\uff20]")  # the last four are the same in full width
_NUMBER = re.compile(r"[+-]?[0-9]*\.?[0-9]+(?:e[+-]?[0-9]+)?|-inf", re.IGNORECASE)
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


def csv_text(text: str) -> str:
    """Text as a cell of a CSV file: a spreadsheet takes what begins as these do for a formula, and would run it (OWASP,
    "CSV injection"). Numbers are numbers.

    >>> csv_text("=cmd|' /C calc'!A0"), csv_text("-1.5"), csv_text("-x.png"), csv_text("a.png")
    ("'=cmd|' /C calc'!A0", '-1.5', "'-x.png", 'a.png')
    """
    return f"'{visible(text)}" if _FORMULA.match(text) and not _NUMBER.fullmatch(text) else visible(text)


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
