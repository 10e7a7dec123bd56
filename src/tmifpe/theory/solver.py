"""t*: the scale that maximises g(t) = c (1 - p_1) in the scenarios u_u and t_s, for whole batches at once.

With d_i = (z_1 - z_i)/Delta >= 1 over the classes below the top, q = sum exp(-t d_i) and m the mean of d under the
weights exp(-t d_i), Delta*g = G(t) = t q/(1+q), and eq:t_star (eq:t_star_t_s) read as what it is, an implicit
equation, is t m(t) = 1 + q(t). A root always exists; it is unique for all logits iff K <= 13; beyond that there may
be several, and the highest is taken. Works in float32 and float64, on any device, without a loop over rows.
"""

from __future__ import annotations

__all__ = ["T_TWO", "bracket", "exact_by_class", "height", "local_maxima", "one_step_by_class", "one_step_t", "solve_t"]

import math
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tmifpe.core.errors import InputError
from tmifpe.core.numerics import by_class, by_example

_UNIMODAL = 13  # the largest K for which G has one critical point whatever the logits
_GRID = 64
_WIDEN = 1e-6  # with all runners-up tied t* is the upper end itself: a step one ulp outside must not be refused
_FAR = 1e4  # a ratio that has no weight at any t of the bracket; finite, so that its moments are not NaN
_NIL = -80.0  # e^-80 is nothing beside q >= e^-t; exponents are cut there, since exp is very slow where it underflows
# Newton steps that reach the last digits from t = 1.2 for K <= 10, for K <= 13 (where two maxima nearly form), and from
# a grid point; measured over random, clustered and near-degenerate rows. Fixed numbers, so a GPU is never waited for.
_STEPS = {4: (4, 7, 4), 8: (7, 10, 8)}  # by the bytes of a number
_CACHE = 1 << 16  # numbers held at once while the grid is evaluated


T_TWO = 1.278464542761074
"""t* for two classes, whatever the logits: 1 + W(1/e), W being Lambert's function. Also used at exact ties, where t*
has no meaning and w does not need it."""


@lru_cache(maxsize=256)
def bracket(classes: int) -> tuple[float, float]:
    """An interval that holds t* for every row of `classes` logits: [0.70 or W(1/e), 1 + W((K-1)/e)].

    >>> [round(t, 5) for t in bracket(10)]
    [0.7, 2.101]
    """
    if classes < 2:
        raise InputError("t* needs at least two classes")
    if classes == 2:
        return T_TWO, T_TWO
    from scipy.special import lambertw

    w_low, w_high = (float(lambertw(x).real) for x in (1.0 / math.e, (classes - 1) / math.e))
    return 0.70 if classes <= _UNIMODAL else w_low, 1.0 + w_high


def height(d: Tensor, t: Tensor) -> Tensor:
    """G(t) = Delta g(t) = t q/(1+q) for ratios d (n, K-1) and scales t (n,) or (n, m)."""
    grid = t if t.ndim == 2 else t[:, None]
    q = torch.exp(d[:, None, :] * -grid[:, :, None]).sum(dim=2)
    value = grid * q / (1.0 + q)
    return value if t.ndim == 2 else value[:, 0]


def solve_t(d: Tensor, classes: int | None = None) -> Tensor:
    """t* (n,) for ratios d (n, K-1): each >= 1, the smallest 1; inf is allowed and has no weight.

    `classes` is K where the columns of d include ones that are no rivals (then inf), e.g. the top itself.

    >>> round(solve_t(torch.tensor([[1.0, 1.0]], dtype=torch.float64)).item(), 12) == round(bracket(3)[1], 12)
    True
    """
    if d.dim() != 2 or d.dtype not in (torch.float32, torch.float64) or d.is_meta or d.layout is not torch.strided:
        raise InputError(f"ratios must be (n, K-1) in float32 or float64, got {d.dtype} of shape {tuple(d.shape)}")
    count = d.shape[1] + 1 if classes is None else classes
    ratios, xp = by_class(d, count)
    with np.errstate(all="ignore"):
        return by_example(exact_by_class(ratios, count, xp))


def one_step_t(d: Tensor) -> Tensor:
    """eq:t_star evaluated once at t = 1, as if it were a closed form: (1 + q)/m = Delta B (B-1)/(-S)."""
    return by_example(one_step_by_class(*by_class(d)))


def exact_by_class(d: Any, classes: int, xp: Any) -> Any:
    """`solve_t` of ratios with the classes first, arrays of `xp`, torch or numpy."""
    low, high = bracket(classes)
    if classes == 2 or not d.shape[1]:  # a closed form, or nothing to solve
        return xp.full_like(d[0], T_TWO)
    low, high = low * (1.0 - _WIDEN), high * (1.0 + _WIDEN)
    near = xp.where(d > _FAR, _FAR, d)
    if classes > _UNIMODAL:
        return _highest(near.contiguous(), _log_grid(low, high, _GRID, near))
    start, floor, ceiling = (xp.full_like(near[0], t) for t in (1.2, low, high))
    return _newton(near, start, floor, ceiling, _STEPS[near.dtype.itemsize][0 if classes <= 10 else 1], xp)


def one_step_by_class(d: Any, xp: Any) -> Any:
    """`one_step_t` of ratios with the classes first."""
    near = xp.where(d > _FAR, _FAR, d)
    e = xp.exp(xp.where(near > -_NIL, _NIL, -near))  # never all 0, so t is a number even without a rival
    q = e.sum(0)
    return (1.0 + q) * q / (e * near).sum(0)


def local_maxima(d: Tensor, points: int = 4096) -> list[tuple[float, float]]:
    """Every local maximum (t, G(t)) of one row d (K-1,), highest first, by a dense grid and Newton's method.

    Every critical point lies in [1/max d, 1 + W((K-1)/e)], since t = (1+q)/m >= 1/m.
    """
    finite = d[torch.isfinite(d)].to(torch.float64)
    high = bracket(len(finite) + 1)[1] * (1.0 + _WIDEN)
    low = min(1.0 / float(finite.max()), high / 2.0) * (1.0 - _WIDEN)
    ratios = finite[:, None]
    grid = _log_grid(low, high, points, ratios)
    _, t = _climb(ratios, grid)
    top = height(finite[None], t[None])[0]
    order = torch.argsort(top, descending=True)
    return [(float(t[i]), float(top[i])) for i in order]


def _newton(d: Any, t: Any, low: Any, high: Any, steps: int, xp: Any = torch) -> Any:
    """Newton's method in log t on L = log(t m/(1+q)) (L < 0 where G rises), bisecting where a step leaves the bracket.

    d is (K-1, n); t, low and high are (n,); arrays of `xp`, torch or numpy. A step onto an end is accepted: refusing
    it would throw a converged iterate back to the middle. NaN (no rival at all) compares false and bisects, so t stays
    finite.
    """
    one, nil = xp.ones_like(t), xp.full_like(t, _NIL)  # arrays: torch is slower with a Python number
    powers = xp.stack((xp.ones_like(d), d, d * d))
    floor, ceiling = low, high
    for k in range(steps):
        q, s1, s2 = (powers * xp.exp(xp.maximum(d * -t, nil))).sum(1)
        tm, b = t * s1 / q, q + one
        ratio = tm / b
        fall = t * s2 / s1 - tm - one - ratio * q  # minus the slope of L in log t, 1 - t V/m + t m q/(1+q)
        step = t * xp.exp(xp.log(ratio) / fall)
        if k < 2:
            # The ends are tight and not yet tried, so a step beyond them is best cut off there.
            t = xp.minimum(xp.maximum(step, floor), ceiling)
            continue
        rising = tm < b
        low, high = xp.where(rising, t, low), xp.where(rising, high, t)
        t = xp.where((step >= low) & (step <= high), step, xp.sqrt(low * high))
    return t


def _log_grid(low: float, high: float, points: int, like: Tensor) -> Tensor:
    grid = torch.linspace(math.log(low), math.log(high), points, dtype=torch.float64)
    return torch.exp(grid).to(like.dtype).to(like.device)  # in this order: some devices have no float64


def _grid_heights(d: Tensor, grid: Tensor) -> Tensor:
    """G (points, n) for ratios d (K-1, n), in pieces that stay in the cache: memory is what costs here."""
    size = max(1, _CACHE // max(1, d.numel()))
    q = torch.cat([(d * -t[:, None, None]).clamp_(min=_NIL).exp_().sum(dim=1) for t in grid.split(size)])
    return grid[:, None] * q / (1.0 + q)


def _climb(d: Tensor, grid: Tensor) -> tuple[Tensor, Tensor]:
    """From every local maximum of G on the grid to the one of G: the row and t of each."""
    heights = _grid_heights(d, grid)
    padded = torch.nn.functional.pad(heights, (0, 0, 1, 1), value=-1.0)
    point, row = ((heights >= padded[:-2]) & (heights > padded[2:])).nonzero(as_tuple=True)
    low, high = grid[(point - 1).clamp(min=0)], grid[(point + 1).clamp(max=len(grid) - 1)]
    return row, _newton(d[:, row], grid[point], low, high, _STEPS[d.dtype.itemsize][2])


def _highest(d: Tensor, grid: Tensor) -> Tensor:
    """The t of the highest local maximum of each row; of two exactly as high, the smaller t."""
    row, t = _climb(d, grid)
    rows = d.shape[1]
    q = (d[:, row] * -t).clamp_(min=_NIL).exp_().sum(dim=0)
    top = t * q / (1.0 + q)
    best = top.new_zeros(rows).scatter_reduce(0, row, top, "amax")
    chosen = torch.where(top == best[row], t, torch.inf)
    # A row of NaN has no maximum and keeps T_TWO, which no one reads.
    found = t.new_full((rows,), torch.inf).scatter_reduce(0, row, chosen, "amin")
    return torch.where(torch.isinf(found), T_TWO, found)
