"""Code from outside the package: `path/to/file.py:Name` and `package.module:Name`, found, run and told apart."""

from __future__ import annotations

__all__ = ["importable", "is_external", "locate", "name_of", "normalised", "require_identified", "split_stamp"]

import difflib
import functools
import importlib
import importlib.util
import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

from tmifpe.core.errors import InputError, first_line

_modules: dict[str, tuple[ModuleType, str]] = {}
"""Files that have been run, by the name of their module, and how the user wrote their path."""


def is_external(name: str) -> bool:
    """Whether a name says by itself where its code is.

    >>> is_external("my_loss.py:Hinge"), is_external("package.losses:Hinge"), is_external("tmifpe")
    (True, True, False)
    """
    return ":" in name


def split_stamp(name: str) -> tuple[str, str]:
    """A name as a user writes it, and the hash of its code, if the name is a canonical one.

    >>> split_stamp("my_loss.py:Hinge@3fa9c1d20b77"), split_stamp("me@home/my_loss.py:Hinge")
    (('my_loss.py:Hinge', '3fa9c1d20b77'), ('me@home/my_loss.py:Hinge', ''))
    """
    plain, at, stamp = name.rpartition("@")
    return (plain, stamp) if at and ":" not in stamp else (name, "")


def normalised(name: str) -> str:
    """One spelling for one path.

    >>> normalised("./a/../my_loss.py:Hinge"), normalised("package.losses:Hinge")
    ('my_loss.py:Hinge', 'package.losses:Hinge')
    """
    place, colon, attribute = name.rpartition(":")
    return f"{Path(os.path.normpath(place)).as_posix()}:{attribute}" if colon and place.endswith(".py") else name


def locate(text: str, *, again: bool = False) -> Any:
    """What `path/to/file.py:Name` or `package.module:Name` names. This runs that file or imports that module.

    A file is run once for each content that it has had, so that an edit is seen without restarting Python; `again`
    runs it every time.
    """
    place, _, name = text.rpartition(":")
    if not place or not all(part.isidentifier() for part in name.split(".")):
        raise InputError(f"cannot read {text!r}; write path/file.py:NAME or package.module:NAME")
    is_file = place.endswith(".py")
    with importable(_existing(place, text).parent if is_file else Path.cwd()):
        module = _run_file(place, text, again) if is_file else _import(place, text)
    try:
        return functools.reduce(getattr, name.split("."), module)
    except AttributeError:
        there = [known for known, value in vars(module).items() if callable(value) and not known.startswith("_")]
        near = difflib.get_close_matches(name, there, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise InputError(f"{text}: there is no {name!r} in {module.__file__ or module.__name__}{hint}") from None


def name_of(thing: Any) -> str:
    """`module:Name` of a function or class; a file that `locate` has run is named by its path."""
    while isinstance(thing, functools.partial):
        thing = thing.func
    module = getattr(thing, "__module__", None) or "builtins"
    place = _modules[module][1] if module in _modules else module
    parts = getattr(thing, "__qualname__", type(thing).__qualname__).split(".")
    return f"{place}:{'.'.join(part.strip('<>') for part in parts if part != '<locals>')}"


def require_identified(*spellings: str) -> None:
    """`InputError` if one of them names code without a known source: its runs could not be told from others'."""
    from tmifpe.core.code_stamp import UNKNOWN

    for spelling in spellings:
        if f"@{UNKNOWN}" not in spelling:
            continue
        name = re.split(r"[(=,]", spelling.partition(f"@{UNKNOWN}")[0])[-1]
        raise InputError(
            f"the source of {name} cannot be found or has been edited since it was imported, or "
            "it closes over objects other than numbers, text and tensors, so its results cannot be told apart from "
            "those of other code and are not stored; define it in a file or a notebook cell, or leave out the store"
        )


@contextmanager
def importable(folder: Path) -> Iterator[None]:
    """Within, the modules of a folder can be imported, as if Python ran a file there; after, the path is as before."""
    before = list(sys.path)
    sys.path.insert(0, str(folder))
    try:
        yield
    finally:
        sys.path[:] = before


def _existing(place: str, text: str) -> Path:
    try:
        path = Path(place).expanduser()
        if path.is_file():
            return path.resolve()
    except (OSError, ValueError, RuntimeError):  # a name too long, with a null byte, or of a user who is not there
        pass
    raise InputError(f"no such file: {place} ({text})")


def _run_file(place: str, text: str, again: bool) -> ModuleType:
    from tmifpe.core.code_stamp import source_files
    from tmifpe.core.hashing import digest
    from tmifpe.core.torchvision_repair import healed

    path = _existing(place, text)
    sources = source_files(path)
    # A name of its own, so that two files called losses.py, or two versions of one, are two modules. Where a file is
    # run every time the content stays out of it: the name is part of the stored identity of a network's layers.
    name = f"_tmifpe_factory_{digest([str(path)])}" if again else f"_tmifpe_{digest([str(path), *sources.values()])}"
    if name in _modules and not again:
        return _modules[name][0]
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None:
        raise InputError(f"cannot import {path} as Python")
    _forget([file for file in sources if file != path])
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses and torch.jit look a class's module up here
    try:
        # Compiled here, since the cache of byte code overlooks an edit within the same second.
        code = compile(sources[path], str(path), "exec", dont_inherit=True)
        healed(lambda: exec(code, module.__dict__))  # noqa: S102 - the user asked for this file to be run
    except (Exception, SystemExit) as error:  # a script that parses its own command line exits when it is run
        del sys.modules[name]
        raise InputError(f"{path} does not import: {_said(error)}") from error
    _modules[name] = (module, Path(place).as_posix())
    return module


def _forget(files: list[Path]) -> None:
    """Let the modules of these files be imported anew: they may have been edited as well."""
    names = {str(file) for file in files}
    for name, module in list(sys.modules.items()):
        if getattr(module, "__file__", None) in names:
            del sys.modules[name]
    importlib.invalidate_caches()


def _import(place: str, text: str) -> ModuleType:
    from tmifpe.core.torchvision_repair import healed

    try:
        return healed(lambda: importlib.import_module(place))
    except ModuleNotFoundError as error:
        if error.name and (place == error.name or place.startswith(f"{error.name}.")):
            raise InputError(
                f"no module {error.name!r} to import for {text!r}; write path/file.py:NAME or package.module:NAME"
            ) from error
        raise InputError(f"{place} does not import: {_said(error)}") from error
    except (Exception, SystemExit) as error:
        raise InputError(f"{place} does not import: {_said(error)}") from error


def _said(error: BaseException) -> str:
    return f"{type(error).__name__}: {first_line(error)}"
