"""What a caller may ask of an evaluation, checked before anything is computed."""

from __future__ import annotations

__all__ = ["MOST_DRAWS", "as_targets", "check_attacks", "check_model", "check_threat"]

from typing import Any

import torch
from torch import Tensor, nn

from tmifpe.core.errors import InputError, shown
from tmifpe.core.types import Threat

MOST_DRAWS = 1_000_000
"""Of a randomised model, per look (`eot`) or at all (`repeats`)."""


def check_model(model: object) -> None:
    """A module or a function, whose parameters are there."""
    if isinstance(model, str):
        raise InputError(f"the model must be callable; load {shown(model)} with tmifpe.load_model first")
    if not callable(model):
        raise InputError(f"the model must be an nn.Module or any callable to logits, got {type(model).__name__}")
    if isinstance(model, nn.Module) and any(tensor.is_meta for tensor in (*model.parameters(), *model.buffers())):
        raise InputError("the model has parameters on the meta device, which hold no values; load its weights first")


def check_threat(threat: object) -> None:
    if not isinstance(threat, Threat):
        raise InputError(f"the threat must be a Threat, e.g. Threat('linf', 8/255), got {type(threat).__name__}")


def check_attacks(attacks: tuple[Any, ...]) -> None:
    for attack in attacks:
        if isinstance(attack, type) or not isinstance(getattr(attack, "budget", None), int):
            raise InputError(f"an attack must be a name or, say, PGD(steps=100), got {shown(attack)}")


def as_targets(targets: Any) -> str | int | Tensor | None:
    """A rule's name, a class, or one class per example as an int64 tensor."""
    if targets is None or (isinstance(targets, str | int) and not isinstance(targets, bool)):
        return targets
    try:
        found = torch.as_tensor(targets)
        if not found.is_floating_point() and not found.is_complex() and found.dtype != torch.bool and not found.is_meta:
            return int(found) if found.dim() == 0 else found.to(torch.int64)
    except (TypeError, ValueError, RuntimeError, OverflowError):
        pass
    raise InputError(f"targets must be a rule's name, a class, or one class per example, got {shown(targets)}")
