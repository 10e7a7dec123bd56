"""Numbers that a caller gives, checked once: every function returns the number or raises an `InputError` naming it."""

from __future__ import annotations

__all__ = [
    "MOST_SEED",
    "check_class_numbers",
    "extent",
    "parse_whole",
    "read_number",
    "real_number",
    "whole_number",
    "whole_numbers",
]

import math
import sys
from fractions import Fraction
from numbers import Integral
from typing import TYPE_CHECKING, Any

from tmifpe.core.errors import InputError, shown

if TYPE_CHECKING:
    from torch import Tensor

MOST_SEED = 2**63 - 1
"""Seeds are mixed in 64-bit signed arithmetic."""


def whole_number(name: str, value: object, least: int = 1, most: int | None = None) -> int:
    """An integer from `least` to `most`, Python's or numpy's. True and False are not numbers here.

    >>> whole_number("steps", 100)
    100
    >>> whole_number("eot", 0, most=10)
    Traceback (most recent call last):
    ...
    tmifpe.core.errors.InputError: eot must be a whole number from 1 to 10, got 0
    """
    number = int(value) if isinstance(value, Integral) and not isinstance(value, bool) else None
    if number is None or number < least or (most is not None and number > most):
        bounds = f"of at least {least}" if most is None else f"from {least} to {most}"
        raise InputError(f"{name} must be a whole number {bounds}, got {shown(value)}")
    return number


def real_number(
    name: str, value: object, *, least: float = -math.inf, above: float = -math.inf, most: float = math.inf
) -> float:
    """A finite int or float that is at least `least`, greater than `above` and at most `most`.

    >>> real_number("momentum", 0.75, least=0, most=1)
    0.75
    >>> real_number("T of mifpe", 0, above=0)
    Traceback (most recent call last):
    ...
    tmifpe.core.errors.InputError: T of mifpe must be a number above 0, got 0
    """
    finite = isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= sys.float_info.max
    if not (finite and value >= least and value > above and value <= most):  # pyright: ignore[reportOperatorIssue]
        limits = {"at least": least, "above": above, "at most": most}
        bounds = " and ".join(f"{word} {limit:g}" for word, limit in limits.items() if math.isfinite(limit))
        raise InputError(f"{name} must be a {'number ' + bounds if bounds else 'finite number'}, got {shown(value)}")
    return float(value)  # pyright: ignore[reportArgumentType]


def read_number(name: str, value: object) -> float:
    """A finite float from a number or from a text such as `0.3` or `8/255`.

    >>> read_number("eps", "8/255") == 8 / 255, read_number("eps", "0.5/255") == 0.5 / 255
    (True, True)
    """
    try:
        if isinstance(value, str) and "/" in value:
            # Numerator over denominator as floats, so that "8/255" is exactly the float 8/255.
            above, below = value.split("/")
            ratio = Fraction(value) if "." not in value else None
            number = float(above) / float(below) if ratio is None else ratio.numerator / ratio.denominator
        else:
            number = float(value)  # pyright: ignore[reportArgumentType]
    except (TypeError, ValueError, ZeroDivisionError, OverflowError, RuntimeError):
        raise InputError(f"{name} must be a number such as 0.3 or 8/255, got {shown(value)}") from None
    if not math.isfinite(number):
        raise InputError(f"{name} must be finite, got {shown(value)}")
    return number


def parse_whole(text: str) -> int | None:
    """The non-negative integer that a word of the command line spells; None if it is something else.

    >>> parse_whole("12"), parse_whole("-1"), parse_whole("second"), parse_whole("9" * 5000)
    (12, None, None, None)
    """
    return int(text) if text.isdecimal() and len(text) <= 18 else None


def extent(low: float, high: float, box: tuple[float, float]) -> str:
    """From where to where numbers reach that are not all in the box, with as many digits as it takes to see that.

    >>> extent(0.0, 254.9999, (0.0, 1.0)), extent(0.0, 1.0000005, (0.0, 1.0))
    ('from 0 to 255', 'from 0 to 1.0000005')
    """

    def seen(value: float) -> str:
        texts = [f"{value:.{digits}g}" for digits in (4, 9, 17)]
        kept = [
            text for text in texts if (float(text) < box[0], float(text) > box[1]) == (value < box[0], value > box[1])
        ]
        return (kept or texts[-1:])[0]

    return f"from {seen(low)} to {seen(high)}"


def whole_numbers(name: str, values: Any, n: int) -> Tensor:
    """n integers of at least 0, from anything that torch reads, as int64.

    >>> whole_numbers("labels", [3, 1], 2)
    tensor([3, 1])
    """
    import torch

    try:
        found = torch.as_tensor(values)
        integral = not (found.is_floating_point() or found.is_complex() or found.dtype == torch.bool or found.is_meta)
        if integral and found.shape == (n,) and (n == 0 or int(found.to(torch.int64).min()) >= 0):
            return found.to(torch.int64)
    except (TypeError, ValueError, RuntimeError, OverflowError):
        pass
    raise InputError(f"{name} must be {n} whole numbers of at least 0, got {shown(values)}")


def check_class_numbers(name: str, values: Tensor, n: int, classes: int) -> None:
    """Refuse what is not an int64 tensor of n classes from 0 to `classes` - 1. Called at every step: no copies."""
    import torch

    if not isinstance(values, torch.Tensor) or values.dtype != torch.int64 or values.shape != (n,) or values.is_meta:
        what = f"{values.dtype} {tuple(values.shape)}" if isinstance(values, torch.Tensor) else type(values).__name__
        raise InputError(f"{name} must be {n} class numbers in int64, got {what}")
    # On a GPU this would synchronise at every step, and the kernels there refuse such numbers themselves.
    if n and values.device.type == "cpu":
        found = values.numpy()
        low, high = found.min(), found.max()
        if low < 0 or high >= classes:
            raise InputError(f"{name} must be classes from 0 to {classes - 1}, got {low} to {high}")
