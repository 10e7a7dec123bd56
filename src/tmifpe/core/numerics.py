"""Every numerical guard of the toolkit, each with its reason. Nothing else adds an epsilon anywhere."""

from __future__ import annotations

__all__ = [
    "FEW",
    "attach_gradient",
    "box_slack",
    "by_class",
    "by_example",
    "compute_dtype",
    "exp_or_zero",
    "is_usable",
    "left_over",
    "margin",
    "pull_back",
    "rival",
    "rounding_of",
    "row_norm",
    "safe_gap",
    "top_gap",
    "wide_dtype",
    "zero_rows",
]

import math
from collections.abc import Sequence
from types import ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tmifpe.core.types import Threat

FEW = 13
"""Classes up to which a CPU computes in numpy what it computes of logits. No more than have a single t* (`solve_t`): of
several, only torch finds the best."""


def compute_dtype(dtype: torch.dtype) -> torch.dtype:
    """The dtype losses compute in: at least float32, since half logits tie and overflow when scaled."""
    return dtype if dtype in (torch.float32, torch.float64) else torch.float32


def wide_dtype(device: torch.device) -> torch.dtype:
    """The widest floating dtype of a device: float64, which Apple's GPUs do not have."""
    return torch.float32 if device.type == "mps" else torch.float64


def is_usable(logits: Tensor) -> Tensor:
    """Rows without NaN or +inf and with a finite entry. -inf elsewhere is fine: that class has weight 0."""
    return logits.amax(dim=1).abs() < torch.inf  # amax passes NaN on, and NaN compares false


def by_class(logits: Tensor, classes: int | None = None) -> tuple[Any, ModuleType]:
    """A table (n, K) with its classes first, (K, n), and the library to compute it with: `torch`, or `numpy` for few
    classes on a CPU, where an operation is all overhead, of which numpy has a third.

    Formulas are written once, for both. Sums over the classes then run along the rows, several times faster. `classes`
    decides where the table has a column more or less.
    """
    table = logits.detach()
    if table.device.type == "cpu" and (table.shape[1] if classes is None else classes) <= FEW:
        return np.ascontiguousarray(table.numpy().T), np
    return table.t(), torch


def by_example(table: Any) -> Tensor:
    """A tensor with the examples first, of (K, n) or (n,) from either library."""
    return torch.from_numpy(np.ascontiguousarray(table.T)) if isinstance(table, np.ndarray) else table.t()


def safe_gap(top: Any, second: Any, xp: Any = torch) -> Any:
    """Delta = top - second; an exact tie gets a gap no larger than any non-zero one, so only ties change.

    Neighbouring floats at |top| differ by at least eps/2*|top|; `tiny` covers top = 0.
    An infinite gap (one finite logit) becomes the largest number: -inf divided by it is -inf, which weighs
    nothing, where -inf/inf would be NaN.
    """
    info = xp.finfo(top.dtype)
    gap = top - second
    gap = xp.where(gap > info.max, info.max, gap)
    tie = gap == 0
    if not bool(tie.any()):  # nearly always
        return gap
    least = abs(top) * (info.eps / 2)
    return xp.where(tie, xp.where(least > info.tiny, least, info.tiny), gap)


def exp_or_zero(x: Any, xp: Any = torch) -> Any:
    """exp(x), with results below about the smallest normal number replaced by 0.

    A CPU takes 13 to 80 times as long for an exp that underflows as for one that does not (measured, torch 2.13),
    and most classes of a large model are that far below the top. Weights that small are lost in any product.
    """
    low = math.log(xp.finfo(x.dtype).tiny) + 0.2
    alive = x > low
    return xp.where(alive, xp.exp(xp.where(alive, x, low)), 0.0)


def rival(logits: Tensor, labels: Tensor) -> Tensor:
    """max over i != label of z_i, by masking with -inf (a multiplied mask is wrong for negative logits)."""
    return logits.scatter(1, labels[:, None], -torch.inf).amax(dim=1)


def margin(logits: Tensor, labels: Tensor, targets: Tensor | None = None) -> Tensor:
    """How far an attack has come, in logits: positive means it succeeded.

    Untargeted: max_{i != y} z_i - z_y.  Targeted: z_t - max_{i != t} z_i.
    """
    aim = labels if targets is None else targets
    own = logits.gather(1, aim[:, None])[:, 0]
    other = rival(logits, aim)
    return other - own if targets is None else own - other


def top_gap(logits: Tensor) -> Tensor:
    """The gap between the two largest logits of each row (n,); infinite where there is only one class."""
    if logits.shape[1] < 2:
        return torch.full_like(logits[:, 0], torch.inf)
    top = torch.topk(logits, 2, dim=1).values
    return top[:, 0] - top[:, 1]


def row_norm(x: Tensor) -> Tensor:
    """Euclidean norm per example, right even where squares under- or overflow (scaled by the largest entry)."""
    flat = x.flatten(1)
    scale = flat.abs().amax(dim=1)
    safe = torch.where(scale > 0, scale, torch.ones_like(scale))
    return scale * torch.linalg.vector_norm(flat / safe[:, None], dim=1)


class _Attach(torch.autograd.Function):
    """A value whose gradient with respect to the logits is given, not derived."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, value: Tensor, weights: Tensor) -> Tensor:  # noqa: ARG004
        ctx.save_for_backward(weights)
        return value

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Any) -> tuple[Tensor | None, None, None]:
        (weights,) = ctx.saved_tensors
        return grad_outputs[0][:, None].to(weights.dtype) * weights, None, None


def attach_gradient(logits: Tensor, value: Tensor, weights: Tensor) -> Tensor:
    """`value` (n,), with d value / d logits = `weights` (n, K): for losses that know a sounder gradient
    than the one autograd would derive."""
    result: Tensor = _Attach.apply(logits, value.detach(), weights.detach())
    return result


def pull_back(
    ends: Sequence[Tensor], leaves: Sequence[Tensor], grads: Sequence[Tensor], keep: bool = False
) -> tuple[Tensor | None, ...]:
    """The gradients of the leaves where those of the ends are `grads`; None where nothing leads back.

    As `torch.autograd.grad` with `grad_outputs`, at whose first call torch imports sympy: a second of every command.

    >>> x = torch.ones(2, requires_grad=True)
    >>> pull_back([3 * x], [x], [torch.tensor([1.0, -1.0])])
    (tensor([ 3., -3.]),)
    """
    with torch.enable_grad():
        # The derivative of the sum is 1 everywhere, whatever its value, so that each end gets exactly its gradient.
        sums = [(end * grad).sum() for end, grad in zip(ends, grads, strict=True)]
        return torch.autograd.grad(sums, list(leaves), retain_graph=keep, allow_unused=True)


def left_over(budget: Tensor, spent: Tensor, terms: int) -> Tensor:
    """budget - spent, and 0 where that may be rounding alone: `spent` is a sum of `terms` numbers, none negative.

    Its root would be far larger than the rounding (3e-9 of a remainder of 1e-17), and another one on every processor.
    """
    rest = budget - spent
    return torch.where(rest > terms * torch.finfo(rest.dtype).eps * budget, rest, 0.0)


def box_slack(low: float, high: float) -> float:
    """How far out of the box images may lie by the rounding of float32, in which they were scaled: one unit in the last
    place at its farther edge, as in 1.0000001 for 1."""
    return torch.finfo(torch.float32).eps * max(abs(low), abs(high))


def rounding_of(x: Tensor, threat: Threat) -> Tensor:
    """One example's worst perturbation by rounding alone: x + delta rounds at the size of the box, pixel by pixel.

    Its norm is how far a correctly projected point may still lie outside the ball.
    """
    eps = torch.finfo(x.dtype).eps
    return torch.full_like(x[:1], eps * max(abs(threat.low), abs(threat.high)), dtype=compute_dtype(x.dtype))


def zero_rows(x: Tensor) -> Tensor | None:
    """Which examples are zero everywhere (n,); None if none is. A few numbers of each are read, and all of those whose
    few are zero."""
    flat = x.flatten(1)
    middle = flat.shape[1] // 2
    alive = flat[:, middle : middle + 32].any(dim=1)
    if bool(alive.all()):
        return None
    alive[~alive] = flat[~alive].any(dim=1)
    return ~alive
