"""The two ways data is held: whole in memory, or one example at a time."""

from __future__ import annotations

__all__ = ["ArrayData", "Item", "LazyData"]

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import prod
from typing import Any, TypeAlias

import torch
from torch import Tensor

from tmifpe.core.errors import InputError
from tmifpe.core.hashing import digest
from tmifpe.core.types import UNIT, Box
from tmifpe.data.checks import as_images, check_images, check_labels

Item: TypeAlias = Callable[[int], tuple[Tensor, int]]
"""From a position to one image (uint8, or floating in [0, 1]) and its label."""

_HASH_ALL_BYTES = 1 << 30
_HASH_SAMPLES = 256


class ArrayData:
    """Images and labels held in memory, uint8 images as uint8 until they are fetched.

    >>> data = ArrayData(torch.full((3, 1, 2, 2), 255, dtype=torch.uint8), [0, 1, 2], name="white", classes=3)
    >>> images, labels = data.fetch([2, 0])
    >>> images.shape, float(images.max()), labels.tolist()
    (torch.Size([2, 1, 2, 2]), 1.0, [2, 0])
    """

    def __init__(self, images: Any, labels: Any, *, name: str, classes: int | None = None, unit: bool = False) -> None:
        """unit: floating images are known to be in [0, 1], and are scaled where another box is asked for."""
        self._images = as_images(images, name)
        self.labels = check_labels(labels, len(self._images), name).to(self._images.device)
        self.name = name
        self.classes = classes
        self._box, self._unit = UNIT, unit
        if classes is not None and int(self.labels.max()) >= classes:
            raise InputError(f"{name} has label {int(self.labels.max())} but only {classes} classes, counted from 0")

    @property
    def identity(self) -> str:
        """Over the bytes of the images and labels: the same for any file format that holds them."""
        return self._identity

    @cached_property
    def _identity(self) -> str:
        return digest([self._images, self.labels])

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self._images.shape[1:])

    @property
    def indices(self) -> Sequence[int]:
        return range(len(self))

    def boxed(self, box: Box) -> ArrayData:
        """The same examples for a threat's box."""
        other = copy.copy(self)
        other._box = box
        return other

    def __len__(self) -> int:
        return len(self._images)

    def __repr__(self) -> str:
        return f"<{len(self)} examples of {self.name}, {'x'.join(map(str, self.shape))}>"

    def fetch(self, positions: Sequence[int]) -> tuple[Tensor, Tensor]:
        where = torch.as_tensor(positions, dtype=torch.int64, device=self._images.device)
        images = self._images[where].contiguous()
        return check_images(images, self.name, self._box, unit=self._unit), self.labels[where]


@dataclass(frozen=True)
class LazyData:
    """Examples read one by one when they are fetched, so that a large set need not fit in memory.

    `stamp` is the identity where the source knows one cheaply (a folder's listing); without it, the identity
    covers every example if they are at most 1 GiB together, else 256 of them, evenly spread.
    """

    item: Item
    length: int
    name: str
    classes: int | None = None
    stamp: str | None = None
    box: Box = UNIT

    def __post_init__(self) -> None:
        if self.length < 1:
            raise InputError(f"{self.name} is empty; nothing to evaluate")

    @property
    def identity(self) -> str:
        return self._identity

    @cached_property
    def _identity(self) -> str:
        if self.stamp is not None:
            return self.stamp
        stride = 1
        if prod(self.shape) * 4 * self.length > _HASH_ALL_BYTES:
            stride = max(1, self.length // _HASH_SAMPLES)
        pieces = (self.fetch([position]) for position in range(0, self.length, stride))
        return digest([str(self.length), *(digest(piece) for piece in pieces)])

    @property
    def shape(self) -> tuple[int, ...]:
        return self._shape

    @cached_property
    def _shape(self) -> tuple[int, ...]:
        return tuple(self.item(0)[0].shape)

    @property
    def indices(self) -> Sequence[int]:
        return range(self.length)

    def boxed(self, box: Box) -> LazyData:
        """The same examples for a threat's box."""
        return replace(self, box=box)

    def example(self, position: int) -> str:
        """What an error calls the example at this position."""
        return f"example {position}"

    def _misfit(self, position: int, shape: tuple[int, ...]) -> InputError:
        one, first = self.example(position), self.example(0)
        if shape[1:] == self.shape[1:]:
            return InputError(
                f"{self.name}: {one} has {_channels(shape[0])}, but {first} has {_channels(self.shape[0])}; all images "
                "must have the same: convert the odd ones out to RGB or to grey, whichever the model takes"
            )
        return InputError(
            f"{self.name}: {one} has shape {shape}, but {first} has {self.shape}; all images must have one size"
        )

    def __len__(self) -> int:
        return self.length

    def fetch(self, positions: Sequence[int]) -> tuple[Tensor, Tensor]:
        if len(positions) == 0:
            return torch.empty(0, *self.shape), torch.empty(0, dtype=torch.int64)
        images, labels = zip(*(self.item(int(position)) for position in positions), strict=True)
        for position, image in zip(positions, images, strict=True):
            if tuple(image.shape) != self.shape:
                raise self._misfit(int(position), tuple(image.shape))
        try:
            batch = as_images(torch.stack(images), self.name)
        except (RuntimeError, TypeError) as error:  # of several devices, layouts or kinds
            raise InputError(f"the images of {self.name} do not fit together: {error}") from error
        return check_images(batch, self.name, self.box), check_labels(list(labels), len(batch), self.name)


def _channels(number: int) -> str:
    return "1 channel (grey)" if number == 1 else f"{number} channels"
