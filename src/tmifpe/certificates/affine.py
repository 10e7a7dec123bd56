"""Nodes that add up multiples of their inputs: layers with weights, averages, and whatever only moves values."""

from __future__ import annotations

__all__ = ["Affine", "average", "combination", "convolution", "matmul", "moved", "reshaped", "scaled"]

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.grad import conv2d_input

from tmifpe.certificates.node import Lines, Range, total
from tmifpe.certificates.rounding import Rounding

_OWN = Rounding(torch.float64)


@dataclass(frozen=True)
class Affine:
    """node = linear(inputs) + offset; `spread` is `linear` with the absolute values of its weights."""

    inputs: tuple[int, ...]
    shape: tuple[int, ...]
    linear: Callable[..., Tensor]
    spread: Callable[..., Tensor]
    transpose: Callable[[Tensor], Sequence[Tensor]]
    terms: int
    offset: Tensor | None = None
    offset_size: Tensor | None = None
    """At least |offset|: what is added up to make it."""
    mixes: bool = True
    """Whether a value depends on more than one value of an input, so that intervals may lose something."""

    def value(self, *inputs: Tensor) -> Tensor:
        value = self.linear(*inputs)
        return value if self.offset is None else value + self.offset

    def reach(self, ranges: Sequence[Range], model: Rounding) -> Range:
        if not self.terms:
            parts = ([r.low for r in ranges], [r.high for r in ranges], [r.error for r in ranges])
            low, high, error = (self.linear(*part) for part in parts)
            if self.offset is not None:
                low, high = low + self.offset, high + self.offset
            return Range(low, high, error, torch.maximum(low.abs(), high.abs()) + error)
        centre = self.value(*((r.low + r.high) / 2 for r in ranges))
        size = self.spread(*(r.largest for r in ranges))
        if self.offset_size is not None:
            size = size + self.offset_size
        # Centre, radius and their sum round like a sum of a few terms more, each of them at most `size` in all.
        radius = self.spread(*((r.high - r.low) / 2 for r in ranges)) + 4 * _OWN.of(size, self.terms + 8)
        error = self.spread(*(r.error for r in ranges)) * (1 + 2.0**-20) + model.of(size, self.terms)
        return Range(centre - radius, centre + radius, error, size)

    def back(self, coefficients: Tensor, ranges: Sequence[Range], own: Range, parallel: bool) -> Lines:  # noqa: ARG002
        n, s = coefficients.shape[:2]
        parts = self.transpose(coefficients.flatten(0, 1))
        size = total(coefficients, own.size)
        added = torch.zeros_like(size)
        if self.offset is not None:
            added = coefficients.flatten(2) @ self.offset.expand(self.shape).flatten()
        return Lines(tuple(part.reshape(n, s, *part.shape[1:]) for part in parts), added, added, size)


def _pulled_back(linear: Callable[..., Tensor], shapes: Sequence[tuple[int, ...]]) -> Callable[[Tensor], list[Tensor]]:
    """The transpose of a linear function, by automatic differentiation."""

    def transpose(a: Tensor) -> list[Tensor]:
        with torch.enable_grad():
            zeros = [a.new_zeros(len(a), *shape).requires_grad_() for shape in shapes]
            return list(torch.autograd.grad(linear(*zeros), zeros, a))

    return transpose


def matmul(index: int, shape: tuple[int, ...], weight: Tensor, bias: Tensor | None) -> Affine:
    """x @ weight + bias, for weight (in, out)."""
    positive = weight.abs()
    return Affine(
        (index,),
        shape,
        lambda x: x @ weight,
        lambda x: x @ positive,
        lambda a: [a @ weight.t()],
        weight.shape[0] + 2,
        bias,
        None if bias is None else bias.abs(),
    )


def convolution(
    index: int,
    shapes: tuple[tuple[int, ...], tuple[int, ...]],
    weight: Tensor,
    bias: Tensor | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    groups: int,
) -> Affine:
    """A convolution from images of the first shape to images of the second."""
    options: Any = {"stride": tuple(stride), "padding": tuple(padding), "dilation": tuple(dilation), "groups": groups}
    positive, offset = weight.abs(), None if bias is None else bias.view(-1, 1, 1)
    return Affine(
        (index,),
        shapes[1],
        lambda x: F.conv2d(x, weight, **options),
        lambda x: F.conv2d(x, positive, **options),
        lambda a: [conv2d_input((len(a), *shapes[0]), weight, a, **options)],
        weight[0].numel() + 2,
        offset,
        None if offset is None else offset.abs(),
    )


def scaled(
    index: int, shape: tuple[int, ...], gain: Tensor, offset: Tensor | None, offset_size: Tensor | None, terms: int = 3
) -> Affine:
    """gain * x + offset, value by value; both broadcast to the shape of an image."""
    size = offset_size if offset_size is not None or offset is None else offset.abs()
    positive = gain.abs()
    return Affine(
        (index,),
        shape,
        lambda x: x * gain,
        lambda x: x * positive,
        lambda a: [a * gain],
        terms,
        offset,
        size,
        mixes=False,
    )


def combination(inputs: tuple[int, int], shapes: Sequence[tuple[int, ...]], sign: float) -> Affine:
    """x + sign * y, of two nodes of one shape."""
    return Affine(
        inputs, shapes[0], lambda x, y: x + sign * y, lambda x, y: x + abs(sign) * y, lambda a: [a, sign * a], 3
    )


def average(index: int, shapes: Sequence[tuple[int, ...]], pool: Callable[[Tensor], Tensor], terms: int) -> Affine:
    """A sum with weights that are not negative, from the first shape to the second."""
    return Affine((index,), shapes[1], pool, pool, _pulled_back(pool, shapes[:1]), terms)


def reshaped(index: int, before: tuple[int, ...], after: tuple[int, ...]) -> Affine:
    """The same values in another shape."""

    def move(x: Tensor) -> Tensor:
        return x.reshape(len(x), *after)

    return Affine((index,), after, move, move, lambda a: [a.reshape(len(a), *before)], 0, mixes=False)


def moved(
    inputs: Sequence[int],
    shapes: Sequence[tuple[int, ...]],
    after: tuple[int, ...],
    move: Callable[..., Tensor],
    offset: Tensor | None = None,
) -> Affine:
    """Values of the inputs in other places, or left out, with zeros or an offset elsewhere; exact."""
    return Affine(tuple(inputs), after, move, move, _pulled_back(move, shapes), 0, offset, mixes=False)
