"""An operation of a traced pass, as the table of known operations sees it."""

from __future__ import annotations

__all__ = ["Call", "Refused", "Variable", "variable"]

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from tmifpe.certificates.node import Node


class Refused(Exception):
    """No bounds are known for an operation; says why, in words that follow "which"."""


@dataclass(frozen=True)
class Variable:
    """A node of the network, by number; `shape` leaves out the batch."""

    number: int
    shape: tuple[int, ...]


@dataclass(frozen=True)
class Call:
    """An operation in a traced pass: its arguments, shape (with the batch) and dtype of its result, where nodes go."""

    args: Sequence[Any]
    kwargs: dict[str, Any]
    result: tuple[int, ...]
    batch: int
    device: torch.device
    dtype: torch.dtype
    add: Callable[[Node], Variable]

    def get(self, place: int, name: str, default: Any) -> Any:
        return self.args[place] if len(self.args) > place else self.kwargs.get(name, default)

    @property
    def x(self) -> Variable:
        """The first argument, which must be a node."""
        return variable(self.args[0])

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the result, without the batch."""
        if not self.result or self.result[0] != self.batch:
            raise Refused("mixes images of a batch")
        return self.result[1:]

    def constant(self, value: Any) -> Tensor:
        """A weight, or a number as the model's dtype has it, in float64."""
        if isinstance(value, Tensor):
            return value.to(self.device).double()
        if not isinstance(value, int | float):
            raise Refused("multiplies or divides by something that depends on the image")
        return torch.tensor(value, dtype=self.dtype, device=self.device).double()

    def dimension(self, number: int, of: int | None = None) -> int:
        """A dimension of the first argument, counted from 0, the batch."""
        sides = len(self.x.shape) + 1 if of is None else of
        number = number % sides
        if number == 0:
            raise Refused("mixes images of a batch")
        return number


def variable(value: Any) -> Variable:
    if not isinstance(value, Variable):
        raise Refused("takes its values from elsewhere")
    return value
