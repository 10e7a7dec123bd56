"""Getting a user's model ready for an evaluation, without changing it for the user."""

from __future__ import annotations

__all__ = ["PreparedModel", "pick_device", "prepare_model", "without_autocast"]

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import nn

from tmifpe.attacks.loop.frozen import device_of, dtype_of, frozen
from tmifpe.core.errors import InputError, first_line, shown
from tmifpe.core.numerics import compute_dtype
from tmifpe.core.types import Model
from tmifpe.run.spec import PRECISIONS, get_precision

_AUTOCAST = (
    "torch.autocast was on around this call and was switched off within; for a model that runs in low precision give "
    "`precision`, or write the autocast into its forward pass"
)


@dataclass(frozen=True)
class PreparedModel:
    """A model in eval mode on its device, the dtype it runs in, and the dtype images are moved in."""

    model: Model
    dtype: torch.dtype
    device: torch.device
    straight_through: tuple[str, ...] = ()
    """Modules that gradients pass as if they were the identity."""
    fast: Model | None = None
    """A copy that runs faster, which attacks follow; the model itself gives the verdicts."""
    copies: tuple[Model, ...] = ()
    """More of `fast`, one for every part that the rows are dealt to; empty where there is one loop for all."""
    notes: tuple[str, ...] = ()
    """What a reader of its results should know of where it was called."""

    @property
    def image_dtype(self) -> torch.dtype:
        return compute_dtype(self.dtype)

    @property
    def precision(self) -> str:
        return next(name for name, dtype in PRECISIONS.items() if dtype == self.dtype)


@contextmanager
def prepare_model(
    model: Model, precision: str | None = None, device: str | torch.device | None = None
) -> Iterator[PreparedModel]:
    """The model in the wanted precision and place; a copy is converted where it differs, never the user's own.

    An autocast around the call is switched off within: results say in which precision the model ran. One of the model's
    own, in its forward pass, is part of it.
    """
    own = dtype_of(model)
    dtype = get_precision(precision) if precision is not None else (own or torch.float32)
    if dtype not in PRECISIONS.values():
        raise InputError(f"the model runs in {dtype}; choose a precision out of {', '.join(PRECISIONS)}")
    place = pick_device(device) if device is not None else (device_of(model) or torch.device("cpu"))
    if isinstance(model, nn.Module) and (own not in (None, dtype) or device_of(model) not in (None, place)):
        try:
            model = copy.deepcopy(model).to(device=place, dtype=dtype)
        except (RuntimeError, TypeError, NotImplementedError) as error:
            raise InputError(f"this model cannot be converted to {dtype} on {place}: {error}") from error
    with frozen(model) as still, without_autocast(place) as notes:
        yield PreparedModel(still, dtype, place, notes=notes)


@contextmanager
def without_autocast(place: torch.device) -> Iterator[tuple[str, ...]]:
    """Within, an autocast of the caller's is off; what to note if there was one."""
    if not torch.amp.is_autocast_available(place.type) or not torch.is_autocast_enabled(place.type):
        yield ()
        return
    with torch.autocast(place.type, enabled=False):
        yield (_AUTOCAST,)


def pick_device(name: str | torch.device) -> torch.device:
    """`auto` is CUDA, then Apple's MPS, then the CPU; anything else as torch spells it."""
    if name == "auto":
        if torch.cuda.is_available():
            return pick_device("cuda")
        return pick_device("mps" if torch.backends.mps.is_available() else "cpu")
    try:
        tried = torch.zeros(1, device=torch.device(name)) + 1
        tried.item()  # the meta device, say, makes tensors but holds no values
    except Exception as error:  # every backend fails in its own way
        reason = first_line(error)
        raise InputError(f"device {shown(str(name))} cannot be used here: {reason}") from error
    return tried.device  # "cuda" has become "cuda:0", as tensors call it: equal to where a model there says it is
