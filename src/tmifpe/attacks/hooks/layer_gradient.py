"""What becomes of the gradient at one module, on its way back from the logits to the images."""

from __future__ import annotations

__all__ = ["MARKED", "LayerGradient"]

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

MARKED = 0.1
"""The share of the rows from which the loss of their gradient counts as a property of the module."""


@dataclass(frozen=True)
class LayerGradient:
    """One call of a module. Shares in [0, 1] of the rows that have a gradient behind the module.

    >>> dead = LayerGradient("encoder.quantise", "Quantise", call=1, none=1.0)
    >>> str(dead), dead.dies
    ('encoder.quantise (Quantise)', True)
    """

    name: str
    kind: str
    """The name of its class."""
    call: int
    """1 for the first call of this module in the forward pass."""
    none: float
    """Rows that have no gradient in front of it, or one that is not finite."""
    faint: float = 0.0
    """Further rows that have nearly none: a change of the input by 1 % would change the output by 0.0001 %."""
    shattered: float = 0.0
    """Further rows whose gradient points elsewhere, by 60 degrees or more, a small step away."""
    off: float | None = None
    """Units that pass no gradient, for modules without parameters that keep the shape: dead ReLUs."""
    own: bool = False
    """The loss is in the forward pass of this module itself, between the modules that it calls."""

    @property
    def dies(self) -> bool:
        return self.none + self.faint + self.shattered >= MARKED

    @classmethod
    def from_json(cls, plain: Mapping[str, Any]) -> LayerGradient:
        """As a store has it; `KeyError`, `TypeError` or `ValueError` where that is no layer."""
        if not isinstance(plain["name"], str) or not isinstance(plain["kind"], str):
            raise TypeError("text is expected")
        return cls(
            plain["name"],
            plain["kind"],
            int(plain["call"]),
            none=float(plain["none"]),
            faint=float(plain["faint"]),
            shattered=float(plain["shattered"]),
            off=None if plain["off"] is None else float(plain["off"]),
            own=bool(plain["own"]),
        )

    def __str__(self) -> str:
        return f"{self.name or 'the model itself'} ({self.kind})" + (f", call {self.call}" if self.call > 1 else "")
