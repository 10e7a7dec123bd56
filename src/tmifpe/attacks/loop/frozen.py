"""A model prepared for an attack: in eval mode, without parameter gradients, and restored exactly afterwards."""

from __future__ import annotations

__all__ = ["device_of", "dtype_of", "frozen", "preserved_buffers", "preserved_state"]

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import chain

import torch
from torch import Tensor, nn

from tmifpe.core.rng import preserved_rng
from tmifpe.core.types import Model


@contextmanager
def frozen(model: Model) -> Iterator[Model]:
    """Within: eval mode, parameters frozen (their gradients would cost a third of the time). After: as before.

    Every submodule's own mode is restored: a user may keep some of them in eval mode on purpose; and every buffer,
    which a forward pass may move.
    """
    if not isinstance(model, nn.Module):
        yield model
        return
    modes = [(module, module.training) for module in model.modules()]
    wanted = [(parameter, parameter.requires_grad) for parameter in model.parameters()]
    try:
        model.eval()
        for parameter, _ in wanted:
            parameter.requires_grad_(False)
        with preserved_buffers(model):
            yield model
    finally:
        for module, training in modes:
            module.training = training
        for parameter, requires_grad in wanted:
            parameter.requires_grad_(requires_grad)


@contextmanager
def preserved_buffers(model: Model) -> Iterator[None]:
    """After: every buffer as it was, whatever forward passes did to it: BatchNorm in train mode moves its averages."""
    kept = [(buffer, buffer.detach().clone()) for buffer in model.buffers()] if isinstance(model, nn.Module) else []
    try:
        yield
    finally:
        with torch.no_grad():
            for buffer, before in kept:
                buffer.copy_(before)


@contextmanager
def preserved_state(model: Model, device: torch.device) -> Iterator[None]:
    """Leaves the caller's RNG and the model's buffers as they were."""
    with preserved_rng(device), preserved_buffers(model):
        yield


def dtype_of(model: Model) -> torch.dtype | None:
    """The floating dtype of the model's first parameter or buffer; None for a callable without any."""
    return next((tensor.dtype for tensor in _tensors(model) if tensor.is_floating_point()), None)


def device_of(model: Model) -> torch.device | None:
    """Where the model's first parameter or buffer lives; None for a callable without any."""
    return next((tensor.device for tensor in _tensors(model)), None)


def _tensors(model: Model) -> Iterator[Tensor]:
    if isinstance(model, nn.Module):
        yield from chain(model.parameters(), model.buffers())
