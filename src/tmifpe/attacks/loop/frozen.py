"""A model prepared for an attack: in eval mode, without parameter gradients, and restored exactly afterwards."""

from __future__ import annotations

__all__ = ["device_of", "dtype_of", "frozen", "preserved_buffers", "preserved_state"]

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import chain

import torch
from torch import Tensor, nn

from tmifpe.core.rng import FirstStates, preserved_rng
from tmifpe.core.types import Model

_MODES, _WANTED, _BUFFERS = FirstStates(), FirstStates(), FirstStates()
"""Of modules, parameters and buffers that are attacked now: one model may be attacked from several threads at once."""


@contextmanager
def frozen(model: Model) -> Iterator[Model]:
    """Within: eval mode, parameters frozen (their gradients would cost a third of the time). After: as before.

    Every submodule's own mode is restored: a user may keep some of them in eval mode on purpose; and every buffer,
    which a forward pass may move, and the caller's RNG. While another thread attacks the model, or one that shares
    modules with it, it stays as it is: the last to end restores what the first has found.
    """
    with preserved_state(model, device_of(model)):
        if not isinstance(model, nn.Module):
            yield model
            return
        modules, parameters = list(model.modules()), list(model.parameters())
        try:
            with _MODES.lock:
                for module in modules:
                    _MODES.hold(module, module.training)
                for parameter in parameters:
                    _WANTED.hold(parameter, parameter.requires_grad)
                model.eval()
                for parameter in parameters:
                    parameter.requires_grad_(False)
            yield model
        finally:
            with _MODES.lock:
                for module in modules:
                    for training in _MODES.release(module):
                        module.training = training
                for parameter in parameters:
                    for requires_grad in _WANTED.release(parameter):
                        parameter.requires_grad_(requires_grad)


@contextmanager
def preserved_buffers(model: Model) -> Iterator[None]:
    """After: every buffer as it was, whatever forward passes did to it: BatchNorm in train mode moves its averages."""
    with _BUFFERS.lock:
        kept = [(buffer, buffer.detach().clone()) for buffer in model.buffers()] if isinstance(model, nn.Module) else []
        for buffer, before in kept:
            _BUFFERS.hold(buffer, before)
    try:
        yield
    finally:
        with _BUFFERS.lock, torch.no_grad():
            for buffer, before in kept:
                for state in [before, *_BUFFERS.release(buffer)]:
                    buffer.copy_(state)


@contextmanager
def preserved_state(model: Model, device: torch.device | None = None) -> Iterator[None]:
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
