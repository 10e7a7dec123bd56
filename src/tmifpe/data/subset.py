"""A part of the data that remembers where it came from."""

from __future__ import annotations

__all__ = ["Subset", "in_box", "read_indices", "read_numbers", "subset"]

import operator
import re
from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tmifpe.core.errors import InputError, shown
from tmifpe.core.hashing import digest
from tmifpe.core.types import Box, Data
from tmifpe.data.checks import check_size, existing
from tmifpe.data.npz import read_header

_MAX_FILE = 256 << 20
_WHOLE = re.compile(r"[+-]?[0-9]{1,18}")


class Subset:
    """Some examples of `data`, in a given order, with their original indices."""

    def __init__(self, data: Data, positions: Sequence[int]) -> None:
        self._data = data
        self._positions = list(positions)
        full = data.indices
        self._indices = [int(full[position]) for position in self._positions]
        self.name = data.name

    @property
    def identity(self) -> str:
        return self._identity

    @cached_property
    def _identity(self) -> str:
        return digest([self._data.identity, torch.tensor(self._positions)])

    @property
    def shape(self) -> tuple[int, ...]:
        return self._data.shape

    @property
    def classes(self) -> int | None:
        return self._data.classes

    @property
    def indices(self) -> Sequence[int]:
        return self._indices

    @property
    def labels(self) -> Tensor | None:
        """The labels where they are at hand without reading images, else None."""
        labels: Tensor | None = getattr(self._data, "labels", None)
        return None if labels is None else labels[torch.tensor(self._positions, device=labels.device)]

    @property
    def whole_labels(self) -> Tensor | None:
        """The labels of the full source, likewise."""
        return self._data.whole_labels if isinstance(self._data, Subset) else getattr(self._data, "labels", None)

    @property
    def files(self) -> list[str] | None:
        """The file of each example, where the source has one for each."""
        files = getattr(self._data, "files", None)
        return None if files is None else [files[position] for position in self._positions]

    @property
    def class_names(self) -> tuple[str, ...]:
        return getattr(self._data, "class_names", ())

    @property
    def total(self) -> int:
        """How many examples the full source has."""
        return getattr(self._data, "total", len(self._data))

    def boxed(self, box: Box) -> Subset:
        """The same examples for a threat's box."""
        return Subset(in_box(self._data, box), self._positions)

    def __len__(self) -> int:
        return len(self._positions)

    def __repr__(self) -> str:
        return f"<{len(self)} of the {self.total} examples of {self.name}, {'x'.join(map(str, self.shape))}>"

    def fetch(self, positions: Sequence[int]) -> tuple[Tensor, Tensor]:
        return self._data.fetch([self._positions[int(position)] for position in positions])


def in_box(data: Data, box: Box) -> Data:
    """The same data for a threat's box: bytes fill it, floating images must lie in it. Data of another make is taken to
    be in it already."""
    boxed: Callable[[Box], Data] | None = getattr(data, "boxed", None)
    return data if boxed is None else boxed(box)


def subset(data: Data, indices: Sequence[int | str]) -> Data:
    """The examples at these positions of `data`, in this order; a text names a file of an image folder.

    Positions are those of `data` itself; the result carries the indices of the full source. Truth values are a mask,
    one for every example of `data`, as in numpy and torch.
    """
    positions = [_position(data, index) for index in _unmasked(data, indices)]
    if not positions:
        raise InputError(f"the subset of {data.name} is empty; nothing to evaluate")
    if len(set(positions)) < len(positions):
        seen: set[int] = set()
        double = next(p for p in positions if p in seen or seen.add(p))
        raise InputError(f"index {double} of {data.name} is given twice; each example counts once")
    return Subset(data, positions)


def read_indices(path: str | Path) -> list[int | str]:
    """The indices in a file: `.npy`, or text with numbers (one per line or with commas) or, for image folders,
    names such as `n01440764/ILSVRC2012_val_00000293.JPEG`. A `#` starts a comment."""
    file = existing(str(path), "`indices`", folder=False)
    if file.stat().st_size > _MAX_FILE:
        raise InputError(f"{path} has more than {_MAX_FILE >> 20} MiB, too many for a list of indices")
    try:
        if file.suffix == ".npy":
            return _read_npy(file)
        lines = file.read_text(encoding="utf-8").splitlines()
    except InputError:
        raise
    except Exception as error:  # not text, or a damaged array
        raise InputError(f"cannot read indices from {path}: {error}") from error
    words = [word.strip() for line in lines for word in line.partition("#")[0].split(",")]
    found = [int(word) if _WHOLE.fullmatch(word) else word for word in words if word]
    if not found:
        raise InputError(f"{path} holds no indices")
    return found


def _read_npy(path: Path) -> list[int | str]:
    with path.open("rb") as file:
        shape, _, dtype = read_header(file)
        if len(shape) != 1 or dtype.kind not in "iu":
            raise InputError(f"{path} must hold whole numbers of shape (n,), got {dtype} {shape}")
        content = file.read()
    if len(content) != check_size(str(path), shape, dtype.itemsize):
        raise InputError(f"{path} does not hold the {shape[0]} numbers it declares; the file is damaged")
    return np.frombuffer(content, dtype).tolist()


def read_numbers(path: str | Path) -> list[int]:
    """The whole numbers in a file, for which names make no sense: say, one target class per example."""
    found = read_indices(path)
    names = [word for word in found if isinstance(word, str)]
    if names:
        raise InputError(f"{path} must hold whole numbers, got {names[0]!r}")
    return [int(number) for number in found]


def _unmasked(data: Data, indices: Sequence[Any]) -> Sequence[Any]:
    """The positions at which a mask is true; anything else as it is."""
    if isinstance(indices, range) or not any(map(_is_truth_value, indices)):
        return indices
    if len(indices) != len(data) or not all(map(_is_truth_value, indices)):
        raise InputError(
            f"indices with truth values among them are a mask, which needs one for each of the {len(data)} examples of "
            f"{data.name}, got {len(indices)} values; give that, or whole numbers"
        )
    return [position for position, chosen in enumerate(indices) if chosen]


def _is_truth_value(index: object) -> bool:
    return isinstance(index, bool | np.bool_) or (isinstance(index, Tensor) and index.dtype == torch.bool)


def _position(data: Data, index: int | str) -> int:
    if isinstance(index, str):
        locate = getattr(data, "locate", None)
        if locate is None:
            raise InputError(f"{shown(index)} is not an index; {data.name} has no file names, give whole numbers")
        return locate(index)
    try:
        position = operator.index(index)
    except TypeError:
        raise InputError(f"{shown(index)} is not an index of {data.name}; give whole numbers") from None
    if not 0 <= position < len(data):
        raise InputError(
            f"index {position} is outside {data.name}, which has {len(data)} examples (0 … {len(data) - 1})"
        )
    return position
