"""The arithmetic that MIFPE and T-MIFPE share: cross-entropy of t z/Delta, shifted first and then scaled.

F.cross_entropy(t z/Delta) rounds logits that are large beside Delta and loses u t |z|/Delta in every exponent;
z - z_max is exact near the boundary, so the exponents here are right to a few units in the last place for any gap.
"""

from __future__ import annotations

__all__ = ["ScaledRows", "attached", "choose_t", "fixed_t", "rows_of"]

from dataclasses import dataclass

import torch
from torch import Tensor

from tmifpe.core.numerics import attach_gradient, exp_or_zero, safe_gap
from tmifpe.theory.solver import T_TWO, one_step_t, solve_t

_FEW = 13  # classes


@dataclass(frozen=True)
class ScaledRows:
    """Logits r = (z - z_max)/Delta <= 0 of each row (n, K), seen from the class `aim` that the loss names (n, 1)."""

    r: Tensor
    aim: Tensor
    own: Tensor  # r of the aim, (n, 1)
    tie: Tensor  # the two largest logits are equal, (n,)
    usable: Tensor  # no NaN, no +inf, (n,)

    @property
    def top(self) -> Tensor:
        """The aim is the largest, alone or tied (n,): scenario u_u or t_s."""
        return self.own[:, 0] == 0


def rows_of(z: Tensor, aim: Tensor) -> ScaledRows:
    """Shift by the top logit, then divide by Delta = z_1 - z_2. -inf stays -inf: a class without weight."""
    first, second = torch.topk(z, 2, dim=1).values.split(1, dim=1)
    r = (z - first) / safe_gap(first, second)
    column = aim[:, None]
    # topk puts NaN and +inf first, and -inf only where nothing is finite; NaN compares false.
    return ScaledRows(r, column, r.gather(1, column), (first == second)[:, 0], (first.abs() < torch.inf)[:, 0])


def choose_t(rows: ScaledRows, t_rule: str | float, lam: float) -> Tensor:
    """t (n,) by scenario: eq:t_star, eq:t_star_t_s solved in u_u and t_s; in u_s and t_u max(1, lambda/d_y) with
    d_y = (z_1 - z_y)/Delta (eq:increase_t_star, eq32)."""
    top = rows.top
    if bool(top.all()):
        return _top_t(rows.r, rows.aim, rows.tie, t_rule)
    most = torch.finfo(rows.r.dtype).max
    t = (-min(lam, most) / rows.own[:, 0]).clamp_(min=1.0, max=most)  # an infinite lambda by an infinite d_y is NaN
    if not bool(top.any()):
        return t
    if rows.r.shape[1] <= _FEW:  # solving for all rows costs less than picking some
        return torch.where(top, _top_t(rows.r, rows.aim, rows.tie, t_rule), t)
    some = top.nonzero()[:, 0]
    t[some] = _top_t(rows.r[some], rows.aim[some], rows.tie[some], t_rule)
    return t


def _top_t(r: Tensor, aim: Tensor, tie: Tensor, t_rule: str | float) -> Tensor:
    classes = r.shape[1]
    if not isinstance(t_rule, str):
        return fixed_t(r, t_rule)
    if t_rule == "exact" and classes == 2:
        return r.new_full((len(r),), T_TWO)
    d = (-r).scatter_(1, aim, torch.inf)
    t = solve_t(d, classes) if t_rule == "exact" else one_step_t(d)
    return torch.where(tie, T_TWO, t)


def fixed_t(z: Tensor, t: float) -> Tensor:
    """The same t for every row (n,), as near as the dtype has it: neither 0 nor infinite, since 0 * -inf is NaN."""
    info = torch.finfo(z.dtype)
    return z.new_full((len(z),), min(max(t, info.tiny), info.max))


def attached(z: Tensor, rows: ScaledRows, t: Tensor, targeted: bool) -> Tensor:
    """CE(c z, aim) per row (negated if targeted), c = t/Delta, with gradient p - e_aim: that of CE divided by c.

    eq:SCE_c_u, eq:SCE_c_u_s, eq:SCE_c_targeted_u and eq:SCE_c_targeted_s, all shifted by the largest logit: the
    second and the fourth are printed with a shift by the second largest, which overflows at the paper's own t*.
    Without c no gap, however small or large, can over- or underflow, and each row's direction is the same. The
    aim's own weight is minus the sum of the others, so nothing cancels, and the weights sum to 0.
    """
    scale = t[:, None]
    others = exp_or_zero(rows.r * scale).scatter_(1, rows.aim, 0.0)
    so = others.sum(dim=1, keepdim=True)
    own = rows.own * scale
    # The sum B of all exponentials less 1, without cancellation where the aim is the top and so is small.
    excess = so + torch.expm1(own)
    total = excess + 1.0
    weights = (others / total).scatter_(1, rows.aim, so / -total)
    value = (torch.log1p(excess) - own)[:, 0]
    if not bool(rows.usable.all()):
        value = torch.where(rows.usable, value, 0.0)
        weights = torch.where(rows.usable[:, None], weights, 0.0)
    return attach_gradient(z, -value, -weights) if targeted else attach_gradient(z, value, weights)
