"""How sure a proportion is."""

from __future__ import annotations

__all__ = ["student", "wilson"]

import math
from collections.abc import Sequence
from statistics import NormalDist, fmean, stdev


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
    if len(values) < 2:
        return 0.0, 1.0
    centre = fmean(values)
    half = _student_quantile(len(values) - 1, confidence) * stdev(values) / math.sqrt(len(values))
    return max(0.0, centre - half), min(1.0, centre + half)


def _student_quantile(freedom: int, confidence: float) -> float:
    """The t with P(|T| < t) = confidence, by bisection."""
    low, high = 0.0, 1.0
    while _student_inside(high, freedom) < confidence:
        low, high = high, 2 * high
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if _student_inside(middle, freedom) < confidence else (low, middle)
    return high


def _student_inside(t: float, freedom: int) -> float:
    """P(|T| < t) for whole degrees of freedom, by its finite sum (Abramowitz and Stegun, 26.7.3 and 26.7.4)."""
    angle = math.atan(t / math.sqrt(freedom))
    odd = freedom % 2
    term = math.cos(angle) if odd else 1.0
    total = term if freedom > 1 else 0.0
    for k in range(2 + odd, freedom - 1, 2):
        term *= math.cos(angle) ** 2 * (k - 1) / k
        total += term
    return 2 / math.pi * (angle + math.sin(angle) * total) if odd else math.sin(angle) * total
