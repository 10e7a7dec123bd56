"""Everything that the theory says about one row of logits."""

from __future__ import annotations

__all__ = ["Analysis", "Bound", "Choice", "Pair", "analyse", "t_of"]

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tmifpe.core.errors import InputError, shown
from tmifpe.theory import coefficient as co
from tmifpe.theory.formats import FORMATS, Format, format_of
from tmifpe.theory.scenario import Scenario
from tmifpe.theory.show import as_html, as_text
from tmifpe.theory.solver import local_maxima, one_step_t, solve_t

_WIDEST = 1e100  # ratios of gaps, and what is divided by them, then stay finite


@dataclass(frozen=True)
class Choice:
    """A rule for t, the g that it reaches, and the share of the best g that it loses."""

    rule: str
    t: float
    g: float
    loss: float


@dataclass(frozen=True)
class Bound:
    """The paper's bound in one format, at the t* of that format."""

    format: str
    t_star: float
    g: float
    delta_sup: float


@dataclass(frozen=True)
class Pair:
    """The neighbours (i-1, i) in rank, the coefficient of their difference, and the bound of its relative error."""

    i: int
    coefficient: float
    delta_sup: float
    printed_coefficient: float
    printed_delta_sup: float


@dataclass(frozen=True)
class Analysis:
    """What the theory says about one row of logits. `gradient` includes the factor c = t*/Delta."""

    logits: tuple[float, ...]
    label: int
    target: int | None
    precision: str
    scenario: Scenario
    rank: int
    delta: float
    t_star: float
    g: float
    one_step_t: float | None
    choices: tuple[Choice, ...]
    local_maxima: tuple[tuple[float, float], ...]
    delta_sup: tuple[Bound, ...]
    gradient: tuple[float, ...]
    g_prime: float
    g_prime_printed: float
    h: float | None
    coefficients: tuple[float, ...]
    coefficients_printed: tuple[float, ...]
    pairs: tuple[Pair, ...]

    def to_json(self) -> dict[str, Any]:
        """Plain numbers, strings and lists; `delta_sup` by the name of the format."""
        values = asdict(self) | {"scenario": self.scenario.value}
        values["local_maxima"] = [{"t": t, "g": g} for t, g in self.local_maxima]
        values["delta_sup"] = {bound.format: asdict(bound) for bound in self.delta_sup}
        return values

    def __str__(self) -> str:
        return as_text(self)

    def _repr_html_(self) -> str:
        return as_html(self)


def analyse(
    logits: Tensor | Sequence[float], label: int, target: int | None = None, precision: str = "fp32"
) -> Analysis:
    """Scenario, Delta, t* and g by each rule, the bounds, the gradient and its telescoped coefficients.

    `precision` names the format whose lambda and eps_max are used; the arithmetic itself is float64.

    >>> found = analyse([2.5, -1.3, 0.8, 3.8, -0.9, 1.7, -2.1, 3.6, 0.4, -1.5], label=3)
    >>> str(found.scenario), round(found.t_star, 6), round(found.g, 6)
    ('u_u', 1.273647, 1.393303)
    """
    fmt = format_of(precision)
    z = _checked(logits)
    for name, value in (("label", label), ("target", target)):
        if value is None and name == "target":
            continue
        whole = int(value) if isinstance(value, int | np.integer) and not isinstance(value, bool) else -1
        if not 0 <= whole < len(z):
            classes = f"{len(z)} logits have the classes 0 to {len(z) - 1}"
            raise InputError(f"{name} {shown(value)} is out of range: {classes}")
    label, target = int(label), None if target is None else int(target)
    row = co.row_of(z, label if target is None else target, target is not None)
    if row.delta < 1 / _WIDEST:
        raise InputError(f"a gap Delta of {row.delta:g} leaves no room for the analysis, which is in float64")
    t = t_of(row, fmt)
    top = row.scenario.top
    return Analysis(
        logits=tuple(z.tolist()),
        label=label,
        target=target,
        precision=fmt.name,
        scenario=row.scenario,
        rank=row.j,
        delta=row.delta,
        t_star=float(t),
        g=float(co.g(row, t)),
        one_step_t=float(one_step_t(row.d[None, 1:])) if top else None,
        choices=_choices(row, t),
        local_maxima=tuple((s, height / row.delta) for s, height in local_maxima(row.d[1:])) if top else (),
        delta_sup=tuple(_bound(row, f) for f in FORMATS.values()),
        gradient=tuple(co.gradient(row, t).tolist()),
        g_prime=float(co.g_prime(row, t)),
        g_prime_printed=float(co.g_prime(row, t, printed=True)),
        h=float(co.h(row, t)) if top else None,
        coefficients=tuple(co.coefficients(row, t).tolist()),
        coefficients_printed=tuple(co.coefficients(row, t, printed=True).tolist()),
        pairs=_pairs(row, t, fmt),
    )


def t_of(row: co.Row, fmt: Format) -> Tensor:
    """t* of a row in a format: eq:t_star solved, or eq:increase_t_star (eq32) with the lambda of the format."""
    if row.scenario.top:
        return solve_t(row.d[None, 1:])[0]
    return (fmt.lam / row.d[row.j - 1]).clamp(min=1.0)


def _choices(row: co.Row, t: Tensor) -> tuple[Choice, ...]:
    rules = {"exact": t}
    if row.scenario.top:
        rules["one-step"] = one_step_t(row.d[None, 1:])[0]
    rules["T=1"] = torch.ones_like(t)
    best = float(co.g(row, t))
    reached = {rule: float(co.g(row, s)) for rule, s in rules.items()}
    return tuple(Choice(rule, float(s), reached[rule], 1.0 - reached[rule] / best) for rule, s in rules.items())


def _bound(row: co.Row, fmt: Format) -> Bound:
    t = t_of(row, fmt)
    value = float(co.g(row, t))
    return Bound(fmt.name, float(t), value, float(co.delta_sup(value, fmt)))


def _pairs(row: co.Row, t: Tensor, fmt: Format) -> tuple[Pair, ...]:
    """i = 2 ... j; in u_u and t_s, where j = 1, the one pair (1, 2) that the analysis is about."""
    count = max(row.j, 2) - 1
    right, printed = (co.coefficients(row, t, form)[:count].tolist() for form in (False, True))
    bound, claim = ([float(co.delta_sup(a, fmt)) for a in form] for form in (right, printed))
    return tuple(map(Pair, range(2, count + 2), right, bound, printed, claim))


def _checked(logits: Tensor | Sequence[float]) -> Tensor:
    try:
        z = torch.as_tensor(logits, dtype=torch.float64, device="cpu").detach()
    except (TypeError, ValueError, RuntimeError):
        raise InputError("logits must be a row of numbers, one per class") from None
    if z.ndim != 1:
        raise InputError(f"logits must be one row, got the shape {tuple(z.shape)}")
    if len(z) < 2:
        raise InputError(f"there is nothing to attack with {len(z)} class: logits need at least two")
    if not bool(torch.isfinite(z).all()):
        raise InputError("logits must be finite: leave out classes at -inf, which have no weight")
    if float(z.abs().max()) > _WIDEST:
        raise InputError(f"logits beyond {_WIDEST:g} leave no room for the analysis, which is in float64")
    return z
