"""The gradient that a loss ought to have, so that an audit can say what floating point made of it."""

from __future__ import annotations

__all__ = ["ReferenceGradient", "cross_entropy_reference", "gradient", "own_reference"]

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from tmifpe.core.numerics import rival
from tmifpe.losses.loss import as_values


@dataclass(frozen=True)
class ReferenceGradient:
    """d loss / d logits = scale * weights: (n,) and (n, K), float64.

    Kept apart because the scale of cross-entropy, e^-Delta, leaves even float64 at Delta = 745 while the weights,
    which say where to go, stay of order 1.
    """

    weights: Tensor
    scale: Tensor


def gradient(loss: Callable[[Tensor, Tensor], Tensor], logits: Tensor, labels: Tensor) -> Tensor:
    """d loss / d logits as autograd gives it, in the dtype of the logits."""
    with torch.enable_grad():
        leaf = logits.detach().requires_grad_()
        return torch.autograd.grad(as_values(loss(leaf, labels), leaf).sum(), leaf)[0]


def own_reference(loss: Callable[[Tensor, Tensor], Tensor], logits: Tensor, labels: Tensor) -> ReferenceGradient:
    """The loss's own arithmetic in float64: right for losses that neither cancel nor carry a scale."""
    z = logits.detach().to(torch.float64)
    return ReferenceGradient(gradient(loss, z, labels), torch.ones_like(z[:, 0]))


def cross_entropy_reference(logits: Tensor, labels: Tensor) -> ReferenceGradient:
    """Cross-entropy in its margin form: sigmoid(x) (softmax_{i != y} - e_y), x = logsumexp_{i != y} z_i - z_y.

    >>> found = cross_entropy_reference(torch.tensor([[1000.0, 0.0]]), torch.tensor([0]))
    >>> found.weights.tolist(), found.scale.tolist()
    ([[-1.0, 1.0]], [0.0])
    """
    z = logits.detach().to(torch.float64)
    own = labels[:, None]
    top = rival(z, labels)[:, None]
    e = torch.exp(z - top).scatter(1, own, 0.0)
    total = e.sum(dim=1, keepdim=True)
    x = (top - z.gather(1, own)) + torch.log(total)
    return ReferenceGradient((e / total).scatter(1, own, -1.0), torch.sigmoid(x)[:, 0])
