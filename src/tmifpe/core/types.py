"""The basic types: what an attacker may do, and what models and data are."""

from __future__ import annotations

__all__ = ["UNIT", "Box", "Classifier", "Data", "Logits", "Model", "Threat"]

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias, runtime_checkable

from torch import Tensor

from tmifpe.core.errors import InputError
from tmifpe.core.numbers import read_number

Logits: TypeAlias = Tensor
"""(n, K): one row per example, one column per class, before any softmax."""

Model: TypeAlias = Callable[[Tensor], Tensor]
"""An `nn.Module` or any callable from images (n, C, H, W) to logits (n, K)."""


Box: TypeAlias = tuple[float, float]
"""The lowest and the highest value of a pixel."""

UNIT: Box = (0.0, 1.0)
"""The box of images unless another is given."""

_FAR = 1e6
"""In units of the box: more than the diameter of any image, and small enough for every step to stay finite."""


_NORMS = {"inf": "linf", "2": "l2", "2.0": "l2", "1": "l1", "1.0": "l1"}
"""What numpy and torch call them."""


@dataclass(frozen=True)
class Threat:
    """What the attacker may do: move an image by at most `eps` in `norm`, inside the box [low, high].

    Images and `eps` are in the units of the box: for pixels of 0 to 255 it is `Threat("linf", 8, 0, 255)`.

    >>> Threat("linf", "8/255").eps == 8 / 255
    True
    """

    norm: str
    eps: float
    low: float = 0.0
    high: float = 1.0

    def __post_init__(self) -> None:
        name = str(self.norm)
        if ":" not in name:  # a file's name is left as it is
            name = _NORMS.get(name.lower(), name.lower())
        object.__setattr__(self, "norm", name)
        for name in ("eps", "low", "high"):
            object.__setattr__(self, name, read_number(name, getattr(self, name)))
        if self.eps < 0:
            raise InputError(f"eps must not be negative, got {self.eps}")
        if not self.low < self.high:
            raise InputError(f"the box needs low < high, got [{self.low}, {self.high}]")
        if self.high - self.low < 1e-30 or max(abs(self.low), abs(self.high)) > 1e30:
            raise InputError(f"the box [{self.low}, {self.high}] leaves no room for arithmetic in float32")
        if self.eps > _FAR * (self.high - self.low):
            raise InputError(f"eps {self.eps:g} is far beyond the box [{self.low:g}, {self.high:g}]; check the units")

    @property
    def box(self) -> Box:
        return self.low, self.high

    @property
    def within(self) -> str:
        """The box in words, where it is not the usual one.

        >>> Threat("linf", 8, 0, 255).within, Threat("linf", 0.1).within
        (' in [0, 255]', '')
        """
        return "" if self.box == UNIT else f" in [{self.low:g}, {self.high:g}]"


@dataclass(frozen=True)
class Classifier:
    """A model as a source hands it over: to logits, on images in its `box`, normalisation inside.

    `identity` tells two models apart: it covers the weights and, for a user's factory, its file.
    Unknown facts are None, and then not checked against the data.
    """

    module: Model
    name: str
    identity: str
    classes: int | None = None
    input_shape: tuple[int, ...] | None = None
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None
    notes: tuple[str, ...] = field(default=())
    class_names: tuple[str, ...] = ()
    """What the model itself calls its classes, where it says."""
    box: Box | None = None
    """The images it was made for; None where nobody knows, and then it is given those of the threat's box."""
    takes_bytes: bool = False
    """Whether it rounds images to bytes first."""
    options: tuple[str, ...] = ()
    """What it was loaded with besides its name: `weights=...`, `mean=...`, `std=...`."""
    resizes: bool = False
    """Whether it brings images of any size to that of `input_shape` by itself."""
    source: Callable[[], Classifier] | None = field(default=None, compare=False, repr=False)
    """Loads it again, in another process."""

    def __call__(self, x: Tensor) -> Tensor:
        """The logits of images x (n, C, H, W)."""
        return self.module(x)


@runtime_checkable
class Data(Protocol):
    """Labelled images, or other tensors of numbers in a box, in a stable order; read in pieces, so that large sets
    need not fit in memory.

    `indices[p]` is the position in the full source of the example at position `p` here. A subset keeps these
    original indices, and random starts are seeded by them; `fetch` takes positions 0 … len-1 of this (sub)set.
    """

    @property
    def name(self) -> str: ...

    @property
    def identity(self) -> str:
        """A hash that changes when the images or labels change."""
        ...

    @property
    def shape(self) -> tuple[int, ...]:
        """(C, H, W) of one image."""
        ...

    @property
    def classes(self) -> int | None:
        """How many classes the labels come from, where that is known without reading them all."""
        ...

    @property
    def indices(self) -> Sequence[int]:
        """The position of each example in the full source; 0 … len-1 for the full source itself."""
        ...

    def __len__(self) -> int: ...

    def fetch(self, positions: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Images (n, C, H, W), floating, in [0, 1] or the threat's box; labels (n,) int64, in the order of
        `positions`."""
        ...
