"""`path/file.py:factory` and `package.module:factory`: a model from the user's own code, which this runs."""

from __future__ import annotations

__all__ = ["factory", "plugged_in"]

import inspect
import sys
from pathlib import Path
from typing import Any

from torch import nn

from tmifpe.core.code_stamp import code_stamp, source_files
from tmifpe.core.errors import InputError, raised
from tmifpe.core.extensions import importable, locate
from tmifpe.core.hashing import digest, hash_file
from tmifpe.core.torchvision_repair import healed
from tmifpe.models.source import Asked, Loaded, Source
from tmifpe.models.weights import load_weights


def factory(asked: Asked) -> Loaded:
    """Call `factory()`; it returns an `nn.Module`, or any callable to logits. A module itself is taken as it is.

    The module may state `classes` and `input_shape`; the hash of the file is part of the model's identity.
    """
    place, _, name = asked.where.rpartition(":")
    thing = locate(asked.where, again=True)  # a module in the file is made anew for every load
    file = place if place.endswith(".py") else getattr(sys.modules.get(place), "__file__", None)
    with importable(Path(place).expanduser().resolve().parent if place.endswith(".py") else Path.cwd()):
        made = _call(thing, asked.where)
    _load_weights(made, asked, asked.where)
    return Loaded(made, digest([name, *_sources(file or place)]), _stated_classes(made), _stated_shape(made))


def _sources(file: str) -> list[str | bytes]:
    path = Path(file).expanduser().resolve()
    if not path.is_file():
        return [file]
    helpers = [source for helper, source in source_files(path).items() if helper != path]
    return [hash_file(path), *helpers]


def plugged_in(thing: Any, name: str) -> Source:
    """A model source from outside: a function that makes a network, of what follows the colon if it takes that."""

    def source(asked: Asked) -> Loaded:
        made = _call(thing, name, *([asked.where] if asked.where else []))
        _load_weights(made, asked, name)
        stamp = digest([name, asked.where, code_stamp(thing)])
        return Loaded(made, stamp, _stated_classes(made), _stated_shape(made))

    return source


def _load_weights(made: Any, asked: Asked, text: str) -> None:
    if asked.weights is None:
        return
    if not isinstance(made, nn.Module):
        raise InputError(f"{text} gave a {type(made).__name__}, which takes no `weights`; return an nn.Module")
    load_weights(made, asked.weights, text)


def _call(thing: Any, text: str, *given: str) -> Any:
    """The network that a factory makes of what it is given; a network itself is taken as it is."""
    if isinstance(thing, nn.Module):
        return thing
    if not callable(thing):
        raise InputError(f"{text} is a {type(thing).__name__}; it must be a function without arguments, or a module")
    try:
        inspect.signature(thing).bind(*given)
    except TypeError as error:
        how = f"with {', '.join(map(repr, given))}" if given else "without arguments"
        raise InputError(f"{text} must be callable {how}: {error}") from error
    except ValueError:  # a builtin without signature: try it
        pass
    try:
        made = healed(lambda: thing(*given))
    except (Exception, SystemExit) as error:
        raise InputError(f"{text} failed: {raised(error)}") from error
    if not callable(made):
        raise InputError(f"{text} must return a model, got {type(made).__name__}")
    return made


def _stated_classes(made: Any) -> int | None:
    stated = getattr(made, "classes", None)
    return stated if isinstance(stated, int) and stated > 0 else None


def _stated_shape(made: Any) -> tuple[int, ...] | None:
    stated = getattr(made, "input_shape", None)
    if isinstance(stated, tuple | list) and stated and all(isinstance(side, int) for side in stated):
        return tuple(stated)
    return None
