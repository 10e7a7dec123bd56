"""`ensemble:A+B` and `ensemble-probabilities:A+B`: several models, read as one."""

from __future__ import annotations

__all__ = ["Ensemble", "ensemble", "ensemble_probabilities"]

import functools
import math
from collections.abc import Iterable, Sequence
from typing import TypeVar

import torch
from torch import Tensor, nn
from torch.nn.functional import log_softmax

from tmifpe.core.errors import InputError, shown
from tmifpe.core.hashing import digest
from tmifpe.core.options import split_list
from tmifpe.core.outputs import as_logits
from tmifpe.core.types import Classifier, Model
from tmifpe.models.load import load_model
from tmifpe.models.source import Asked, Loaded

T = TypeVar("T")
_MEANS = ("logits", "probabilities")


class Ensemble(nn.Module):
    """The mean of the members' `logits`, or of their `probabilities`, then as its log, which serves as logits.

    The log of a mean of probabilities is a logsumexp of log-probabilities, so that no class underflows.

    >>> one, two = (lambda x: torch.tensor([[0.0, 200.0]])), (lambda x: torch.tensor([[0.0, -200.0]]))
    >>> Ensemble([one, two])(torch.zeros(1, 3)).tolist()
    [[0.0, 0.0]]
    >>> Ensemble([one, two], mean="probabilities")(torch.zeros(1, 3)).exp().tolist()
    [[0.5, 0.5]]
    """

    def __init__(self, members: Sequence[Model | Classifier], mean: str = "logits") -> None:
        super().__init__()
        if mean not in _MEANS:
            raise InputError(f"an ensemble takes the mean of logits or of probabilities, got {shown(mean)}")
        if len(members) < 2:
            raise InputError(f"an ensemble has at least two members, got {len(members)}")
        self.mean = mean
        self.members = nn.ModuleList(_Member(member) for member in members)

    def forward(self, x: Tensor) -> Tensor:
        logits = [member(x) for member in self.members]
        if self.mean == "logits":
            return functools.reduce(torch.add, logits) / len(logits)  # sums and quotients can be certified
        return log_softmax(torch.stack(logits), dim=2).logsumexp(dim=0) - math.log(len(self.members))


class _Member(nn.Module):
    """A function becomes a module, and a record its logits."""

    def __init__(self, member: Model | Classifier) -> None:
        super().__init__()
        network = member.module if isinstance(member, Classifier) else member
        self.network = network if isinstance(network, nn.Module) else None
        self.functions = [] if isinstance(network, nn.Module) else [network]  # the identity covers what lists hold

    def forward(self, x: Tensor) -> Tensor:
        return as_logits((self.functions[0] if self.network is None else self.network)(x), len(x))


def ensemble(asked: Asked) -> Loaded:
    """Members by name, joined by +; `weights` likewise, with nothing between two + for a member that needs none."""
    return _ensemble(asked, "logits")


def ensemble_probabilities(asked: Asked) -> Loaded:
    return _ensemble(asked, "probabilities")


def _ensemble(asked: Asked, mean: str) -> Loaded:
    names = split_list(asked.where, by="+")
    if len(names) < 2:
        raise InputError(f"{asked.source} needs at least two models: write {asked.source}:A+B")
    files = [""] * len(names) if asked.weights is None else str(asked.weights).split("+")
    if len(files) != len(names):
        raise InputError(
            f"{asked.source}:{asked.where} has {len(names)} members and {len(files)} weights; join them by + in the "
            "same order, with nothing for a member that needs none"
        )
    members = [load_model(name, weights=file or None) for name, file in zip(names, files, strict=True)]
    fixed = [m.input_shape for m in members if m.input_shape is not None and not m.resizes]
    resizes = all(member.resizes for member in members)
    return Loaded(
        Ensemble(members, mean),
        stamp=digest([f"ensemble of {mean}", *(member.identity for member in members)]),
        classes=_same("number of classes", (m.classes for m in members if m.classes is not None), asked),
        input_shape=_same("input shape", fixed, asked) or (members[0].input_shape if resizes else None),
        notes=tuple(dict.fromkeys(note for member in members for note in member.notes)),
        box=_same("box", (m.box for m in members if m.box is not None), asked),
        takes_bytes=any(member.takes_bytes for member in members),
        class_names=_same("order of classes", (m.class_names for m in members if m.class_names), asked) or (),
        normalises=any(member.mean is not None for member in members),
        resizes=resizes,
    )


def _same(what: str, stated: Iterable[T], asked: Asked) -> T | None:
    """What all members that state it agree on; None where none does."""
    found = list(dict.fromkeys(stated))
    if len(found) > 1:
        raise InputError(f"the members of {asked.source}:{asked.where} differ in {what}: {found[0]} and {found[1]}")
    return found[0] if found else None
