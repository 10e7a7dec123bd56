"""What a loss is, and what all of them share."""

from __future__ import annotations

__all__ = ["AnyLoss", "Loss", "aim_of", "as_values", "check_classes", "keep_usable"]

from collections.abc import Callable
from typing import ClassVar, Protocol, TypeAlias

import torch
from torch import Tensor

from tmifpe.core.errors import InputError
from tmifpe.core.numbers import check_class_numbers
from tmifpe.core.numerics import is_usable

_FLOATING = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


class Loss(Protocol):
    """A frozen dataclass of options, called on logits (n, K) and labels (n,), with targets (n,) if the attack has any.

    It returns one differentiable value per example, never reduced, that the attacker ascends (eq:adversarial). Rows
    with NaN or +inf get the value 0 and a zero gradient.

    A loss may define `reference(logits, labels) -> ReferenceGradient`, its gradient in float64 by a form that neither
    cancels nor underflows, against which `audit` measures; without it, its own arithmetic in float64 has to do.
    """

    name: ClassVar[str]

    def min_classes(self, targeted: bool) -> int:  # noqa: ARG002
        """The smallest K for which the loss is defined."""
        return 2

    def __call__(self, logits: Tensor, labels: Tensor, targets: Tensor | None = None) -> Tensor: ...


AnyLoss: TypeAlias = str | Loss | type[Loss] | Callable[..., Tensor]
"""A loss by name, an instance, its class, or a plain function of logits, labels and targets."""


def check_classes(loss: Loss, logits: Tensor, labels: Tensor, targets: Tensor | None) -> None:
    """Refuse what is no (n, K) of logits with n classes, and fewer classes than the loss needs; name one that works."""
    dense = isinstance(logits, Tensor) and logits.layout is torch.strided and not logits.is_meta
    if not dense or logits.dim() != 2 or logits.dtype not in _FLOATING:
        what = f"{logits.dtype} {tuple(logits.shape)}" if isinstance(logits, Tensor) else type(logits).__name__
        raise InputError(
            f"{loss.name} needs dense logits (n, classes) in float16, bfloat16, float32 or float64, got {what}"
        )
    targeted = targets is not None
    need, have = loss.min_classes(targeted), logits.shape[1]
    for name, classes in (("labels", labels), ("targets", targets)):
        if classes is not None:
            check_class_numbers(name, classes, len(logits), have)
    if have < need:
        kind = f"targeted {loss.name}" if targeted else loss.name
        advice = "use tmifpe or cw" if have >= 2 else "there is no rival class to attack towards"
        raise InputError(f"{kind} needs at least {need} classes, the model has {have}; {advice}")


def as_values(output: object, logits: Tensor) -> Tensor:
    """What a loss returned, if it is one value for each row of logits; a mean would be taken for a sum."""
    n = len(logits)
    if not isinstance(output, Tensor) or output.shape != (n,):
        what = f"shape {tuple(output.shape)}" if isinstance(output, Tensor) else f"a {type(output).__name__}"
        raise InputError(
            f"for {n} examples a loss must return a tensor of shape ({n},), got {what}; return one value per example, "
            "e.g. with reduction='none'"
        )
    if logits.requires_grad and not output.requires_grad:
        raise InputError("what the loss returns has no gradient: do not detach it or compute it under torch.no_grad()")
    return output


def aim_of(labels: Tensor, targets: Tensor | None) -> Tensor:
    """The class that the loss names: the label to leave, or the target to reach."""
    return labels if targets is None else targets


def keep_usable(logits: Tensor) -> tuple[Tensor, Tensor]:
    """Logits with rows of NaN or +inf replaced by zeros, and which rows were left alone.

    For losses derived by autograd: the mask must come before the arithmetic, since 0 * NaN is NaN on the way back.
    """
    usable = is_usable(logits)
    return logits.masked_fill(~usable[:, None], 0.0), usable
