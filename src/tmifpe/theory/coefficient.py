"""g(t), its derivative, and the telescoped gradient of one row of logits, corrected and as the paper prints them.

Notation: sorted logits z_1 >= z_2 >= ..., Delta = z_1 - z_2, c = t/Delta, d_i = (z_1 - z_i)/Delta, B = sum exp(-t d_i),
p_i = exp(-t d_i)/B, S = sum (z_i - z_1) exp(-t d_i), and j the rank of the class that the loss names. The gradient of
CE(c z, y) (and of -CE for a target) is a sum over neighbours of a_k (grad z_k - grad z_{k+1}) (negated for a target).
All functions are of one row in float64 and take any number of scales t at once.
"""

from __future__ import annotations

__all__ = ["Row", "coefficients", "delta_sup", "g", "g_prime", "gradient", "h", "row_of"]

from dataclasses import dataclass

import torch
from torch import Tensor

from tmifpe.core.errors import InputError
from tmifpe.theory.formats import Format
from tmifpe.theory.scenario import Scenario


@dataclass(frozen=True, eq=False)
class Row:
    """One row of logits, sorted: what every formula of the paper is about."""

    scenario: Scenario
    delta: float
    d: Tensor  # (K,) float64, ascending: 0, 1, ...
    j: int  # 1-based rank of the class that the loss names; 1 in u_u and t_s
    order: Tensor  # (K,) the class of each rank

    def exponentials(self, t: Tensor) -> Tensor:
        """exp(-t d_i) = exp(c (z_i - z_1)) for each t: (..., K). Never above 1, so nothing overflows."""
        return torch.exp(-t[..., None] * self.d)


def row_of(logits: Tensor, aim: int, targeted: bool) -> Row:
    """Sort a row (K,) as seen from the class `aim`; a class tied with the largest counts as first."""
    z = logits.to(torch.float64)
    values = z.tolist()
    ranks = sorted(range(len(values)), key=lambda k: (-values[k], k != aim))
    order = torch.tensor(ranks)
    ranked = z[order]
    delta = float(ranked[0] - ranked[1])
    if delta == 0:
        raise InputError(
            "the two largest logits are equal: Delta is 0, so t* and g do not exist (the loss takes their limit there)"
        )
    j = ranks.index(aim) + 1
    return Row(Scenario.of(j == 1, targeted), delta, (ranked[0] - ranked) / delta, j, order)


def g(row: Row, t: Tensor, printed: bool = False) -> Tensor:
    """The coefficient that the paper maximises: c (1 - p_1) in u_u and t_s (eq11, eq38), else c p_1 (before eq23).

    `printed`: in t_u the paper has c (p_1 - p_j) (before eq31), which counts p_j twice.
    """
    e = row.exponentials(t)
    total, c = e.sum(-1), t / row.delta
    if row.scenario.top:
        return c * e[..., 1:].sum(-1) / total  # 1 - p_1 without cancellation
    minus = e[..., row.j - 1] if printed and row.scenario is Scenario.T_U else 0.0
    return c * (1.0 - minus) / total


def g_prime(row: Row, t: Tensor, printed: bool = False) -> Tensor:
    """dg/dt: (B^2 - B + c S)/(Delta B^2) (eq12, eq39), else p_1 (1 + c (z_1 - E_p z))/Delta > 0 (eq23).

    `printed`: in t_u the paper's eq31, wrong twice (its D contains c, and S lacks the factor B).
    """
    e = row.exponentials(t)
    total, spread, c = e.sum(-1), (e * row.d).sum(-1), t / row.delta
    if row.scenario.top:
        return h(row, t) / (row.delta * total**2)
    if printed and row.scenario is Scenario.T_U:
        own, gap = e[..., row.j - 1], row.d[row.j - 1] * row.delta
        return (total * (1.0 - own + c * (c * own * gap)) + c * spread * row.delta) / (row.delta * total**2)
    return (1.0 + t * spread / total) / (row.delta * total)


def h(row: Row, t: Tensor) -> Tensor:
    """h(t) = B^2 - B + c S (eq13): positive up to the first maximum of g. Neither linear nor monotone in t."""
    e = row.exponentials(t)
    q = e[..., 1:].sum(-1)
    return q * (1.0 + q) - t * (e * row.d).sum(-1)


def coefficients(row: Row, t: Tensor, printed: bool = False) -> Tensor:
    """a_k (..., K-1) of (grad z_k - grad z_{k+1}): c (p_1 + ... + p_k), less c from k = j on (eq6, eq19, eq27, eq35).

    `printed`: between u_s and t_u the paper subtracts p_j once too often for k < j (in u_s from k = 2), and in t_s
    the first coefficient reads 1 - c p_1 where c (1 - p_1) is meant.
    """
    e = row.exponentials(t)
    c, p = t[..., None] / row.delta, e / e.sum(-1, keepdim=True)
    before = p.cumsum(-1)[..., :-1]
    after = p[..., 1:].flip(-1).cumsum(-1).flip(-1)  # summed from the small end, so nothing cancels
    rank = torch.arange(1, len(row.d))
    a = torch.where(rank < row.j, before, -after)
    if printed and row.scenario in (Scenario.U_S, Scenario.T_U):
        first = 2 if row.scenario is Scenario.U_S else 1
        a = torch.where((rank >= first) & (rank < row.j), a - p[..., row.j - 1 : row.j], a)
    a = c * a
    if printed and row.scenario is Scenario.T_S:
        a[..., 0] = c[..., 0] * p[..., 0] - 1.0
    return a


def gradient(row: Row, t: Tensor) -> Tensor:
    """d loss / d z (K,) in the order of the classes, for one t, with the factor c: +-c (p - e_y)."""
    e = row.exponentials(t)
    w = e / e.sum()
    w[row.j - 1] = 0.0
    w[row.j - 1] = -w.sum()
    w *= t / row.delta
    return torch.empty_like(w).scatter_(0, row.order, -w if row.scenario.targeted else w)


def delta_sup(coefficient: Tensor | float, fmt: Format) -> Tensor | float:
    """The paper's bound of the relative error, eps_max/|coefficient|, for a unit gradient.

    eq8, eq9, eq10, eq21, eq22, eq29, eq30 and eq37 are this with the coefficient of their scenario and pair.
    It takes eps_max for an absolute error; in floating point the multiplication by c is a relative one
    (docs/paper.md), so this is the paper's quantity and not a bound that real arithmetic keeps.
    """
    return fmt.eps_max / abs(coefficient)
