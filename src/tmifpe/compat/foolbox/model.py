"""foolbox's `PyTorchModel`: a network with its bounds and its preprocessing."""

from __future__ import annotations

__all__ = ["BoundedModel", "PyTorchModel", "accuracy"]

from collections.abc import Sequence
from typing import NamedTuple, Protocol, TypedDict

import torch
from torch import Tensor, nn

from tmifpe.compat.foolbox.criteria import as_tensor
from tmifpe.compat.inputs import check_batch
from tmifpe.core.errors import InputError, shown


class Bounds(NamedTuple):
    """The lowest and the highest value of a pixel."""

    lower: float
    upper: float


class BoundedModel(Protocol):
    """What the attacks need of a model; foolbox's own `PyTorchModel` has it too."""

    @property
    def bounds(self) -> tuple[float, float]: ...

    def __call__(self, inputs: Tensor) -> Tensor: ...


class Preprocessing(TypedDict, total=False):
    """(x - mean) / std along `axis`, a negative number; `flip_axis` reverses that axis first."""

    mean: float | Sequence[float] | Tensor
    std: float | Sequence[float] | Tensor
    axis: int
    flip_axis: int


class PyTorchModel(nn.Module):
    """Logits of images within `bounds`. The network is moved to `device`, in its own mode; attacks use eval mode.

    >>> model = PyTorchModel(nn.Flatten(), bounds=(0, 255), preprocessing={"mean": 0.0, "std": 255.0})
    >>> model(torch.full((1, 1, 1, 2), 51.0))
    tensor([[0.2000, 0.2000]])
    """

    def __init__(
        self,
        model: nn.Module,
        bounds: tuple[float, float],
        device: str | torch.device | None = None,
        preprocessing: Preprocessing | None = None,
    ) -> None:
        super().__init__()
        if not isinstance(model, nn.Module):
            raise InputError(f"expected model to be a torch.nn.Module, got {shown(model)}")
        # foolbox moves it to a GPU where there is one; here it stays unless told, as all of tmifpe has it.
        self.network = model if device is None else model.to(device)
        self.bounds, self.data_format = Bounds(*bounds), "channels_first"
        given = dict(preprocessing or {})
        if unknown := set(given) - set(Preprocessing.__annotations__):
            raise InputError(f"preprocessing takes mean, std, axis and flip_axis, got {', '.join(sorted(unknown))}")
        self.flip_axis = given.get("flip_axis")
        self.mean, self.std = (self._along(given.get(name), given.get("axis")) for name in ("mean", "std"))

    def forward(self, inputs: Tensor) -> Tensor:
        x = as_tensor(inputs)
        if isinstance(self.flip_axis, int):
            x = x.flip(self.flip_axis)
        if self.mean is not None:
            x = x - self.mean.to(x)
        if self.std is not None:
            x = x / self.std.to(x)
        return self.network(x)

    @staticmethod
    def _along(values: object, axis: object) -> Tensor | None:
        if values is None:
            return None
        tensor = torch.as_tensor(values, dtype=torch.float32)
        if not tensor.dim():
            return tensor
        if not isinstance(axis, int) or axis >= 0:
            raise InputError("with one number per channel, preprocessing needs a negative axis, such as -3")
        return tensor.reshape(-1, *[1] * (-axis - 1))


@torch.no_grad()
def accuracy(fmodel: BoundedModel, inputs: Tensor, labels: Tensor) -> float:
    """The share of the inputs that are classified as labelled."""
    check_batch(as_tensor(inputs), as_tensor(labels))
    logits = fmodel(as_tensor(inputs))
    return float((logits.argmax(dim=-1) == as_tensor(labels).to(logits.device)).float().mean())
