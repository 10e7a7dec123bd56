"""Operations that only move values: reshape, permute, slice, split, concatenate, pad."""

from __future__ import annotations

__all__ = ["MOVES"]

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from tmifpe.certificates import affine
from tmifpe.certificates.call import Call, Refused, Variable, variable


def _same(call: Call) -> Variable:
    return call.x


def _to_copy(call: Call) -> Variable:
    if call.kwargs.get("dtype") not in (None, torch.float32, torch.float64):
        raise Refused("rounds to another dtype")
    return call.x


def _view(call: Call) -> Variable:
    return call.add(affine.reshaped(call.x.number, call.x.shape, call.shape))


def _moved(call: Call, move: Callable[[Tensor], Tensor], offset: Tensor | None = None) -> Variable:
    return call.add(affine.moved((call.x.number,), (call.x.shape,), call.shape, move, offset))


def _permute(call: Call) -> Variable:
    dims = [d % (len(call.x.shape) + 1) for d in call.args[1]]
    if dims[0]:
        raise Refused("mixes images of a batch")
    return _moved(call, lambda x: x.permute(dims))


def _transpose(call: Call) -> Variable:
    first, second = call.dimension(call.args[1]), call.dimension(call.args[2])
    return _moved(call, lambda x: x.transpose(first, second))


def _slice(call: Call) -> Variable:
    dim = call.get(1, "dim", 0) % (len(call.x.shape) + 1)
    start, end, step = call.get(2, "start", None), call.get(3, "end", None), call.get(4, "step", 1)
    if dim == 0:
        if (start or 0) == 0 and (end is None or end >= call.batch) and step == 1:
            return call.x
        raise Refused("mixes images of a batch")
    place = (*(slice(None) for _ in range(dim)), slice(start, end, step))
    return _moved(call, lambda x: x[place])


def _select(call: Call) -> Variable:
    dim, number = call.dimension(call.args[1]), call.args[2]
    return _moved(call, lambda x: x.select(dim, number))


def _split(call: Call) -> list[Variable]:
    sizes, dim = call.args[1], call.get(2, "dim", 0) % (len(call.x.shape) + 1)
    if dim == 0:
        if sizes not in (call.batch, [call.batch]):
            raise Refused("mixes images of a batch")
        return [call.x]
    side = call.x.shape[dim - 1]
    sizes = [min(sizes, side - at) for at in range(0, side, sizes)] if isinstance(sizes, int) else list(sizes)
    pieces, at = [], 0
    for size in sizes:
        after = (*call.x.shape[: dim - 1], size, *call.x.shape[dim:])
        move = lambda x, at=at, size=size: x.narrow(dim, at, size)  # noqa: E731
        pieces.append(call.add(affine.moved((call.x.number,), (call.x.shape,), after, move)))
        at += size
    return pieces


def _cat(call: Call) -> Variable:
    parts = [variable(part) for part in call.args[0]]
    if len(parts) == 1:
        return parts[0]
    dim = call.dimension(call.get(1, "dim", 0), of=len(parts[0].shape) + 1)
    shapes = [part.shape for part in parts]
    return call.add(affine.moved([part.number for part in parts], shapes, call.shape, lambda *x: torch.cat(x, dim=dim)))


def _pad(call: Call) -> Variable:
    sides, value = list(call.args[1]), float(call.get(2, "value", 0.0))
    if len(sides) > 2 * len(call.x.shape) or min(sides) < 0:
        raise Refused("cuts images or mixes them")
    offset = None
    if value:
        offset = F.pad(torch.zeros(call.x.shape, dtype=torch.float64, device=call.device), sides, value=value)
    return _moved(call, lambda x: F.pad(x, sides), offset)


MOVES: dict[str, Callable[[Call], Any]] = {
    **dict.fromkeys(("clone", "detach", "alias", "lift_fresh_copy"), _same),
    "_to_copy": _to_copy,
    **dict.fromkeys(("view", "_unsafe_view", "reshape", "squeeze", "unsqueeze"), _view),
    "permute": _permute,
    "transpose": _transpose,
    "slice": _slice,
    "select": _select,
    **dict.fromkeys(("split", "split_with_sizes"), _split),
    "cat": _cat,
    "constant_pad_nd": _pad,
}
