"""Every numerical guard of the toolkit, each with its reason. Nothing else adds an epsilon anywhere."""

from __future__ import annotations

__all__ = ["attach_gradient", "compute_dtype", "is_usable", "margin", "rival", "row_norm", "safe_gap"]

from typing import Any

import torch
from torch import Tensor


def compute_dtype(dtype: torch.dtype) -> torch.dtype:
    """The dtype losses compute in: at least float32, since half logits tie and overflow when scaled."""
    return dtype if dtype in (torch.float32, torch.float64) else torch.float32


def is_usable(logits: Tensor) -> Tensor:
    """Rows without NaN or +inf and with a finite entry. -inf elsewhere is fine: that class has weight 0."""
    return ((logits < torch.inf).all(dim=1)) & (logits > -torch.inf).any(dim=1)


def safe_gap(top: Tensor, second: Tensor) -> Tensor:
    """Delta = top - second; an exact tie gets a gap no larger than any non-zero one, so only ties change.

    Neighbouring floats at |top| differ by at least eps/2*|top|; `tiny` covers top = 0.
    An infinite gap (one finite logit) is kept: the caller's weights are then 0 for the rivals.
    """
    info = torch.finfo(top.dtype)
    gap = top - second
    tie = torch.clamp(top.abs() * (info.eps / 2), min=info.tiny)
    return torch.where(gap == 0, tie, gap)


def rival(logits: Tensor, labels: Tensor) -> Tensor:
    """max over i != label of z_i, by masking with -inf (a multiplied mask is wrong for negative logits)."""
    own = torch.zeros_like(logits, dtype=torch.bool).scatter_(1, labels[:, None], True)
    return logits.masked_fill(own, -torch.inf).amax(dim=1)


def margin(logits: Tensor, labels: Tensor, targets: Tensor | None = None) -> Tensor:
    """How far an attack has come, in logits: positive means it succeeded.

    Untargeted: max_{i != y} z_i - z_y.  Targeted: z_t - max_{i != t} z_i.
    """
    aim = labels if targets is None else targets
    own = logits.gather(1, aim[:, None])[:, 0]
    other = rival(logits, aim)
    return other - own if targets is None else own - other


def row_norm(x: Tensor) -> Tensor:
    """Euclidean norm per example, right even where squares under- or overflow (scaled by the largest entry)."""
    flat = x.flatten(1)
    scale = flat.abs().amax(dim=1)
    safe = torch.where(scale > 0, scale, torch.ones_like(scale))
    return scale * torch.linalg.vector_norm(flat / safe[:, None], dim=1)


class _Attach(torch.autograd.Function):
    """A value whose gradient with respect to the logits is given, not derived."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, value: Tensor, weights: Tensor) -> Tensor:
        ctx.save_for_backward(weights)
        return value

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Any) -> tuple[Tensor | None, None, None]:
        (weights,) = ctx.saved_tensors
        return grad_outputs[0][:, None].to(weights.dtype) * weights, None, None


def attach_gradient(logits: Tensor, value: Tensor, weights: Tensor) -> Tensor:
    """`value` (n,), with d value / d logits = `weights` (n, K): for losses that know a sounder gradient
    than the one autograd would derive."""
    result: Tensor = _Attach.apply(logits, value.detach(), weights.detach())  # pyright: ignore[reportAssignmentType]
    return result
