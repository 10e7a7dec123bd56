"""The gradient that a loss ought to have: float64, by forms that neither cancel nor underflow."""

from __future__ import annotations

__all__ = ["Exact", "exact", "gradient", "pinned"]

import dataclasses
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor

from tmifpe.core.numerics import rival, safe_gap
from tmifpe.losses import Loss
from tmifpe.losses.scaled import choose_t, rows_of
from tmifpe.losses.tmifpe import TMIFPE
from tmifpe.losses.tmifpe_naive import TMIFPENaive
from tmifpe.theory.formats import lam_of


@dataclass(frozen=True)
class Exact:
    """d loss / d logits = scale * weights: (n,) and (n, K), float64.

    Kept apart because the scale of cross-entropy, e^-Delta, leaves even float64 at Delta = 745 while the weights,
    which say where to go, stay of order 1.
    """

    weights: Tensor
    scale: Tensor


def pinned(loss: Loss) -> Loss:
    """The loss with its lambda fixed to that of float32, so that it is one function in every precision."""
    fields = {field.name for field in dataclasses.fields(cast(Any, loss))}
    if "lam" in fields and cast(Any, loss).lam is None:
        return dataclasses.replace(cast(Any, loss), lam=lam_of(torch.float32))
    return loss


def gradient(loss: Loss, logits: Tensor, labels: Tensor) -> Tensor:
    """d loss / d logits as autograd gives it, in the dtype of the logits."""
    with torch.enable_grad():
        leaf = logits.detach().requires_grad_()
        return torch.autograd.grad(loss(leaf, labels).sum(), leaf)[0]


def exact(loss: Loss, logits: Tensor, labels: Tensor) -> Exact:
    """The gradient of `loss` at exactly these logits (n, K), of any dtype. Right to about 1e-14.

    Cross-entropy in its margin form: sigmoid(x) (softmax_{i != y} - e_y), x = logsumexp_{i != y} z_i - z_y; the
    printed T-MIFPE as c times the weights of the shifted one; every other loss by its own arithmetic in float64,
    which neither cancels nor carries a scale.

    >>> from tmifpe.losses import get_loss
    >>> found = exact(get_loss("ce"), torch.tensor([[1000.0, 0.0]]), torch.tensor([0]))
    >>> found.weights.tolist(), found.scale.tolist()
    ([[-1.0, 1.0]], [0.0])
    """
    z = logits.detach().to(torch.float64)
    if loss.name in ("ce", "ce-margin"):
        return _cross_entropy(z, labels)
    one = torch.ones_like(z[:, 0])
    if isinstance(loss, TMIFPENaive):
        shifted = cast(TMIFPENaive, pinned(loss))
        lam = cast(float, shifted.lam)
        top = torch.topk(z, 2, dim=1).values
        t = choose_t(rows_of(z, labels), shifted.t_rule, lam)
        weights = gradient(TMIFPE(shifted.t_rule, lam), z, labels)
        return Exact(weights, t / safe_gap(top[:, 0], top[:, 1]))
    return Exact(gradient(pinned(loss), z, labels), one)


def _cross_entropy(z: Tensor, labels: Tensor) -> Exact:
    own = labels[:, None]
    top = rival(z, labels)[:, None]
    e = torch.exp(z - top).scatter(1, own, 0.0)
    total = e.sum(dim=1, keepdim=True)
    x = (top - z.gather(1, own)) + torch.log(total)
    return Exact((e / total).scatter(1, own, -1.0), torch.sigmoid(x)[:, 0])
