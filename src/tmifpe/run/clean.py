"""Clean logits that several runs of one model share: they depend on neither the attack nor the seed."""

from __future__ import annotations

__all__ = ["CleanLogits"]

from collections.abc import Callable
from dataclasses import dataclass, field

from torch import Tensor

_MOST_VALUES = 2**26
"""Logits kept in all, 256 MiB in float32; what does not fit is read again."""


@dataclass
class CleanLogits:
    """By shard. A randomised model gives different logits each time, so that nothing is shared (`shared=False`)."""

    shared: bool = False
    _kept: dict[range, Tensor] = field(default_factory=dict, repr=False)

    def at(self, positions: range, read: Callable[[], Tensor]) -> Tensor:
        """The logits at these positions, read unless they are known."""
        if positions in self._kept:
            return self._kept[positions]
        logits = read()
        if self.shared and sum(kept.numel() for kept in self._kept.values()) + logits.numel() <= _MOST_VALUES:
            self._kept[positions] = logits.cpu()
        return logits
