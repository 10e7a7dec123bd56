"""What checks may cost: a small share of the run that they are about."""

from __future__ import annotations

__all__ = ["FROM", "SHARE", "Allowance", "spread"]

import math
from dataclasses import dataclass, field

import numpy as np

from tmifpe.attacks.loop.queries import Tally

SHARE = 0.05
"""Of the run's own forward passes, at most, spent on checks ..."""
FROM = 500
"""... where it has so many examples or more. A smaller run is checked in full: at most about 3,000 passes."""


@dataclass
class Allowance:
    """The forward passes that checks may take, those taken so far, and what was left out to stay within them."""

    most: float = math.inf
    tally: Tally = field(default_factory=Tally)
    cut: list[str] = field(default_factory=list)

    @classmethod
    def of(cls, forwards: int, n: int) -> Allowance:
        """For a run that took so many forward passes on n examples.

        >>> Allowance.of(50_000, 500).most, Allowance.of(50_000, 499).most
        (2500, inf)
        """
        return cls(int(SHARE * forwards) if n >= FROM else math.inf)

    @property
    def left(self) -> float:
        return self.most - self.tally.forwards

    def rows(self, what: str, each: int, wanted: int, share: float = 1.0, least: int = 1) -> int:
        """How many of the `wanted` examples a check may look at for `each` passes and a share of what is left; 0 if
        that is less than `least`, which makes it worthless. Notes where it is fewer than wanted."""
        possible = wanted if math.isinf(self.most) else min(wanted, int(share * self.left // each))
        if possible < min(least, wanted):
            self.cut.append(f"{what} left out")
            return 0
        if possible < wanted:
            self.cut.append(f"{what} on {possible} examples instead of {wanted}")
        return possible


def spread(n: int, count: int) -> np.ndarray:
    """`count` of the positions 0 … n-1, evenly spread, since data is often sorted by class.

    >>> spread(5, 3).tolist(), spread(2, 8).tolist()
    ([0, 2, 4], [0, 1])
    """
    return np.linspace(0, n - 1, min(n, count)).astype(int)
