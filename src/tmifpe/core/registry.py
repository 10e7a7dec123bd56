"""Names to things. Entries are "module:attribute" strings, imported when first asked for."""

from __future__ import annotations

__all__ = ["Entry", "Registry"]

import importlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Generic, TypeVar, cast

from tmifpe.core.errors import did_you_mean

T = TypeVar("T")


@dataclass(frozen=True)
class Entry:
    """One line of a catalogue: where the thing lives, and one sentence about it."""

    target: str
    summary: str


class Registry(Generic[T]):
    """A catalogue of one kind of thing, e.g. losses.

    Targets are lazy so that an optional dependency is imported only by those who use it.
    """

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self._entries: dict[str, Entry] = {}
        self._loaded: dict[str, T] = {}

    def add(self, name: str, target: str | T, summary: str) -> None:
        """Register `target` (a "module:attribute" string, or the object itself) under `name`."""
        if name in self._entries:
            raise ValueError(f"{self.kind} {name!r} is registered twice")
        if isinstance(target, str):
            self._entries[name] = Entry(target, summary)
        else:
            self._entries[name] = Entry("", summary)
            self._loaded[name] = target

    def get(self, name: str) -> T:
        """The thing of that name; an unknown name is an `InputError` that suggests the nearest."""
        if not isinstance(name, str) or name not in self._entries:
            raise did_you_mean(self.kind, name, self._entries)
        if name not in self._loaded:
            module, _, attribute = self._entries[name].target.partition(":")
            self._loaded[name] = cast(T, getattr(importlib.import_module(module), attribute))
        return self._loaded[name]

    def summary(self, name: str) -> str:
        return self._entries[name].summary

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __contains__(self, name: object) -> bool:
        return name in self._entries

    def __len__(self) -> int:
        return len(self._entries)
