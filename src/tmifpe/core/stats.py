"""How certain a proportion is, and whether two differ by more than chance."""

from __future__ import annotations

__all__ = ["PairedTest", "binomial_tail", "holm", "hypergeometric_bounds", "mcnemar", "student", "wilson"]

import math
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist, fmean, stdev
from typing import TYPE_CHECKING, Any

# scipy.special is imported inside the functions, since most commands never need it. It holds the distributions that
# scipy.stats is built on, at a third of the time to import (0.4 s against 1.3 s, torch and numpy being loaded).
if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


def wilson(successes: float, n: int, confidence: float = 0.95) -> tuple[float, float]:
    """Wilson's score interval of a proportion: right near 0 and 1 too, where the textbook interval is not.

    Successes need not be whole: a mean over seeds is not.

    >>> low, high = wilson(50, 100)
    >>> round(low, 4), round(high, 4)
    (0.4038, 0.5962)
    """
    if n == 0:
        return 0.0, 1.0
    z = NormalDist().inv_cdf((1 + confidence) / 2)
    p = successes / n
    centre = (p + z * z / (2 * n)) / (1 + z * z / n)
    half = z / (1 + z * z / n) * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n))
    # At the ends the formula gives 0 and 1 up to rounding; say so exactly.
    low = 0.0 if successes == 0 else max(0.0, centre - half)
    high = 1.0 if successes == n else min(1.0, centre + half)
    return low, high


def student(values: Sequence[float], confidence: float = 0.95) -> tuple[float, float]:
    """Student's interval of the mean of some proportions, e.g. of the accuracy over draws; within [0, 1].

    >>> [round(bound, 4) for bound in student([0.4, 0.5, 0.6])]
    [0.2516, 0.7484]
    """
    from scipy.special import stdtrit

    if len(values) < 2:
        return 0.0, 1.0
    centre = fmean(values)
    quantile = float(stdtrit(len(values) - 1, (1 + confidence) / 2))
    half = quantile * stdev(values) / math.sqrt(len(values))
    return max(0.0, centre - half), min(1.0, centre + half)


def binomial_tail(successes: int, n: int, p: float) -> float:
    """P(X >= successes) for X ~ Binomial(n, p).

    >>> binomial_tail(2, 2, 0.5), binomial_tail(0, 2, 0.5)
    (0.25, 1.0)
    """
    from scipy.special import bdtrc

    return float(bdtrc(successes - 1, n, p))


def hypergeometric_bounds(found: int, sampled: int, total: int, confidence: float = 0.95) -> tuple[int, int]:
    """How many of `total` are marked, at least and at most, if `found` of `sampled` drawn without replacement are.

    Exact one-sided bounds: each holds with `confidence` by itself. With none found among m of many, at most about 3/m
    of them are marked; once all have been drawn, both bounds are what was found.

    >>> hypergeometric_bounds(0, 100, 10**6)[1], hypergeometric_bounds(0, 100, 200)[1], hypergeometric_bounds(3, 9, 9)
    (29511, 4, (3, 3))
    """
    if not 0 <= found <= sampled <= total:
        raise ValueError(f"{found} of {sampled} of {total} cannot be")

    def tail(drawn: range, marked: int) -> float:
        """P(X in drawn), X marked ones among `sampled` of `total`."""
        from scipy.special import gammaln

        def ways(n: int, k: Any) -> Any:
            return gammaln(n + 1) - gammaln(k + 1) - gammaln(n - k + 1)

        possible = range(max(0, sampled - (total - marked)), min(sampled, marked) + 1)
        x = np.arange(max(drawn.start, possible.start), min(drawn.stop, possible.stop))
        return float(np.exp(ways(marked, x) + ways(total - marked, sampled - x) - ways(total, sampled)).sum())

    import numpy as np

    allowed = range(found, total - (sampled - found) + 1)
    doubt = 1 - confidence
    # P(X <= found) falls and P(X >= found) rises with the number of marked ones, so that the bounds can be bisected.
    above = bisect_left(allowed, True, key=lambda marked: tail(range(found + 1), marked) <= doubt)
    below = bisect_left(allowed, True, key=lambda marked: tail(range(found, sampled + 1), marked) > doubt)
    return allowed[below], allowed[above - 1]


@dataclass(frozen=True)
class PairedTest:
    """Two attacks on the same examples: how many only the one broke, only the other, and the exact p-value."""

    first: str
    second: str
    only_first: int
    only_second: int
    p: float
    adjusted: float
    """p, corrected for having tested other pairs too."""

    @property
    def differs(self) -> bool:
        """Whether the difference is more than chance at 5 %."""
        return self.adjusted < 0.05


def mcnemar(first: str, second: str, broken_first: NDArray[np.bool_], broken_second: NDArray[np.bool_]) -> PairedTest:
    """McNemar's exact two-sided test: of the examples that only one of the two broke, a fair coin decides which.

    >>> import numpy as np
    >>> a, b = np.array([True] * 10 + [False] * 5), np.array([False] * 15)
    >>> mcnemar("a", "b", a, b).differs
    True
    """
    from scipy.special import bdtr

    one, two = int((broken_first & ~broken_second).sum()), int((~broken_first & broken_second).sum())
    p = min(1.0, 2 * float(bdtr(min(one, two), one + two, 0.5)))
    return PairedTest(first, second, one, two, p, adjusted=p)


def holm(tests: Sequence[PairedTest]) -> list[PairedTest]:
    """The same tests with p corrected by Holm's method: of twenty pairs without a difference, one has p < 5 %.

    >>> tests = [PairedTest("a", "b", 0, 6, 0.03, 0.03), PairedTest("a", "c", 0, 9, 0.01, 0.01)]
    >>> [test.adjusted for test in holm(tests)]
    [0.03, 0.02]
    """
    adjusted, largest = list(tests), 0.0
    for rank, k in enumerate(sorted(range(len(tests)), key=lambda k: tests[k].p)):
        largest = max(largest, min(1.0, (len(tests) - rank) * tests[k].p))
        adjusted[k] = replace(tests[k], adjusted=largest)
    return adjusted
