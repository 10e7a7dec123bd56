"""`path/file.py:factory` and `package.module:factory`: a model from the user's own code, which this runs."""

from __future__ import annotations

__all__ = ["factory"]

import importlib
import importlib.util
import inspect
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

from torch import nn

from tmifpe.core.errors import InputError
from tmifpe.core.hashing import digest, hash_file
from tmifpe.core.torchvision_repair import healed
from tmifpe.models.source import Asked, Loaded, existing
from tmifpe.models.weights import load_weights


def factory(asked: Asked) -> Loaded:
    """Call `factory()`; it returns an `nn.Module`, or any callable to logits. A module itself is taken as it is.

    The module may state `classes` and `input_shape`; the hash of the file is part of the model's identity.
    """
    place, _, name = asked.where.rpartition(":")
    if not place or not name.isidentifier():
        raise InputError(f"cannot read {asked.where!r}; write path/file.py:factory or package.module:factory")
    is_file = place.endswith(".py")
    folder = existing(place, asked.where).resolve().parent if is_file else Path.cwd()
    with _importable(folder):
        module = _run_file(Path(place).expanduser()) if is_file else _import(place, asked.where)
        made = _call(module, name, asked.where)
    if asked.weights is not None:
        if not isinstance(made, nn.Module):
            raise InputError(
                f"{asked.where} gave a {type(made).__name__}, which takes no --weights; return an nn.Module"
            )
        load_weights(made, asked.weights, asked.where)
    source = getattr(module, "__file__", None)
    stamp = digest([name, hash_file(Path(source)) if source else place])
    return Loaded(made, stamp, _stated_classes(made), _stated_shape(made))


@contextmanager
def _importable(folder: Path) -> Iterator[None]:
    """Files beside the user's import each other, as they would if Python ran them; afterwards the path is as before."""
    before = list(sys.path)
    sys.path.insert(0, str(folder))
    try:
        yield
    finally:
        sys.path[:] = before


def _run_file(path: Path) -> ModuleType:
    # A name of its own, so that two files called model.py are two modules.
    name = f"_tmifpe_factory_{digest([str(path.resolve())])}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise InputError(f"cannot import {path} as Python")
    module, loader = importlib.util.module_from_spec(spec), spec.loader
    sys.modules[name] = module  # dataclasses and torch.jit look a class's module up here
    try:
        healed(lambda: loader.exec_module(module))
    except (Exception, SystemExit) as error:  # a script that parses its own command line exits when imported
        del sys.modules[name]
        raise InputError(f"{path} does not import: {_say(error)}") from error
    return module


def _import(place: str, text: str) -> ModuleType:
    try:
        return healed(lambda: importlib.import_module(place))
    except ModuleNotFoundError as error:
        if error.name and (place == error.name or place.startswith(f"{error.name}.")):
            raise InputError(
                f"no module {error.name!r} to import for {text!r}; write path/file.py:factory or "
                "package.module:factory, or see `tmifpe list models`"
            ) from error
        raise InputError(f"{place} does not import: {_say(error)}") from error
    except (Exception, SystemExit) as error:
        raise InputError(f"{place} does not import: {_say(error)}") from error


def _call(module: ModuleType, name: str, text: str) -> Any:
    if not hasattr(module, name):
        raise InputError(
            f"{text}: there is no {name!r} in {module.__name__ if not module.__file__ else module.__file__}"
        )
    thing = getattr(module, name)
    if isinstance(thing, nn.Module):
        return thing
    if not callable(thing):
        raise InputError(f"{text} is a {type(thing).__name__}; it must be a function without arguments, or a module")
    try:
        inspect.signature(thing).bind()
    except TypeError as error:
        raise InputError(f"{text} must be callable without arguments: {error}") from error
    except ValueError:  # a builtin without signature: try it
        pass
    try:
        made = healed(thing)
    except (Exception, SystemExit) as error:
        raise InputError(f"{text} failed: {_say(error)}") from error
    if not callable(made):
        raise InputError(f"{text} must return a model, got {type(made).__name__}")
    return made


def _stated_classes(made: Any) -> int | None:
    stated = getattr(made, "classes", None)
    return stated if isinstance(stated, int) and stated > 0 else None


def _stated_shape(made: Any) -> tuple[int, int, int] | None:
    stated = getattr(made, "input_shape", None)
    if isinstance(stated, tuple | list) and len(stated) == 3 and all(isinstance(side, int) for side in stated):
        return (stated[0], stated[1], stated[2])
    return None


def _say(error: BaseException) -> str:
    return f"{type(error).__name__}: {(str(error).splitlines() or [''])[0][:200]}"
