"""A network in one precision: forward to the logits, and back from a gradient of the logits to one of the images."""

from __future__ import annotations

__all__ = ["Backward", "Network", "at_precision"]

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor

from tmifpe.attacks.loop.frozen import device_of, dtype_of
from tmifpe.core.errors import InputError
from tmifpe.core.numerics import pull_back
from tmifpe.core.outputs import as_logits
from tmifpe.core.types import Model
from tmifpe.run.prepared_model import prepare_model
from tmifpe.run.spec import get_precision

Backward: TypeAlias = Callable[[Tensor], Tensor]
"""From a gradient with respect to the logits to that with respect to the images. May be called repeatedly."""

# What torch raises for an operator or a mixture of dtypes that a device cannot do.
_UNSUPPORTED = (RuntimeError, NotImplementedError, TypeError, InputError)


@dataclass(frozen=True)
class Network:
    """The model as it runs for one precision: images, logits and gradients in `dtype`, the layers in `layers`."""

    model: Model
    precision: str
    dtype: torch.dtype
    layers: torch.dtype
    device: torch.device

    @property
    def emulated(self) -> bool:
        """Whether the layers run in another dtype than requested."""
        return self.layers != self.dtype

    @property
    def note(self) -> str:
        """What really ran, in words."""
        if not self.emulated:
            return f"{self.precision}: the whole network ran in it"
        return (
            f"{self.precision}: emulated, since this model cannot run in it on {self.device.type}: the layers ran in "
            f"{_short(self.layers)}; only images, logits, the loss and both gradients are in {self.precision}"
        )

    def forward(self, x: Tensor) -> tuple[Tensor, Backward]:
        """Detached logits in `dtype`, and the way back."""
        with torch.enable_grad():
            leaf = x.detach().to(self.dtype).to(self.device, self.layers).requires_grad_()
            output = as_logits(self.model(leaf), len(leaf))

        def back(weights: Tensor) -> Tensor:
            if not output.requires_grad:
                return torch.zeros_like(leaf, dtype=self.dtype)
            (grad,) = pull_back([output], [leaf], [weights.to(output)], keep=True)
            return torch.zeros_like(leaf, dtype=self.dtype) if grad is None else grad.to(self.dtype)

        return output.detach().to(self.dtype), back


@contextmanager
def at_precision(model: Model, precision: str, sample: Tensor) -> Iterator[Network]:
    """The model in `precision` where it runs there, forward and back, on `sample` images; else emulated.

    Float64 runs on the CPU where the device has none (MPS).
    """
    home = device_of(model) or torch.device("cpu")
    with ExitStack() as stack:
        real = _real(stack, model, precision, home, sample)
        if real is None:
            prepared = stack.enter_context(prepare_model(model, device=home))
            layers = dtype_of(model) or torch.float32
            real = Network(prepared.model, precision, get_precision(precision), layers, home)
        yield real


def _real(stack: ExitStack, model: Model, precision: str, home: torch.device, sample: Tensor) -> Network | None:
    dtype = get_precision(precision)
    device = torch.device("cpu") if home.type == "mps" and dtype == torch.float64 else home
    try:
        prepared = stack.enter_context(prepare_model(model, precision, device))
        network = Network(prepared.model, precision, dtype, dtype, device)
        output = as_logits(prepared.model(sample.to(dtype).to(device)), len(sample))
        if output.dtype != dtype:  # a layer, or the callable itself, casts to a dtype of its own
            return None
        logits, back = network.forward(sample)
        back(torch.ones_like(logits))
    except _UNSUPPORTED:
        return None
    return network


def _short(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
