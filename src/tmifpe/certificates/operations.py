"""The operations that bounds are known for, by the name that torch dispatches them under."""

from __future__ import annotations

__all__ = ["OPERATIONS", "Call", "Refused", "Variable"]

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from tmifpe.certificates import affine
from tmifpe.certificates.max_pool import MaxPool
from tmifpe.certificates.node import Node
from tmifpe.certificates.piecewise import Piecewise


class Refused(Exception):
    """No bounds are known for an operation; says why, in words that follow "which"."""


@dataclass(frozen=True)
class Variable:
    """A node of the network, by number; `shape` leaves out the batch."""

    number: int
    shape: tuple[int, ...]


@dataclass(frozen=True)
class Call:
    """An operation in a traced pass: its arguments, the shape of its result with the batch, and where nodes go."""

    args: Sequence[Any]
    kwargs: dict[str, Any]
    result: tuple[int, ...]
    batch: int
    device: torch.device
    add: Callable[[Node], Variable]

    def get(self, place: int, name: str, default: Any) -> Any:
        return self.args[place] if len(self.args) > place else self.kwargs.get(name, default)

    @property
    def x(self) -> Variable:
        """The first argument, which must be a node."""
        return variable(self.args[0])

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the result, without the batch."""
        if not self.result or self.result[0] != self.batch:
            raise Refused("mixes images of a batch")
        return self.result[1:]

    def constant(self, value: Any) -> Tensor:
        """A weight or a number in float64, exactly."""
        if not isinstance(value, Tensor | int | float):
            raise Refused("multiplies or divides by something that depends on the image")
        return torch.as_tensor(value, device=self.device).double()

    def dimension(self, number: int, of: int | None = None) -> int:
        """A dimension of the first argument, counted from 0, the batch."""
        sides = len(self.x.shape) + 1 if of is None else of
        number = number % sides
        if number == 0:
            raise Refused("mixes images of a batch")
        return number


def variable(value: Any) -> Variable:
    if not isinstance(value, Variable):
        raise Refused("takes its values from elsewhere")
    return value


def _for_image(call: Call, node: Variable, value: Any) -> Tensor:
    """A constant that meets an image, without the batch."""
    found = call.constant(value)
    if found.dim() > len(call.shape):
        if found.shape[0] != 1:
            raise Refused("treats the images of a batch differently")
        found = found[0]
    if node.shape != call.shape:
        raise Refused("makes larger images")
    return found


# Layers with weights


def _matmul(call: Call, x: Any, weight: Tensor, bias: Any) -> Variable:
    offset = None if bias is None else call.constant(bias)
    return call.add(affine.matmul(variable(x).number, call.shape, weight, offset))


def _addmm(call: Call) -> Variable:
    bias, x, weight = call.args
    if call.kwargs.get("beta", 1) != 1 or call.kwargs.get("alpha", 1) != 1:
        raise Refused("scales its parts")
    return _matmul(call, x, call.constant(weight), bias)


def _mm(call: Call) -> Variable:
    return _matmul(call, call.args[0], call.constant(call.args[1]), None)


def _linear(call: Call) -> Variable:
    return _matmul(call, call.args[0], call.constant(call.args[1]).t(), call.get(2, "bias", None))


def _convolution(call: Call) -> Variable:
    _, weight, bias, stride, padding, dilation, transposed, _, groups = call.args
    if transposed or len(call.x.shape) != 3:
        raise Refused("is transposed or not of two dimensions")
    weights = call.constant(weight), None if bias is None else call.constant(bias)
    shapes = call.x.shape, call.shape
    return call.add(affine.convolution(call.x.number, shapes, *weights, stride, padding, dilation, groups))


def _batch_norm(call: Call) -> Variable:
    """weight * (x - mean) / sqrt(var + eps) + bias."""
    if len(call.args) == 8 and call.args[5]:
        raise Refused("is in train mode")
    _, weight, bias, mean, var = call.args[:5]
    if mean is None or var is None:
        raise Refused("keeps no averages")
    gain = (call.constant(var) + float(call.args[-1])).rsqrt()
    gain = gain if weight is None else gain * call.constant(weight)
    offset = -call.constant(mean) * gain
    size = offset.abs()
    if bias is not None:
        offset, size = offset + call.constant(bias), size + call.constant(bias).abs()
    sides = (-1, *(1 for _ in call.x.shape[1:]))
    gain, offset, size = (values.view(sides) for values in (gain, offset, size))
    # Torch multiplies out in either order and takes the root in its own precision: ten roundings cover both.
    return call.add(affine.scaled(call.x.number, call.shape, gain, offset, size, terms=10))


# Sums, differences and multiples


def _scaled(call: Call, node: Variable, gain: Tensor, offset: Tensor | None = None) -> Variable:
    return call.add(affine.scaled(node.number, call.shape, gain, offset, None))


def _add(call: Call, sign: float = 1.0) -> Variable:
    first, second = call.args[:2]
    sign *= float(call.kwargs.get("alpha", 1))
    if isinstance(first, Variable) and isinstance(second, Variable):
        if first.shape != second.shape:
            raise Refused("adds images of different shapes")
        return call.add(affine.combination((first.number, second.number), (first.shape, second.shape), sign))
    if isinstance(first, Variable):
        return _scaled(call, first, call.constant(1.0), sign * _for_image(call, first, second))
    node = variable(second)
    return _scaled(call, node, call.constant(sign), _for_image(call, node, first))


def _sub(call: Call) -> Variable:
    return _add(call, -1.0)


def _rsub(call: Call) -> Variable:
    if call.kwargs.get("alpha", 1) != 1:
        raise Refused("scales its parts")
    return _scaled(call, call.x, call.constant(-1.0), _for_image(call, call.x, call.args[1]))


def _mul(call: Call) -> Variable:
    first, second = call.args[:2]
    node, other = (first, second) if isinstance(first, Variable) else (variable(second), first)
    return _scaled(call, node, _for_image(call, node, other))


def _div(call: Call) -> Variable:
    if call.kwargs.get("rounding_mode") is not None:
        raise Refused("rounds")
    return _scaled(call, call.x, 1 / _for_image(call, call.x, call.args[1]))


def _neg(call: Call) -> Variable:
    return _scaled(call, call.x, call.constant(-1.0))


# Averages


def _average(call: Call, pool: Callable[[Tensor], Tensor], terms: int) -> Variable:
    return call.add(affine.average(call.x.number, (call.x.shape, call.shape), pool, terms + 2))


def _avg_pool2d(call: Call) -> Variable:
    kernel = call.args[1]
    stride, padding = call.get(2, "stride", []) or kernel, call.get(3, "padding", 0)
    rest = call.get(4, "ceil_mode", False), call.get(5, "count_include_pad", True), call.get(6, "divisor_override", None)
    return _average(call, lambda x: F.avg_pool2d(x, kernel, stride, padding, *rest), kernel[0] * kernel[-1])


def _adaptive(call: Call) -> Variable:
    sides = call.args[1]
    terms = torch.Size(call.x.shape[-2:]).numel()
    return _average(call, lambda x: F.adaptive_avg_pool2d(x, sides), terms)


def _mean(call: Call, total: bool = False) -> Variable:
    dims = [call.dimension(d) for d in call.args[1]] if len(call.args) > 1 and call.args[1] else []
    if not dims:
        raise Refused("mixes images of a batch")
    keep = bool(call.get(2, "keepdim", False))
    terms = torch.Size([call.x.shape[d - 1] for d in dims]).numel()
    return _average(call, (lambda x: x.sum(dims, keep)) if total else (lambda x: x.mean(dims, keep)), terms)


def _sum(call: Call) -> Variable:
    return _mean(call, total=True)


# Whatever only moves values


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
        if sizes == call.batch or sizes == [call.batch]:
            return [call.x]
        raise Refused("mixes images of a batch")
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
    return call.add(
        affine.moved([part.number for part in parts], shapes, call.shape, lambda *x: torch.cat(x, dim=dim))
    )


def _pad(call: Call) -> Variable:
    sides, value = list(call.args[1]), float(call.get(2, "value", 0.0))
    if len(sides) > 2 * len(call.x.shape) or min(sides) < 0:
        raise Refused("cuts images or mixes them")
    offset = None
    if value:
        offset = F.pad(torch.zeros(call.x.shape, dtype=torch.float64, device=call.device), sides, value=value)
    return _moved(call, lambda x: F.pad(x, sides), offset)


# What is not linear


def _piecewise(
    call: Call, function: Callable[[Tensor], Tensor], kinks: tuple[float, ...], steepest: float = 1.0, terms: int = 0
) -> Variable:
    return call.add(Piecewise((call.x.number,), call.shape, function, kinks, steepest, terms))


def _relu(call: Call) -> Variable:
    return _piecewise(call, F.relu, (0.0,))


def _leaky_relu(call: Call) -> Variable:
    slope = float(call.get(1, "negative_slope", 0.01))
    return _piecewise(call, lambda x: F.leaky_relu(x, slope), (0.0,), max(1.0, abs(slope)), terms=3)


def _abs(call: Call) -> Variable:
    return _piecewise(call, torch.abs, (0.0,))


def _clamped(call: Call, low: float | None, high: float | None) -> Variable:
    if low is not None and high is not None and low > high:
        raise Refused("has its ends in the wrong order")
    ends = tuple(float(end) for end in (low, high) if end is not None)
    if not ends or any(isinstance(end, Tensor | Variable) for end in (low, high)):
        raise Refused("has ends that are no numbers")
    # An end such as 0.1 is another number in the model's precision.
    return _piecewise(call, lambda x: x.clamp(low, high), ends, terms=0 if all(end.is_integer() for end in ends) else 1)


def _clamp(call: Call) -> Variable:
    return _clamped(call, call.get(1, "min", None), call.get(2, "max", None))


def _clamp_max(call: Call) -> Variable:
    return _clamped(call, None, call.args[1])


def _hardtanh(call: Call) -> Variable:
    return _clamped(call, call.get(1, "min_val", -1.0), call.get(2, "max_val", 1.0))


def _max_pool2d(call: Call) -> Variable:
    kernel = _pair(call.args[1])
    stride, padding = _pair(call.get(2, "stride", []) or kernel), _pair(call.get(3, "padding", 0))
    if _pair(call.get(4, "dilation", 1)) != (1, 1) or call.get(5, "ceil_mode", False):
        raise Refused("is dilated or rounds its size up")
    return call.add(MaxPool((call.x.number,), call.x.shape, call.shape, kernel, stride, padding))


def _pair(value: Any) -> tuple[int, int]:
    return (value, value) if isinstance(value, int) else (value[0], value[-1])


OPERATIONS: dict[str, Callable[[Call], Any]] = {
    **{"addmm": _addmm, "mm": _mm, "linear": _linear, "convolution": _convolution},
    **dict.fromkeys(("native_batch_norm", "cudnn_batch_norm", "_native_batch_norm_legit_no_training"), _batch_norm),
    **{"add": _add, "sub": _sub, "rsub": _rsub, "mul": _mul, "div": _div, "neg": _neg},
    **{"avg_pool2d": _avg_pool2d, "_adaptive_avg_pool2d": _adaptive, "mean": _mean, "sum": _sum},
    **dict.fromkeys(("clone", "detach", "alias", "lift_fresh_copy", "contiguous", "dropout"), _same),
    **dict.fromkeys(("view", "_unsafe_view", "reshape", "squeeze", "unsqueeze", "flatten"), _view),
    **{"_to_copy": _to_copy, "permute": _permute, "transpose": _transpose, "slice": _slice, "select": _select},
    **dict.fromkeys(("split", "split_with_sizes"), _split),
    **{"cat": _cat, "constant_pad_nd": _pad},
    **{"relu": _relu, "leaky_relu": _leaky_relu, "abs": _abs, "clamp": _clamp, "hardtanh": _hardtanh},
    **{"clamp_min": _clamp, "clamp_max": _clamp_max, "max_pool2d_with_indices": _max_pool2d},
}
