"""Running a model as a `Tuning` says: on a copy, which the attack follows; the model itself gives the verdicts."""

from __future__ import annotations

__all__ = ["faster_copy", "followed", "tuned", "using_threads"]

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, cast

import torch
from torch import Tensor, nn

from tmifpe.attacks.loop.parts import PartedQueries
from tmifpe.attacks.loop.queries import Queries
from tmifpe.run.prepared_model import PreparedModel
from tmifpe.run.spec import PRECISIONS
from tmifpe.run.tune.fold import folded
from tmifpe.run.tune.tuning import Tuning


def tuned(prepared: PreparedModel, tuning: Tuning | None) -> PreparedModel:
    """With the copy that the attack follows; as it is where there is nothing to do, or it cannot be done here."""
    plain = replace(prepared, fast=None, copies=())
    if tuning is None or not tuning.changes_model or (fast := faster_copy(prepared, tuning)) is None:
        return plain
    # Copies, since a module may keep notes while it runs; the weights are the same tensors.
    copies = (_twin(fast) for _ in range(tuning.parts or 0))
    return replace(plain, fast=fast, copies=tuple(copies))


def followed(prepared: PreparedModel, queries: Queries) -> Queries:
    """Queries of the model that the attack follows, counted with those of the model itself."""
    if prepared.fast is None:
        return queries
    if not prepared.copies:
        return replace(queries, model=prepared.fast)
    shared = (queries.dtype, queries.eot, queries.tally, queries.stages, queries.notes)
    return PartedQueries(prepared.fast, *shared, copies=prepared.copies)


def _twin(network: nn.Module) -> nn.Module:
    return copy.deepcopy(network, {id(weight): weight for weight in network.parameters()})


def faster_copy(prepared: PreparedModel, tuning: Tuning) -> nn.Module | None:
    """The copy; None if the model cannot be copied, or cannot be folded and that is what is asked."""
    model = prepared.model
    if not isinstance(model, nn.Module):
        return None
    network = folded(model) if tuning.folded else _copied(model)
    if network is None:
        return None
    if tuning.channels_last:
        network = cast(Any, network).to(memory_format=torch.channels_last)
    if tuning.compiled:
        # Batches shrink, and must not be compiled for each size.
        network = torch.compile(network, dynamic=True)
    kind = prepared.device.type
    return Fast(network, tuning.channels_last, PRECISIONS[tuning.autocast] if tuning.autocast else None, kind)


def _copied(model: nn.Module) -> nn.Module | None:
    try:
        return copy.deepcopy(model)
    except Exception:  # the user's classes may fail in any way
        return None


class Fast(nn.Module):
    """A network that is given its images in its own memory format, and run in low precision if `dtype` says so."""

    def __init__(self, network: Any, channels_last: bool, dtype: torch.dtype | None, kind: str) -> None:
        super().__init__()
        self.network, self.channels_last, self.dtype, self.kind = network, channels_last, dtype, kind

    def forward(self, x: Tensor) -> Any:
        given = _ChannelsLast.apply(x) if self.channels_last and x.dim() == 4 else x
        if self.dtype is None:
            return self.network(given)
        with torch.autocast(self.kind, self.dtype):
            return self.network(given)


class _ChannelsLast(torch.autograd.Function):
    """Images with their channels last; on the way back the gradient in the order of the images, since the steps of an
    attack read both, number by number."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:  # noqa: ARG004
        return x.contiguous(memory_format=torch.channels_last)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Any) -> Tensor:  # noqa: ARG004
        return grad_outputs[0].contiguous()


@contextmanager
def using_threads(count: int | None) -> Iterator[None]:
    """Within, torch uses so many threads; after, as many as before."""
    before = torch.get_num_threads()
    try:
        if count is not None:
            torch.set_num_threads(count)
        yield
    finally:
        if count is not None:
            torch.set_num_threads(before)
