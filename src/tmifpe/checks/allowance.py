"""What checks may cost: a small share of the run that they are about."""

from __future__ import annotations

__all__ = ["FEWEST", "NUMBERS", "OF_FULL", "SHARE", "SMALL", "Allowance", "cost", "spread"]

import math
from dataclasses import dataclass, field

import numpy as np

from tmifpe.attacks.loop.queries import Tally

SHARE = 0.05
"""Of the run's own cost, at most, spent on checks ..."""
SMALL = 4000
"""... or so many passes, where that is more, but never more than the attack itself ..."""
OF_FULL = 0.2
"""... and of `full`, the default, no more than this share. Of other attacks, but for `quick`, in any case ..."""
FEWEST, NUMBERS = 3000, 2_000_000
"""... so many passes of small images, or so many numbers in all of larger ones: too little time to save."""


def cost(tally: Tally) -> int:
    """In forward passes: a backward pass takes about as long as two.

    >>> cost(Tally(10, 5))
    20
    """
    return tally.forwards + 2 * tally.backwards


@dataclass
class Allowance:
    """What checks may cost, what they have, and what was left out to stay within."""

    most: float = math.inf
    tally: Tally = field(default_factory=Tally)
    cut: list[str] = field(default_factory=list)

    @classmethod
    def of(cls, tally: Tally, numbers: int = 0, full: bool = False) -> Allowance:
        """For a run that took these passes; `numbers` of an image, where so many passes as it allows are no matter.

        >>> [Allowance.of(Tally(n)).most for n in (100_000, 500)], Allowance.of(Tally(500), full=True).most
        ([5000, 500], 100)
        >>> Allowance.of(Tally(500), 64).most, Allowance.of(Tally(10), 3 * 224 * 224).most
        (3000, 13)
        """
        spent = cost(tally)
        most = max(SHARE * spent, min((OF_FULL if full else 1) * spent, SMALL))
        return cls(int(max(most, min(FEWEST, NUMBERS / numbers) if numbers else 0)))

    @property
    def left(self) -> float:
        return max(0, self.most - cost(self.tally))

    def rows(self, what: str, each: int, wanted: int, share: float = 1.0, least: int = 1) -> int:
        """How many of the `wanted` examples a check may look at, at `each` a piece and for a share of what is left; 0
        if that is less than `least`, which makes it worthless. Notes where it is fewer than wanted."""
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
