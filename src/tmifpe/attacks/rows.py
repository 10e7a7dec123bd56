"""Tables of tensors with one row per example: what the loop moves in and out of the batch."""

from __future__ import annotations

__all__ = ["Problem", "Rows"]

import dataclasses
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor

from tmifpe.core.types import Threat

R = TypeVar("R", bound="Rows")


@dataclass
class Rows:
    """A dataclass whose tensors all count examples along dimension 0; other fields are shared by all rows."""

    def take(self: R, rows: Tensor) -> R:
        """The rows at these positions (or where this mask is true), as a new table."""
        if rows.dtype == torch.bool:
            rows = rows.nonzero()[:, 0]
        # index_select and index_copy_ move whole rows; indexing by brackets moves numbers one by one.
        return self._each(lambda tensor: tensor.index_select(0, rows))

    def split(self: R, count: int) -> tuple[R, R]:
        """The first `count` rows and the others, as views."""
        return self._each(lambda tensor: tensor[:count]), self._each(lambda tensor: tensor[count:])

    def put(self: R, rows: Tensor, other: R) -> None:
        """Overwrite the rows at these positions by those of `other`, in place."""
        for name, tensor in self._tensors():
            tensor.index_copy_(0, rows, getattr(other, name))

    def join(self: R, other: R) -> R:
        """The rows of both tables, these first."""
        mine = {name: torch.cat([tensor, getattr(other, name)]) for name, tensor in self._tensors()}
        return dataclasses.replace(self, **mine)

    def _each(self: R, change: Any) -> R:
        return dataclasses.replace(self, **{name: change(tensor) for name, tensor in self._tensors()})

    def _tensors(self) -> list[tuple[str, Tensor]]:
        pairs = ((f.name, getattr(self, f.name)) for f in dataclasses.fields(self))
        return [(name, value) for name, value in pairs if isinstance(value, Tensor)]


@dataclass
class Problem(Rows):
    """What an attack is given: clean images in the box, true labels, targets if it is targeted, the threat,
    and where its random numbers come from (seed, example index, stage). `clean` are the logits at x, where known;
    `start` the points to begin at, where the attack's own start is not wanted."""

    x: Tensor
    labels: Tensor
    targets: Tensor | None
    indices: Tensor
    threat: Threat
    seed: int = 0
    stage: int = 0
    clean: Tensor | None = None
    start: Tensor | None = None

    def __len__(self) -> int:
        return len(self.x)

    def succeeded(self, predictions: Tensor) -> Tensor:
        """Untargeted: any class but the label. Targeted: the target."""
        return predictions != self.labels if self.targets is None else predictions == self.targets
