"""What the bounds know of a network: a list of nodes, each a function of earlier ones."""

from __future__ import annotations

__all__ = ["Graph", "Lines", "Node", "Range", "dot", "total"]

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from tmifpe.certificates.rounding import Rounding


@dataclass(frozen=True)
class Range:
    """Where the values of a node lie, for every image of a row's region: low and high (n, *shape), in float64."""

    low: Tensor
    high: Tensor
    error: Tensor
    """How far the value that the model computes may be from the real one."""
    size: Tensor
    """What rounding is measured by: at least the absolute value, and the sum of those of all terms of a sum."""

    @property
    def largest(self) -> Tensor:
        """The largest absolute value, also of what the model computes."""
        return torch.maximum(self.low.abs(), self.high.abs()) + self.error

    def take(self, rows: Tensor) -> Range:
        return Range(self.low[rows], self.high[rows], self.error[rows], self.size[rows])


@dataclass(frozen=True)
class Lines:
    """Linear functions of the inputs of a node that bound one of its own: (n, S) of them for n rows."""

    coefficients: tuple[Tensor, ...]
    """(n, S, *shape), for each input."""
    below: Tensor
    """What is added in the bound from below, (n, S)."""
    above: Tensor
    """And in the bound from above, if the two are parallel: then they share their coefficients."""
    size: Tensor
    """The absolute values that were added up on the way, which the rounding is measured by."""


def dot(coefficients: Tensor, values: Tensor) -> Tensor:
    """(n, S, *shape) times (n, *shape), added up: (n, S)."""
    return torch.bmm(coefficients.flatten(2), values.flatten(1)[:, :, None])[:, :, 0]


def total(coefficients: Tensor, size: Tensor) -> Tensor:
    """At least sum |coefficients| size, (n, S): cheaply, since it is only multiplied by float64's rounding."""
    return torch.linalg.vector_norm(coefficients.flatten(2), ord=1, dim=2) * size.flatten(1).amax(dim=1, keepdim=True)


class Node(Protocol):
    """A function of earlier nodes, whose numbers are `inputs`; `shape` leaves out the batch."""

    @property
    def inputs(self) -> tuple[int, ...]: ...

    @property
    def shape(self) -> tuple[int, ...]: ...

    @property
    def terms(self) -> int:
        """The most terms that are added up for a value; 0 where values are only moved."""
        ...

    def value(self, *inputs: Tensor) -> Tensor:
        """The function itself, (n, *shape)."""
        ...

    def reach(self, ranges: Sequence[Range], model: Rounding) -> Range:
        """The range of the node, from those of its inputs."""
        ...

    def back(self, coefficients: Tensor, ranges: Sequence[Range], own: Range, parallel: bool) -> Lines:
        """From `coefficients * node` to linear functions of the inputs that bound it in these ranges: from below, or,
        `parallel`, from both sides."""
        ...


@dataclass(frozen=True)
class Graph:
    """Node 0 is the image, the last one the logits; `nodes[i - 1]` is node i."""

    shape: tuple[int, ...]
    nodes: tuple[Node, ...]

    def __call__(self, x: Tensor) -> Tensor:
        values = [x]
        for node in self.nodes:
            values.append(node.value(*(values[i] for i in node.inputs)))
        return values[-1]

    @property
    def longest(self) -> int:
        """The most terms of any sum in the computation of a bound."""
        widths = [torch.Size(shape).numel() for shape in (self.shape, *(node.shape for node in self.nodes))]
        return max(widths) + max((node.terms for node in self.nodes), default=0) + 4 * len(self.nodes) + 32
