"""The gradient that a loss ought to have in float64, and where not even that is known."""

from __future__ import annotations

__all__ = ["Reference", "pinned", "reference_gradient"]

import dataclasses
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor

from tmifpe.losses import Loss, ReferenceGradient
from tmifpe.losses.reference import own_reference
from tmifpe.theory.formats import lam_of


@dataclass(frozen=True)
class Reference(ReferenceGradient):
    """A reference gradient, and whether a zero in it can be believed.

    A loss that defines `reference` says so itself. Of any other only its own arithmetic in float64 is known, which
    may have lost what the audit is looking for: a zero there is no proof that there was nothing to lose.
    """

    own: bool
    """The loss's own arithmetic, for want of a `reference`."""

    @property
    def vanished(self) -> Tensor:
        """(n,): every weight is 0, and nothing says that this is right."""
        return (self.weights == 0).all(dim=1) & self.own

    def label_vanished(self, labels: Tensor) -> Tensor:
        """(n,): the same of the label's weight."""
        return (self.weights.gather(1, labels[:, None])[:, 0] == 0) & self.own


def pinned(loss: Loss) -> Loss:
    """The loss with its lambda fixed to that of float32, so that it is one function in every precision."""
    fields = {field.name for field in dataclasses.fields(cast(Any, loss))}
    if "lam" in fields and cast(Any, loss).lam is None:
        return dataclasses.replace(cast(Any, loss), lam=lam_of(torch.float32))
    return loss


def reference_gradient(loss: Loss, logits: Tensor, labels: Tensor) -> Reference:
    """The gradient of `loss` at exactly these logits (n, K), of any dtype. Right to about 1e-14 if the loss defines it.

    >>> from tmifpe.losses import get_loss
    >>> found = reference_gradient(get_loss("ce"), torch.tensor([[1000.0, 0.0]]), torch.tensor([0]))
    >>> found.weights.tolist(), found.scale.tolist()
    ([[-1.0, 1.0]], [0.0])
    """
    loss = pinned(loss)
    defined = getattr(loss, "reference", None)
    found = own_reference(loss, logits, labels) if defined is None else defined(logits, labels)
    return Reference(found.weights, found.scale, own=defined is None)
