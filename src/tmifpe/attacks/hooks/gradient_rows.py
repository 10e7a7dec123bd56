"""Gradients row by row: is there any, how strong is it for its units, where does it point?"""

from __future__ import annotations

__all__ = ["alive", "cosine", "faint", "floating_tensors", "replaced", "revived", "share"]

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from tmifpe.core.numerics import compute_dtype
from tmifpe.norms import column

FAINT = 1e-4
"""Relative change of the output by relative change of the input, below which a module passes nearly nothing."""


def alive(grads: Sequence[Tensor], n: int) -> Tensor:
    """(n,): a gradient is there, and is finite."""
    some = torch.stack([(_rows(g, n) != 0).any(dim=1) for g in grads]).any(dim=0)
    return some & torch.stack([torch.isfinite(_rows(g, n)).all(dim=1) for g in grads]).all(dim=0)


def faint(
    x: Sequence[Tensor], front: Sequence[Tensor], y: Sequence[Tensor], behind: Sequence[Tensor], n: int
) -> Tensor:
    """(n,): sum |x dv/dx| is below `FAINT` times sum |y dv/dy|, free of the units that a layer measures in."""

    def pull(values: Sequence[Tensor], grads: Sequence[Tensor]) -> Tensor:
        terms = [(_rows(v.detach(), n) * _rows(g, n)).abs().sum(dim=1) for v, g in zip(values, grads, strict=True)]
        return torch.stack(terms).nan_to_num().sum(dim=0)

    given = torch.stack([_rows(v.detach(), n).abs().amax(dim=1) for v in x]).amax(dim=0)
    return (pull(x, front) < FAINT * pull(y, behind)) & (given > 0)  # of a black image, changes in percent say nothing


def cosine(one: Sequence[Tensor], other: Sequence[Tensor], n: int) -> Tensor:
    """(n,): of the angle between two gradients."""
    flat = [torch.cat([_rows(g, n) for g in grads], dim=1).to(compute_dtype(grads[0].dtype)) for grads in (one, other)]
    # By the largest entry first: squares of small gradients underflow.
    flat = [g / g.abs().amax(dim=1, keepdim=True).clamp(min=torch.finfo(g.dtype).tiny) for g in flat]
    return torch.cosine_similarity(*flat)


def revived(grad: Tensor, dead: Tensor, behind: Sequence[Tensor]) -> Tensor:
    """`grad`, in rows that are dead replaced: by the gradient behind the module if it fits, else by numbers without a
    pattern."""
    waves = torch.cos(torch.arange(grad.numel(), device=grad.device, dtype=grad.dtype)).reshape(grad.shape)
    other = next((g for g in behind if g.shape == grad.shape), waves).to(grad.dtype)
    mask = column(dead, grad) if grad.dim() > 1 and len(grad) == len(dead) else dead.all()
    return torch.where(mask, other, grad)


def share(part: Tensor, whole: Tensor) -> float:
    return float(part.sum()) / max(1, int(whole.sum()))


def floating_tensors(value: Any) -> Iterator[Tensor]:
    """Those in a value made of tuples, lists and dictionaries."""
    if isinstance(value, Tensor):
        if value.is_floating_point():
            yield value
    elif isinstance(value, list | tuple | dict):
        for inner in value.values() if isinstance(value, dict) else value:
            yield from floating_tensors(inner)


def replaced(value: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """The same value with its floating tensors changed, in the order of `floating_tensors`."""
    if isinstance(value, Tensor):
        return change(value) if value.is_floating_point() else value
    if isinstance(value, dict):
        return {key: replaced(inner, change) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        inner = [replaced(one, change) for one in value]
        return type(value)(*inner) if hasattr(value, "_fields") else type(value)(inner)
    return value


def _rows(x: Tensor, n: int) -> Tensor:
    """(n, values); one row for all where the first dimension does not count the images."""
    return x.flatten(1) if x.dim() > 1 and len(x) == n else x.reshape(1, -1).expand(n, -1)
