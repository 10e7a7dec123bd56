"""Normalisation inside the model, so that attacks and eps live on pixels in [0, 1]."""

from __future__ import annotations

__all__ = ["Normalize", "mean_and_std"]

from collections.abc import Sequence
from math import isfinite

import torch
from torch import Tensor, nn

from tmifpe.core.errors import InputError
from tmifpe.core.types import Model


class Normalize(nn.Module):
    """`network((x - mean) / std)`, channel by channel, in the dtype of x: wrap a network that was trained on normalised
    images in it, and evaluate it on the images themselves, so that eps is in their units.

    >>> double = Normalize(lambda x: x.flatten(1), mean=(0.0,), std=(0.5,))
    >>> double(torch.ones(1, 1, 1, 2)).tolist()
    [[2.0, 2.0]]
    """

    mean: Tensor
    std: Tensor

    def __init__(self, network: Model, mean: Sequence[float], std: Sequence[float]) -> None:
        super().__init__()
        self.network = network
        self.register_buffer("mean", torch.tensor(mean, dtype=torch.float32))
        self.register_buffer("std", torch.tensor(std, dtype=torch.float32))

    def forward(self, x: Tensor) -> Tensor:
        if x.ndim < 2 or x.shape[1] != len(self.mean):
            raise InputError(f"the model normalises {len(self.mean)} channels, the images have shape {tuple(x.shape)}")
        shape = (1, -1, *(1 for _ in x.shape[2:]))
        return self.network((x - self.mean.to(x.dtype).view(shape)) / self.std.to(x.dtype).view(shape))


def mean_and_std(
    mean: Sequence[float] | None, std: Sequence[float] | None, channels: int | None
) -> tuple[tuple[float, ...], tuple[float, ...]] | None:
    """Mean and std as tuples, one number per channel; None where neither is given."""
    if mean is None and std is None:
        return None
    if mean is None or std is None:
        raise InputError(f"give mean and std together; only {'std' if mean is None else 'mean'} was given")
    try:
        pair = tuple(float(m) for m in mean), tuple(float(s) for s in std)
    except (TypeError, ValueError):
        raise InputError(f"mean and std must be numbers, got {mean!r} and {std!r}") from None
    if len(pair[0]) != len(pair[1]) or not pair[0]:
        raise InputError(f"mean has {len(pair[0])} numbers and std {len(pair[1])}; give one per channel")
    if channels is not None and len(pair[0]) != channels:
        raise InputError(f"mean and std have {len(pair[0])} numbers but the model takes {channels} channels")
    if not all(isfinite(m) for m in pair[0]) or not all(isfinite(s) and s > 0 for s in pair[1]):
        raise InputError(f"mean must be finite and std finite and positive, got {pair[0]} and {pair[1]}")
    return pair
