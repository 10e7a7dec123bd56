"""Names to things: the package's own, imported on first use, and those of plug-ins, files and notebooks."""

from __future__ import annotations

__all__ = ["Entry", "Registry"]

import functools
import importlib
import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Generic, TypeVar, cast

from tmifpe.core.errors import InputError, did_you_mean, first_line, shown
from tmifpe.core.extensions import is_external, locate, name_of, normalised, split_stamp

T = TypeVar("T")
D = TypeVar("D", bound=Callable[..., Any])


@dataclass(frozen=True)
class Entry:
    """One line of a catalogue: where the thing lives, and one sentence about it."""

    target: str
    summary: str


def _as_it_is(thing: Any, name: str) -> Any:  # noqa: ARG001
    return thing


class Registry(Generic[T]):
    """A catalogue of one kind of thing, e.g. losses.

    The package's own entries are "module:attribute" strings, lazy so that an optional dependency is imported only by
    those who use it. Others come from outside: registered by a decorator, from an entry point of the group
    `tmifpe.<group>`, or named by where their code is (`file.py:Name`). Their canonical names end in `@` and a hash
    of that code: what is stored under such a name is never the result of other code.

    admit: from what was found outside, and its name, to an entry; raises `InputError` if it cannot be one.
    fits: whether something found outside is of this kind at all, where a name may be of several.
    any_case: whether PGD stands for pgd, where nothing else is called PGD.
    """

    def __init__(
        self,
        kind: str,
        group: str = "",
        admit: Callable[[Any, str], T] = _as_it_is,
        fits: Callable[[Any], bool] = callable,
        *,
        any_case: bool = False,
    ) -> None:
        self.kind = kind
        self._group = group
        self._admit, self._fits, self._any_case = admit, fits, any_case
        self._entries: dict[str, Entry] = {}
        self._loaded: dict[str, T] = {}
        self._registered: dict[str, Any] = {}
        # By canonical name. Versions of other code stay, so that an attack ends with the code that it began with.
        self._outside: dict[str, T] = {}
        self._canonical: dict[Any, str] = {}
        self.changes = 0  # how often a canonical name was given to something: what is kept by name is of use until then
        self._origin: dict[Any, Any] = {}  # of entries that `admit` made from something else

    def add(self, name: str, target: str | T, summary: str) -> None:
        """Register `target` (a "module:attribute" string, or the object itself) as one of the package's own."""
        if name in self._entries:
            raise ValueError(f"{self.kind} {name!r} is registered twice")
        if isinstance(target, str):
            self._entries[name] = Entry(target, summary)
        else:
            self._entries[name] = Entry("", summary)
            self._loaded[name] = target

    def register(self, name: str) -> Callable[[D], D]:
        """A decorator that makes a function or class known by `name` for as long as Python runs.

        It may run again, as cells of a notebook do: the newer definition replaces the older one.
        """
        if not isinstance(name, str) or not name.replace("-", "_").isidentifier():
            raise InputError(f"the name of a {self.kind} must be letters, digits, _ and -, got {shown(name)}")
        if name in self._entries:
            raise InputError(f"{name!r} is a {self.kind} of tmifpe itself; choose another name")

        def keep(thing: D) -> D:
            self.adopt(thing, name)
            self._registered[name] = thing
            return thing

        return keep

    def adopt(self, thing: Any, name: str = "") -> str:
        """The canonical name of something from outside, from which `get` finds it again in this process."""
        from tmifpe.core.code_stamp import UNKNOWN, code_stamp

        if not (inspect.isclass(thing) or inspect.isroutine(thing) or isinstance(thing, functools.partial)):
            raise InputError(f"a {self.kind} must be a function or a class, got {shown(thing)}")
        thing = self._origin.get(thing, thing)
        known = self._canonical.get(thing, "")
        name = name or split_stamp(known)[0] or name_of(thing)
        stamp = code_stamp(thing)
        if stamp == UNKNOWN:  # nothing tells it from others but that it is this object
            if known.startswith(f"{name}@{UNKNOWN}"):
                return known
            stamp = f"{UNKNOWN}-{len(self._outside) + 1}"
        canonical = f"{name}@{stamp}"
        # The same code may have been run again, and what it made then may hold what has changed since: the later wins.
        if canonical not in self._outside or self._origin[self._outside[canonical]] is not thing:
            self._outside[canonical] = self._admit(thing, name)
            self._origin[self._outside[canonical]] = thing
            self.changes += 1
        self._canonical[thing] = canonical
        return canonical

    def name_for(self, cls: Any) -> str:
        """The canonical name of a class of this kind: its `name` if it is the package's own."""
        return cls.name if cls.__module__.startswith("tmifpe.") else self.adopt(cls)

    def get(self, name: str) -> T:
        """The thing of that name; an unknown name is an `InputError` that suggests the nearest."""
        return self._find(name)[1]

    def canonical(self, name: str) -> str:
        """The name as it is stored and hashed: with a hash of the code, if that is not the package's own."""
        return self._find(name)[0]

    def _find(self, name: str) -> tuple[str, T]:
        if isinstance(name, str) and name in self._entries:
            return name, self._load(name)
        if isinstance(name, str) and name in self._outside:
            return name, self._outside[name]
        plain, stamp = split_stamp(normalised(name)) if isinstance(name, str) else ("", "")
        thing = self._from_outside(plain)
        if thing is None and self._lower(plain) in self._entries:
            return self._lower(plain), self._load(self._lower(plain))
        if thing is None:
            raise did_you_mean(self.kind, name, self)
        canonical = self.adopt(thing, plain)
        if stamp and canonical != f"{plain}@{stamp}":
            now = split_stamp(canonical)[1]
            raise InputError(f"the code of {self.kind} {plain!r} has changed since: it was @{stamp}, now it is @{now}")
        return canonical, self._outside[canonical]

    def _lower(self, name: str) -> str:
        return name.lower() if self._any_case else name

    def _load(self, name: str) -> T:
        if name not in self._loaded:
            module, _, attribute = self._entries[name].target.partition(":")
            self._loaded[name] = cast(T, getattr(importlib.import_module(module), attribute))
        return self._loaded[name]

    def _from_outside(self, plain: str) -> Any:
        if plain in self._registered:
            return self._registered[plain]
        if is_external(plain):
            return locate(plain)
        points = self._points().get(plain, [])
        if len(points) > 1:
            where = ", ".join(f"{point.value} ({_package(point)})" for point in points)
            raise InputError(f"several packages have a {self.kind} {plain!r}; write one of {where}")
        return self._open(points[0]) if points else None

    def _open(self, point: EntryPoint) -> Any:
        try:
            return point.load()
        except (Exception, SystemExit) as error:  # it is anybody's code
            said = f"{type(error).__name__}: {first_line(error)}"
            raise InputError(f"{self.kind} {point.name!r} of {_package(point)} does not import: {said}") from error

    def _points(self) -> dict[str, list[EntryPoint]]:
        """What installed packages offer, by name. Nothing of theirs is imported, so a broken one does no harm here."""
        found: dict[str, dict[str, EntryPoint]] = {}
        for point in entry_points(group=f"tmifpe.{self._group}") if self._group else ():
            if point.name not in self._entries:  # a name of tmifpe's own keeps its meaning
                found.setdefault(point.name, {})[point.value] = point
        return {name: list(points.values()) for name, points in found.items()}

    def summary(self, name: str) -> str:
        if name in self._entries:
            return self._entries[name].summary
        if name in self._registered:
            return (self._registered[name].__doc__ or "registered in this process").strip().splitlines()[0]
        return f"from {', '.join(_package(point) for point in self._points()[name])}"

    def __iter__(self) -> Iterator[str]:
        return iter(dict.fromkeys([*self._entries, *self._registered, *self._points()]))

    def __contains__(self, name: object) -> bool:
        """Whether `get` finds something of this kind. For `file.py:Name` that runs the file."""
        if not isinstance(name, str):
            return False
        plain, _ = split_stamp(name)
        known = name in self._entries or self._lower(name) in self._entries
        if known or name in self._outside or plain in self._registered:
            return True
        return self._fits(locate(plain)) if is_external(plain) else plain in self._points()

    def __len__(self) -> int:
        return len(list(iter(self)))


def _package(point: EntryPoint) -> str:
    return f"{point.dist.name} {point.dist.version}" if point.dist is not None else point.value
