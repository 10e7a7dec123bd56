"""TOML with the lines that its keys stand in, for errors that say where."""

from __future__ import annotations

__all__ = ["Document", "read_document"]

import re
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tmifpe.core.errors import InputError, shown

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

_HEADER = re.compile(r"\s*(\[\[?)\s*([^\[\]#]+?)\s*\]\]?\s*(?:#.*)?")
_KEY = re.compile(r"\s*[\"']?([\w-]+)[\"']?\s*=")
_LARGEST = 16 << 20
PROJECT = "pyproject.toml"
_TABLE = "tool.tmifpe"


@dataclass(frozen=True)
class Document:
    """The plan in a file: a file of its own, or the table [tool.tmifpe] of a pyproject.toml."""

    path: Path
    content: dict[str, Any]
    lines: dict[tuple[str, int, str], int] = field(repr=False)
    """By table, which of several tables of that name, and key ("" for the heading)."""

    def where(self, table: str = "", nth: int = 0, key: str = "") -> str:
        """`plan.toml, line 7`, as near as it is known."""
        line = self.lines.get((table, nth, key)) or self.lines.get((table, nth, ""))
        return f"{self.path}, line {line}" if line else str(self.path)


def read_document(path: Path) -> Document:
    text = _read(path)
    try:
        content = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise InputError(f"{path} is not TOML: {error}") from error
    prefix = ""
    if path.name == PROJECT:
        content, prefix = content.get("tool", {}).get("tmifpe"), _TABLE
        if not isinstance(content, dict):
            raise InputError(f"{path} has no table [{_TABLE}]; name a plan file, or write one with tmifpe plan init")
    return Document(path, content, _lines(text, prefix))


def _read(path: Path) -> str:
    try:
        if not path.is_file():
            raise InputError(f"no such file: {path}; tmifpe plan init writes a plan to begin with")
        if path.stat().st_size > _LARGEST:
            raise InputError(f"{path} has more than {_LARGEST >> 20} MiB, too many for a plan")
        return path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"cannot read {shown(str(path))}: {error}") from error


def _lines(text: str, prefix: str) -> dict[tuple[str, int, str], int]:
    found: dict[tuple[str, int, str], int] = {}
    counts: dict[str, int] = {}
    table, nth, inside = "", 0, not prefix
    for number, line in enumerate(text.splitlines(), start=1):
        if header := _HEADER.fullmatch(line):
            name = header[2]
            inside = not prefix or name == prefix or name.startswith(f"{prefix}.")
            table = name[len(prefix) :].lstrip(".") if inside else name
            nth = counts[table] = counts.get(table, -1) + 1
            if inside:
                found[table, nth, ""] = number
        elif inside and (key := _KEY.match(line)):
            found.setdefault((table, nth, key[1]), number)
    return found
