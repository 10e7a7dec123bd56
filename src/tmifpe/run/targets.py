"""Which class a targeted evaluation aims at, for each example."""

from __future__ import annotations

__all__ = ["TARGET_RULES", "Targets", "choose_targets"]

from typing import TypeAlias

import torch
from torch import Tensor

from tmifpe.core import rng
from tmifpe.core.errors import InputError, shown

TARGET_RULES = ("second", "least-likely", "random")

Targets: TypeAlias = str | int | None
"""A rule's name, one class for all, or None for an untargeted attack."""

_STREAM = 0x7A26  # keeps the draw of a target apart from the draws of starts, whose stages count from 0


def choose_targets(rule: str | int, logits: Tensor, labels: Tensor, indices: Tensor, seed: int) -> Tensor:
    """The target class of each example, from its clean logits (n, K).

    `second`: the likeliest class that is not the label; `least-likely`: the least likely such class;
    `random`: any other class, drawn from (seed, index); a number: that class.
    """
    classes = logits.shape[1]
    if isinstance(rule, int):
        if not 0 <= rule < classes:
            raise InputError(f"target class {shown(rule)} does not exist: the model has classes 0 to {classes - 1}")
        return torch.full_like(labels, rule)
    if rule == "random":
        draw = rng.uniform(seed, indices, _STREAM, 0, (1,))[:, 0]
        return (labels + 1 + (draw * (classes - 1)).long()) % classes
    if rule not in TARGET_RULES:
        raise InputError(f"targets must be one of {', '.join(TARGET_RULES)} or a class number, got {shown(rule)}")
    sign = 1.0 if rule == "second" else -1.0
    own = torch.zeros_like(logits, dtype=torch.bool).scatter_(1, labels[:, None], True)
    return (sign * logits).masked_fill(own, -torch.inf).argmax(dim=1)
