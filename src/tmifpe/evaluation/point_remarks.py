"""What the points of a file show by themselves: no numbers, other units, eight bits, labels of other data."""

from __future__ import annotations

__all__ = ["label_remarks", "point_remarks", "unit_points"]

from collections.abc import Iterator, Sequence
from math import isfinite

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tmifpe.checks.flags import some
from tmifpe.core.numbers import extent
from tmifpe.core.types import Threat
from tmifpe.norms import get_norm

_WHOLE = 1e-3  # of a level: what float32 leaves of k/255


def unit_points(points: Tensor, like: Tensor, threat: Threat) -> Tensor:
    """Points as the model gets them: bytes fill the box."""
    if points.dtype != torch.uint8:
        return points.to(like)
    return points.to(like) / 255 * (threat.high - threat.low) + threat.low


def point_remarks(
    points: Tensor, index: NDArray[np.int64], size: NDArray[np.float64], outside_box: float, threat: Threat
) -> Iterator[str]:
    """What is wrong with points (n, ...) of these examples and sizes, a share of which lies outside the box."""
    flat = points.flatten(1)
    unusable = (~torch.isfinite(flat).all(dim=1)).cpu().numpy()
    if unusable.any():
        yield f"The points of {some(index[unusable])} hold NaN or infinite values: they count as not broken."
    if points.dtype == torch.uint8:
        yield f"The file holds bytes, which are read as 255ths of the box [{threat.low:g}, {threat.high:g}]."
    elif outside_box > 0.5 and not unusable.all():
        yield _units(flat[torch.from_numpy(~unusable)], outside_box, threat)
    yield from _rounded(flat, size, threat)


def _units(flat: Tensor, share: float, threat: Threat) -> str:
    low, high = (float(edge) for edge in torch.aminmax(flat))
    who = "All" if share == 1 else "Most"
    reach = extent(low, high, threat.box)
    said = f"{who} points lie outside the box [{threat.low:g}, {threat.high:g}]: they reach {reach}"
    if low >= 0 and 2 < high <= 255 and threat.high <= 1:
        return f"{said}, as pixel values of 0 to 255 do; divide them by 255."
    return f"{said}; undo their normalisation, or give the box that they are in: `Threat(norm, eps, low, high)`."


def _rounded(flat: Tensor, size: NDArray[np.float64], threat: Threat) -> Iterator[str]:
    """Half a level of rounding leads out of a ball whose edge the attack went to."""
    level = (threat.high - threat.low) / 255
    half = float(get_norm(threat.norm).size(torch.full((1, flat.shape[1]), level / 2, dtype=torch.float64)))
    beyond = int(((size > threat.eps * (1 + 1e-6)) & (size <= (threat.eps + half) * (1 + 1e-6))).sum())
    if not beyond or not isfinite(half):
        return
    steps = flat.double() if flat.dtype == torch.uint8 else (flat.double() - threat.low) / level
    steps = steps[torch.isfinite(steps)]
    if bool(((steps - steps.round()).abs() < _WHOLE).all()):
        yield (
            f"The points are rounded to 8 bits, and {beyond} lie outside the ball by no more than that explains (half "
            "a level): save them in floating point, or round them towards the image."
        )


def label_remarks(given: Sequence[int], labels: Sequence[int]) -> Iterator[str]:
    """Labels beside the points, against those of the data."""
    differ = sum(one != other for one, other in zip(given, labels, strict=True))
    if differ:
        yield (
            f"The labels in the file differ from those of the data on {differ} of {len(labels)} examples: are the "
            "points in another order, or of other data?"
        )
