"""The arithmetic that MIFPE and T-MIFPE share: cross-entropy of t z/Delta, shifted first and then scaled.

F.cross_entropy(t z/Delta) rounds logits that are large beside Delta and loses u t |z|/Delta in every exponent;
z - z_max is exact near the boundary, so the exponents here are right to a few units in the last place for any gap.
Tables have their classes first and are of torch or numpy (`by_class`); every formula is written once, for both.
"""

from __future__ import annotations

__all__ = ["Temperature", "chosen_t", "scaled_cross_entropy"]

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tmifpe.core.numerics import attach_gradient, by_class, by_example, exp_or_zero, safe_gap
from tmifpe.theory.solver import T_TWO, exact_by_class, one_step_by_class


@dataclass(frozen=True)
class Temperature:
    """Which t a row gets: `rule` where the class named is the top one, elsewhere by `lam`, or by `rule`, too, if that
    is None."""

    rule: str | float
    lam: float | None


@dataclass(frozen=True)
class _ScaledRows:
    """Logits r = (z - z_max)/Delta <= 0 of each row (K, n), seen from the class that the loss names."""

    r: Any
    aim: Any  # whether it is the class named, (K, n)
    own: Any  # r of that class, (n,)
    tie: Any  # the two largest logits are equal, (n,)
    usable: Any  # no NaN, no +inf, (n,)
    xp: Any

    @property
    def top(self) -> Any:
        """The aim is the largest, alone or tied (n,): scenario u_u or t_s."""
        return self.own == 0


def scaled_cross_entropy(z: Tensor, aim: Tensor, temperature: Temperature, targeted: bool) -> Tensor:
    """CE(c z, aim) per row (negated if targeted), c = t/Delta, with gradient p - e_aim: that of CE divided by c.

    Without c no gap, however small or large, can over- or underflow, and each row's direction is the same.
    """
    with np.errstate(all="ignore"):
        rows = _rows_of(z, aim)
        value, weights = (by_example(found) for found in _cross_entropy(rows, _choose_t(rows, temperature)))
    return attach_gradient(z, -value, -weights) if targeted else attach_gradient(z, value, weights)


def chosen_t(z: Tensor, aim: Tensor, temperature: Temperature) -> Tensor:
    """The t (n,) that every row of logits gets."""
    with np.errstate(all="ignore"):
        return by_example(_choose_t(_rows_of(z, aim), temperature))


def _rows_of(z: Tensor, aim: Tensor) -> _ScaledRows:
    """Shift by the top logit, then divide by Delta = z_1 - z_2. -inf stays -inf: a class without weight."""
    logits, xp = by_class(z)
    first = xp.amax(logits, 0)
    at_top = logits == first
    tie = at_top.sum(0) > 1
    second = xp.where(tie, first, xp.amax(xp.where(at_top, -xp.inf, logits), 0))
    r = (logits - first) / safe_gap(first, second, xp)
    if xp is np:
        named = np.arange(len(logits))[:, None] == aim.numpy()
    else:
        named = torch.arange(len(logits), device=aim.device)[:, None] == aim
    # NaN is the largest of all and compares false, and -inf is the largest where nothing is finite.
    return _ScaledRows(r, named, xp.where(named, r, 0.0).sum(0), tie, abs(first) < xp.inf, xp)


def _choose_t(rows: _ScaledRows, temperature: Temperature) -> Any:
    """t (n,) by scenario: eq:t_star, eq:t_star_t_s solved in u_u and t_s; in u_s and t_u max(1, lambda/d_y) with
    d_y = (z_1 - z_y)/Delta (eq:increase_t_star, eq32)."""
    xp, top, rule, lam = rows.xp, rows.top, temperature.rule, temperature.lam
    if lam is None:
        assert not isinstance(rule, str)  # noqa: S101 - it is for all rows, and only a number can be
        return _fixed_t(rows.own, rule, xp)
    most = xp.finfo(rows.r.dtype).max
    t = -min(lam, most) / rows.own  # an infinite lambda by an infinite d_y is NaN
    t = xp.where(t > 1, xp.where(t < most, t, most), 1.0)
    if bool(top.any()):
        some = slice(None) if bool(top.all()) else top
        t[some] = _top_t(rows.r[:, some], rows.aim[:, some], rows.tie[some], rule, xp)
    return t


def _top_t(r: Any, aim: Any, tie: Any, rule: str | float, xp: Any) -> Any:
    classes = len(r)
    if not isinstance(rule, str):
        return _fixed_t(r[0], rule, xp)
    d = xp.where(aim, xp.inf, -r)
    t = exact_by_class(d, classes, xp) if rule == "exact" else one_step_by_class(d, xp)
    return xp.where(tie, T_TWO, t)


def _fixed_t(like: Any, t: float, xp: Any) -> Any:
    """The same t for every row (n,), as near as the dtype has it: neither 0 nor infinite, since 0 * -inf is NaN."""
    info = xp.finfo(like.dtype)
    return xp.full_like(like, min(max(t, float(info.tiny)), float(info.max)))


def _cross_entropy(rows: _ScaledRows, t: Any) -> tuple[Any, Any]:
    """The value of each row (n,) and its weights (K, n).

    eq:SCE_c_u, eq:SCE_c_u_s, eq:SCE_c_targeted_u and eq:SCE_c_targeted_s, all shifted by the largest logit: the
    second and the fourth are printed with a shift by the second largest, which overflows at the paper's own t*.
    The aim's own weight is minus the sum of the others, so nothing cancels, and the weights sum to 0.
    """
    xp = rows.xp
    others = xp.where(rows.aim, 0.0, exp_or_zero(rows.r * t, xp))
    so, own = others.sum(0), rows.own * t
    # The sum B of all exponentials less 1, without cancellation where the aim is the top and so is small.
    excess = so + xp.expm1(own)
    weights = xp.where(rows.aim, -so, others) / (excess + 1.0)
    value = xp.log1p(excess) - own
    return xp.where(rows.usable, value, 0.0), xp.where(rows.usable, weights, 0.0)
