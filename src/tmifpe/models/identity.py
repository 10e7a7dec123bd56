"""Two models are the same if their parameters and buffers are, and what their source says about the rest."""

from __future__ import annotations

__all__ = ["held_parts", "model_identity"]

import functools
import inspect
from collections.abc import Iterable
from typing import Any

from torch import Tensor, nn

from tmifpe.core.hashing import digest
from tmifpe.core.types import Model

_DEPTH = 3


def model_identity(model: Model, parts: Iterable[str] = (), depth: int = _DEPTH) -> str | None:
    """A hash of every parameter and buffer (name, dtype, shape, bytes) and of `parts`.

    `parts` says what tensors do not: the architecture's name, the hash of a factory's file. None for a callable
    without tensors and without parts, which nothing tells apart from another. `depth`: how far to follow lists and
    objects that torch does not; networks may hold each other in a ring.
    """
    extra = list(parts)
    if isinstance(model, nn.Module):
        extra += [part for name, module in model.named_modules() for part in (name, _made_as(module, depth))]
        # Repeated names, since a tensor shared by two layers belongs to both.
        named = [*model.named_parameters(remove_duplicate=False), *model.named_buffers(remove_duplicate=False)]
        return digest([*extra, *(part for pair in named for part in pair)])
    return digest(extra) if extra else None


def held_parts(model: Model) -> list[str]:
    """The identities of the networks and tensors that a function closes over, is bound to or names, also within
    lists, dictionaries, plain objects and further functions.

    A factory may return `lambda x: net(2 * x - 1)`, whose file stays the same when the weights of `net` do not.
    """
    if isinstance(model, nn.Module):
        return []
    held: list[Any] = [getattr(model, "__self__", None)]
    function: Any = model
    while isinstance(function, functools.partial):
        held += [*function.args, *function.keywords.values()]
        function = function.func
    if not inspect.isfunction(function) and not inspect.ismethod(function):
        held += list(getattr(function, "__dict__", {}).values())
        function = getattr(type(function), "__call__", None)  # noqa: B004 - its code is wanted
    if inspect.isfunction(function) or inspect.ismethod(function):
        found = inspect.getclosurevars(function)
        held += [*found.nonlocals.values(), *found.globals.values()]
    return _identities(held)


def _identities(things: Iterable[Any], depth: int = _DEPTH) -> list[str]:
    found: list[str] = []
    for thing in things:
        if isinstance(thing, Tensor):
            found.append(digest([thing]))
        elif isinstance(thing, nn.Module):
            found.append(str(model_identity(thing, depth=max(0, depth - 1))))
        elif depth and isinstance(thing, list | tuple):
            found += _identities(thing, depth - 1)
        elif depth and isinstance(thing, dict):
            found += _identities(thing.values(), depth - 1)
        elif depth and inspect.isfunction(thing):
            found += _identities(inspect.getclosurevars(thing).nonlocals.values(), depth - 1)
        elif depth and hasattr(thing, "__dict__") and not inspect.ismodule(thing) and not inspect.isclass(thing):
            found += _identities(vars(thing).values(), depth - 1)
    return found


def _made_as(module: nn.Module, depth: int) -> str:
    """What a layer is beside its tensors: its class and its plain settings (stride, slope, a defence's strength).

    What the code of a class does is not covered, nor are settings kept in other objects.
    """
    kind = type(module)
    plain = {name: value for name, value in vars(module).items() if not name.startswith("_") and _is_plain(value)}
    plain.pop("training", None)  # the toolkit sets it
    # Networks in a plain list are no submodules to torch, and still decide.
    lists = [value for name, value in vars(module).items() if isinstance(value, list | tuple | dict) and name[0] != "_"]
    hidden = _identities(lists, depth) if depth else []
    return f"{kind.__module__}.{kind.__qualname__}{sorted(plain.items())}{hidden}"


def _is_plain(value: object) -> bool:
    if isinstance(value, tuple | list):
        return all(_is_plain(inner) for inner in value)
    return value is None or isinstance(value, bool | int | float | str)
