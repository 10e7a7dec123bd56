"""The operations that bounds are known for, by the name that torch dispatches them under."""

from __future__ import annotations

__all__ = ["OPERATIONS"]

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from tmifpe.certificates import affine
from tmifpe.certificates.call import Call, Refused, Variable, variable
from tmifpe.certificates.max_pool import MaxPool
from tmifpe.certificates.moves import MOVES
from tmifpe.certificates.piecewise import Piecewise


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
    rest = (
        call.get(4, "ceil_mode", False),
        call.get(5, "count_include_pad", True),
        call.get(6, "divisor_override", None),
    )
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
    **MOVES,
    "addmm": _addmm,
    "mm": _mm,
    "linear": _linear,
    "convolution": _convolution,
    **dict.fromkeys(("native_batch_norm", "cudnn_batch_norm", "_native_batch_norm_legit_no_training"), _batch_norm),
    "add": _add,
    "sub": _sub,
    "rsub": _rsub,
    "mul": _mul,
    "div": _div,
    "neg": _neg,
    "avg_pool2d": _avg_pool2d,
    "_adaptive_avg_pool2d": _adaptive,
    "mean": _mean,
    "sum": _sum,
    "relu": _relu,
    "leaky_relu": _leaky_relu,
    "abs": _abs,
    "clamp": _clamp,
    "clamp_min": _clamp,
    "clamp_max": _clamp_max,
    "hardtanh": _hardtanh,
    "max_pool2d_with_indices": _max_pool2d,
}
