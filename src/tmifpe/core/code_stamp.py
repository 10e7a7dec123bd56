"""A hash of the code that defines a function or class, so that edited code is never taken for the old one."""

from __future__ import annotations

__all__ = ["UNKNOWN", "code_stamp", "source_files"]

import __future__

import ast
import dataclasses
import functools
import inspect
import linecache
import sys
import types
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

from tmifpe.core.hashing import digest

UNKNOWN = "unknown"
"""The stamp of code that nothing tells apart from other code: no source, or a closure over arbitrary objects."""

_DIGITS = 12
_MOST_FILES = 64  # more than a plug-in has; the walk must not take in a whole framework
_PLAIN = (type(None), bool, int, float, complex, str, bytes, torch.dtype, torch.device)

_STANDARD = Path(dataclasses.__file__).parent

_Part: TypeAlias = str | bytes | Tensor

# Stamps of sources, by the code objects loaded from them. A file edited after its import leaves the loaded code as it
# was, and its stamp with it. The code objects are held so that their ids are not given to others.
_stamped: dict[tuple[str, tuple[int, ...]], tuple[tuple[types.CodeType, ...], str]] = {}


class _UnknownError(Exception):
    pass


def code_stamp(thing: Any) -> str:
    """12 hex digits over the source file or notebook cell that defines a function or class, with the files that it
    imports from its own folder or package, its defaults and what it closes over; `unknown` where that cannot be had.

    >>> code_stamp(code_stamp) == code_stamp(code_stamp), code_stamp(len)
    (True, 'unknown')
    """
    try:
        return digest(_definition(thing, set()))[:_DIGITS]
    except _UnknownError:
        return UNKNOWN


def source_files(path: Path) -> dict[Path, bytes]:
    """A Python file and those of its folder or package that it imports, in turn: what an edit can change."""
    root = path.parent
    while (root / "__init__.py").is_file():
        root = root.parent
    found: dict[Path, bytes] = {}
    waiting = deque([path])
    while waiting and len(found) < _MOST_FILES:
        file = waiting.popleft()
        if file not in found:
            found[file] = file.read_bytes()
            waiting += _imported_files(file, found[file], root)
    return found


def _imported_files(path: Path, source: bytes, root: Path) -> list[Path]:
    package = list(path.parent.relative_to(root).parts)
    installed = _is_installed(root)
    files: dict[Path, None] = {}
    for module in _imported_modules(source, package):
        if installed and module[0] != (*package, path.stem)[0]:
            continue  # another distribution, which has a version of its own
        for depth in range(1, len(module) + 1):  # importing a.b runs a/__init__.py, too
            stem = root.joinpath(*module[:depth])
            files |= dict.fromkeys(f for f in (stem.with_suffix(".py"), stem / "__init__.py") if f.is_file())
    return list(files)


def _imported_modules(source: bytes, package: list[str]) -> Iterator[list[str]]:
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError):
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name.split(".") for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            start = package[: len(package) - node.level + 1] if node.level else []
            module = [*start, *(node.module.split(".") if node.module else [])]
            yield from ([*module, alias.name] for alias in node.names)


def _definition(thing: Any, seen: set[int]) -> list[_Part]:
    """What a function or class is made of."""
    if id(thing) in seen:  # a class that its own methods close over, a function that calls itself
        return []
    seen.add(id(thing))
    if isinstance(thing, functools.partial):
        return [*_definition(thing.func, seen), *_parts([thing.args, thing.keywords], seen)]
    if inspect.isfunction(thing):
        return _function(thing, seen)
    if not inspect.isclass(thing):
        raise _UnknownError
    parts: list[_Part] = [thing.__qualname__]
    for base in thing.__mro__[1:]:
        parts += _reference(base, seen)
    functions = [function for value in vars(thing).values() if (function := _own_function(value))]
    if not functions:
        file = getattr(sys.modules.get(thing.__module__), "__file__", None)
        if file is None:
            raise _UnknownError
        plain = {name: value for name, value in vars(thing).items() if isinstance(value, _PLAIN) and name[:2] != "__"}
        parts += [_source(file, ()), *_parts(plain, seen)]
    for function in functions:
        parts += _function(function, seen)
    return parts


def _own_function(value: Any) -> types.FunctionType | None:
    """A method that someone wrote: dataclasses and protocols add their own."""
    function = getattr(value, "__func__", getattr(value, "fget", value))
    if not inspect.isfunction(function):
        return None
    file = function.__code__.co_filename
    added = file == "<string>" or file.startswith("<frozen ") or Path(file).parent == _STANDARD
    return None if added else function


def _function(function: types.FunctionType, seen: set[int]) -> list[_Part]:
    code = function.__code__
    # The line tells apart two functions of one name in one file.
    parts: list[_Part] = [function.__qualname__, _source(code.co_filename, (code,)), str(code.co_firstlineno)]
    if "<" in function.__qualname__:  # lambdas and inner functions share a name and perhaps a line
        parts += _instructions(code)
    parts += _parts([function.__defaults__, function.__kwdefaults__], seen)
    try:
        held = [cell.cell_contents for cell in function.__closure__ or ()]
    except ValueError:  # not filled yet
        raise _UnknownError from None
    if not Path(code.co_filename).is_file():
        # A cell says nothing of the names that it takes from other cells.
        names = [name for name in _names(code) if name in function.__globals__]
        held += [function.__globals__[name] for name in sorted(names)]
    return parts + _parts(held, seen)


def _names(code: types.CodeType) -> set[str]:
    inner = (const for const in code.co_consts if isinstance(const, types.CodeType))
    return {*code.co_names, *(name for one in inner for name in _names(one))}


def _instructions(code: types.CodeType) -> list[_Part]:
    parts: list[_Part] = [code.co_code, repr((code.co_firstlineno, code.co_names, code.co_varnames, code.co_freevars))]
    for const in code.co_consts:
        parts += _instructions(const) if isinstance(const, types.CodeType) else [repr(const)]
    return parts


def _parts(value: Any, seen: set[int]) -> list[_Part]:
    """A value that code depends on, as far as it is plain."""
    if isinstance(value, _PLAIN):
        return [type(value).__name__, repr(value)]
    if isinstance(value, Tensor):
        return [value]
    if isinstance(value, np.ndarray) and not value.dtype.hasobject:
        return [str(value.dtype), str(value.shape), value.tobytes()]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        value = [type(value), *(getattr(value, field.name) for field in dataclasses.fields(value))]
    if isinstance(value, dict):
        value = [*value, *value.values()]
    if isinstance(value, tuple | list):
        return [str(len(value)), *(part for inner in value for part in _parts(inner, seen))]
    return _reference(value, seen)


def _reference(thing: Any, seen: set[int]) -> list[_Part]:
    """A module, function or class that code names: by its name if a library has it, else by its own source."""
    if inspect.ismodule(thing):
        return [thing.__name__]
    if isinstance(thing, functools.partial):
        return _definition(thing, seen)
    if not (inspect.isbuiltin(thing) or inspect.isfunction(thing) or inspect.isclass(thing)):
        raise _UnknownError
    module = str(thing.__module__)
    file = getattr(sys.modules.get(module), "__file__", None)
    top, _, _ = module.partition(".")
    known = top in ("tmifpe", *sys.stdlib_module_names) or (file is not None and _is_installed(Path(file)))
    if known or inspect.isbuiltin(thing):
        return [f"{module}.{thing.__qualname__}"]
    return _definition(thing, seen)


def _source(filename: str, codes: tuple[types.CodeType, ...]) -> str:
    """The stamp of the file or cell that these code objects were compiled from."""
    key = (filename, tuple(id(code) for code in codes))
    if not codes or key not in _stamped:
        path = Path(filename)
        try:
            texts = list(source_files(path).values()) if path.is_file() else [_cell(filename)]
        except OSError:
            raise _UnknownError from None
        if not texts[0] or not _compiles_to(texts[0], filename, codes):
            raise _UnknownError
        stamp = digest(texts)
        if not codes:
            return stamp
        _stamped[key] = (codes, stamp)
    return _stamped[key][1]


def _cell(filename: str) -> bytes:
    return "".join(linecache.getlines(filename)).encode()


def _compiles_to(source: bytes, filename: str, codes: tuple[types.CodeType, ...]) -> bool:
    """Whether the loaded code is what the source says now, and not from before an edit."""
    for code in codes:
        flags = (code.co_flags & __future__.annotations.compiler_flag) | ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
        try:
            waiting = [compile(source, filename, "exec", flags, dont_inherit=True)]
        except (SyntaxError, ValueError):
            return False
        while waiting and code != waiting[-1]:
            waiting += [const for const in waiting.pop().co_consts if isinstance(const, types.CodeType)]
        if not waiting:
            return False
    return True


def _is_installed(path: Path) -> bool:
    return not {"site-packages", "dist-packages"}.isdisjoint(path.parts)
