"""g, g', h and the telescoped coefficients: against 50-digit arithmetic, and where the paper's own forms go wrong."""

from __future__ import annotations

from typing import Any

import mpmath as mp
import pytest
import torch

from tmifpe.core.errors import InputError
from tmifpe.theory.coefficient import Row, coefficients, delta_sup, g, g_prime, gradient, h, row_of
from tmifpe.theory.formats import FORMATS

pytestmark = pytest.mark.numerical

LOGITS = [2.5, -1.3, 0.8, 3.8, -0.9, 1.7, -2.1, 3.6, 0.4, -1.5]
# (aim, targeted): u_u, u_s at every rank, t_u at every rank, t_s.
CASES = [(aim, targeted) for targeted in (False, True) for aim in range(10)]
SCALES = [0.05, 0.7, 1.2736, 3.0, 20.0]


def row(aim: int, targeted: bool = False) -> Row:
    return row_of(torch.tensor(LOGITS, dtype=torch.float64), aim, targeted)


def exact_g(aim: int, t: Any, printed: bool = False, targeted: bool = False) -> Any:
    z = sorted(map(mp.mpf, LOGITS), reverse=True)
    c = t / (z[0] - z[1])
    e = [mp.exp(c * (x - z[0])) for x in z]
    p = [x / sum(e) for x in e]
    j = z.index(mp.mpf(LOGITS[aim]))
    if j == 0:
        return c * (1 - p[0])
    return c * (p[0] - p[j]) if printed and targeted else c * p[0]


@pytest.mark.parametrize(("aim", "targeted"), CASES)
@pytest.mark.parametrize("t", SCALES)
def test_g_and_its_derivative(aim: int, targeted: bool, t: float) -> None:
    scale = torch.tensor(t, dtype=torch.float64)
    for printed in (False, True):
        with mp.workdps(50):
            want = float(exact_g(aim, mp.mpf(t), printed, targeted))
        assert float(g(row(aim, targeted), scale, printed)) == pytest.approx(want, rel=1e-12)
    with mp.workdps(50):
        slope = float(mp.diff(lambda s: exact_g(aim, s), mp.mpf(t)))
    assert float(g_prime(row(aim, targeted), scale)) == pytest.approx(slope, rel=1e-9, abs=1e-12)


def test_the_printed_derivative_in_t_u_is_wrong() -> None:
    """eq31 is not the derivative of the g that the paper prints beside it; positive it is."""
    worst = 0.0
    for aim in (0, 1, 5, 7):
        for t in SCALES:
            got = float(g_prime(row(aim, True), torch.tensor(t, dtype=torch.float64), printed=True))
            with mp.workdps(50):
                want = float(mp.diff(lambda s, aim=aim: exact_g(aim, s, True, True), mp.mpf(t)))
            assert got > 0
            worst = max(worst, abs(got / want - 1))
    assert worst > 0.5


@pytest.mark.parametrize(("aim", "targeted"), CASES)
@pytest.mark.parametrize("t", SCALES)
def test_the_corrected_coefficients_are_the_gradient(aim: int, targeted: bool, t: float) -> None:
    """Telescoping backwards: the weight of rank k is a_k - a_{k-1}; and it is +-c (p - e_y)."""
    scale = torch.tensor(t, dtype=torch.float64)
    r = row(aim, targeted)
    a = coefficients(r, scale)
    ends = torch.zeros(1, dtype=torch.float64)
    by_rank = torch.cat((a, ends)) - torch.cat((ends, a))
    want = torch.empty_like(by_rank).scatter_(0, r.order, -by_rank if targeted else by_rank)
    grad = gradient(r, scale)
    torch.testing.assert_close(grad, want, rtol=1e-9, atol=1e-12)
    z = torch.tensor(LOGITS, dtype=torch.float64, requires_grad=True)
    loss = torch.nn.functional.cross_entropy(z[None] * (t / r.delta), torch.tensor([aim])) * (-1 if targeted else 1)
    torch.testing.assert_close(grad, torch.autograd.grad(loss, z)[0], rtol=1e-9, atol=1e-12)
    assert float(abs(a[0])) == pytest.approx(float(g(r, scale)), rel=1e-12)  # the first one is what is maximised


def test_where_the_printed_coefficients_differ() -> None:
    """u_s: p_j too often from the second to j; t_u: from the first; t_s: 1 - c p_1 for c (1 - p_1); u_u: right."""
    t = torch.tensor(0.5, dtype=torch.float64)

    def wrong(aim: int, targeted: bool) -> list[int]:
        r = row(aim, targeted)
        gap = coefficients(r, t) - coefficients(r, t, printed=True)
        return [k + 1 for k in range(9) if abs(gap[k]) > 1e-12]

    assert wrong(3, False) == []
    assert row(5).j == 4
    assert wrong(5, False) == [2, 3]
    assert wrong(5, True) == [1, 2, 3]
    assert wrong(3, True) == [1]
    r = row(3, True)
    c, p1 = 0.5 / r.delta, 1 - float(g(r, t)) * r.delta / 0.5
    assert float(coefficients(r, t, printed=True)[0]) == pytest.approx(-(1 - c * p1))


def test_h_is_neither_linear_nor_monotone() -> None:
    """K = 2: h = e^-t (1 + e^-t - t), with h(0) = K^2 - K = 2, a minimum of -0.1207 at 2.2177, then rising to 0."""
    r = row_of(torch.tensor([1.0, 0.0], dtype=torch.float64), 0, False)
    t = torch.tensor([0.0, 1.278464542761074, 2.2177, 5.0], dtype=torch.float64)
    got = h(r, t)
    torch.testing.assert_close(got, torch.exp(-t) * (1 + torch.exp(-t) - t))
    assert got.tolist() == pytest.approx([2.0, 0.0, -0.1207, float(got[3])], abs=1e-4)
    assert got[2] < got[3] < 0
    torch.testing.assert_close(
        g_prime(row(3), t[1:]), h(row(3), t[1:]) / (0.2 * row(3).exponentials(t[1:]).sum(-1) ** 2), rtol=1e-9, atol=0
    )


def test_delta_sup() -> None:
    assert delta_sup(2.0, FORMATS["fp16"]) == 2.0**-11
    assert delta_sup(-2.0, FORMATS["fp32"]) == 2.0**-24


def test_rows() -> None:
    """Ranks, a tie at the aim, a neighbour one ulp above it, and no gap at all."""
    assert [row(aim).j for aim in (3, 7, 0, 6)] == [1, 2, 3, 10]
    z = torch.tensor([1.0, 5.0, 1.0], dtype=torch.float64)
    assert [row_of(z, aim, False).j for aim in (0, 2)] == [2, 2]
    near = torch.tensor([1.0, 1.0 + 2.0**-52, 0.0], dtype=torch.float64)
    assert [row_of(near, aim, False).j for aim in (0, 1)] == [2, 1]
    with pytest.raises(InputError, match="two largest logits are equal"):
        row_of(torch.tensor([1.0, 1.0, 0.0]), 0, False)
