"""t*: its equation, its bracket, several maxima, and that it is the best of 4096 points."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

from tmifpe.core import numerics
from tmifpe.core.errors import InputError
from tmifpe.theory.solver import (
    _UNIMODAL,  # pyright: ignore[reportPrivateUsage]
    T_TWO,
    _newton,  # pyright: ignore[reportPrivateUsage]
    bracket,
    height,
    local_maxima,
    one_step_t,
    solve_t,
)

pytestmark = pytest.mark.numerical

Rows = np.ndarray


def ratios(z: Rows) -> Rows:
    z = -np.sort(-z, axis=1)
    return (z[:, :1] - z[:, 1:]) / (z[:, :1] - z[:, 1:2])


def random_rows(rng: np.random.Generator, n: int, k: int) -> Rows:
    """Half Gaussian, half with a confident top, as trained models have."""
    z = rng.standard_normal((n, k))
    z[n // 2 :, 0] += 2.0 + rng.exponential(4.0, n - n // 2)
    return ratios(z)


def two_clusters(rng: np.random.Generator, n: int, k: int, near: float, far: float) -> Rows:
    """One rival at 1 and the rest around a far gap: where two maxima appear and swap."""
    d = np.repeat(rng.uniform(near, far, (n, 1)), k - 1, axis=1)
    d *= 1.0 + rng.normal(0.0, 1.0, d.shape) * rng.choice([0.0, 1e-3, 0.05, 0.1], size=(n, 1))
    d = np.maximum(d, 1.0)
    d[:, 0] = 1.0
    return d


def three_clusters(rng: np.random.Generator, n: int, k: int) -> Rows:
    d = np.repeat(rng.uniform(8.0, 22.0, (n, 1)), k - 1, axis=1)
    middle = np.arange(k - 1)[None] < rng.integers(3, max(4, k // 8), size=(n, 1))
    d = np.where(middle, rng.uniform(3.0, 8.0, (n, 1)), d)
    d[:, 0] = 1.0
    return d


def imbalance(d: Rows, t: Rows) -> Rows:
    """F(t) = t m - 1 - q, negative where G rises, in 80-bit arithmetic so that its sign is beyond doubt."""
    d, t = d.astype(np.longdouble), t.astype(np.longdouble)
    e = np.exp(-t[:, None] * d)
    q = e.sum(axis=1)
    return t * (d * e).sum(axis=1) / q - 1 - q


def best_of(d: Tensor, points: int) -> Tensor:
    grid = torch.logspace(math.log10(0.05), math.log10(1.5 * bracket(d.shape[1] + 1)[1]), points, dtype=d.dtype)
    best = torch.zeros(len(d), dtype=d.dtype)
    for t in grid:
        q = torch.exp(d * -t).sum(dim=1)
        best = torch.maximum(best, t * q / (1 + q))
    return best


def assert_solved(d: Rows, points: int = 4096) -> None:
    rows = torch.from_numpy(d)
    t = solve_t(rows)
    wide, tiny = t.numpy().astype(np.longdouble), np.longdouble(1e-12)
    assert (imbalance(d, wide * (1 - tiny)) < 0).all()
    assert (imbalance(d, wide * (1 + tiny)) > 0).all()
    g = height(rows, t)
    assert (g >= (1 - 1e-12) * best_of(rows, points)).all()


@pytest.mark.parametrize("k", [3, 5, 10, 13, 14, 30, 100])
def test_random_rows(k: int) -> None:
    assert_solved(random_rows(np.random.default_rng(k), 200, k), 1024)


@pytest.mark.parametrize(
    ("k", "near", "far"), [(13, 4.0, 7.0), (14, 5.83, 6.0), (22, 5.8, 7.5), (50, 6, 10), (100, 7, 14), (1000, 9, 25)]
)
def test_two_clusters(k: int, near: float, far: float) -> None:
    assert_solved(two_clusters(np.random.default_rng(k), 200 if k < 1000 else 20, k, near, far), 1024)


@pytest.mark.parametrize("k", [100, 428])
def test_three_clusters(k: int) -> None:
    assert_solved(three_clusters(np.random.default_rng(k), 40, k), 1024)


@pytest.mark.slow
def test_a_hundred_thousand_random_rows() -> None:
    rng = np.random.default_rng(1)
    for k, n in ((3, 20_000), (5, 20_000), (10, 30_000), (13, 20_000), (30, 8_000), (100, 1_800), (1000, 200)):
        # A coarser grid than for rows with several maxima, below: nearly all of these have one, and a broad one.
        assert_solved(random_rows(rng, n, k), 1024)


def multimodal(make: Callable[[], Rows], n: int) -> Rows:
    """The first n rows that `make` produces whose G has more than one maximum on a grid of 500 points."""
    kept: list[Rows] = []
    while sum(map(len, kept)) < n:
        d = make()
        t = np.geomspace(1 / d.max(), 1.01 * bracket(d.shape[1] + 1)[1], 500)
        q = np.stack([np.exp(-s * d).sum(axis=1) for s in t])
        g = t[:, None] * q / (1 + q)
        peaks = ((g[1:-1] > g[:-2]) & (g[1:-1] > g[2:])).sum(axis=0)
        kept.append(d[peaks > 1])
    return np.concatenate(kept)[:n]


@pytest.mark.parametrize("k", [14, 22, 100])
def test_multimodal_rows(k: int) -> None:
    rng = np.random.default_rng(k)
    near, far = {14: (5.83, 6.0), 22: (5.8, 7.5), 100: (7.0, 14.0)}[k]
    assert_solved(multimodal(lambda: two_clusters(rng, 100, k, near, far), 60), 1024)


@pytest.mark.slow
def test_ten_thousand_multimodal_rows() -> None:
    rng = np.random.default_rng(2)
    families = (
        (14, 5.83, 6.0, 2000),
        (15, 5.8, 6.2, 2000),
        (22, 5.8, 7.5, 3000),
        (50, 6, 10, 1500),
        (100, 7, 14, 1000),
    )
    for k, near, far, n in families:
        assert_solved(multimodal(lambda k=k, near=near, far=far: two_clusters(rng, 1000, k, near, far), n))
    assert_solved(multimodal(lambda: three_clusters(rng, 200, 100), 400))
    assert_solved(multimodal(lambda: three_clusters(rng, 100, 428), 100))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_two_classes_and_all_tied(dtype: torch.dtype) -> None:
    assert pytest.approx(1.278464542761074, rel=1e-15) == T_TWO
    assert (solve_t(torch.ones(3, 1, dtype=dtype)) == torch.tensor(T_TWO, dtype=dtype)).all()
    for k in (*range(3, 40), 100, 1000):
        t = solve_t(torch.ones(2, k - 1, dtype=dtype))
        # t = 1 + q errs relatively less than q, a sum of k - 1 equal terms: in the worst order of adding them by
        # (k - 1) half units in the last place. Eight more for exp, its argument and the last Newton step.
        tolerance = (k + 8) * torch.finfo(dtype).eps / 2
        assert t.tolist() == pytest.approx([bracket(k)[1]] * 2, rel=tolerance)


@pytest.mark.parametrize(
    ("k", "low", "high"),
    [(2, 1.27846, 1.27846), (3, 0.70, 1.46306), (13, 0.70, 2.25654), (14, 0.27846, 2.30146), (1000, 0.27846, 5.42050)],
)
def test_bracket(k: int, low: float, high: float) -> None:
    assert bracket(k) == pytest.approx((low, high), abs=6e-6)


def test_one_class_has_no_scale() -> None:
    with pytest.raises(InputError, match="two classes"):
        bracket(1)


def test_the_extremal_rows_of_the_bracket_are_inside() -> None:
    """The smallest t* of all logits, at the far gap that attains it (theory notes, table of tight brackets)."""
    for k, gap, t in ((3, 2.473, 1.12224), (10, 4.476, 0.76864), (13, 5.121, 0.70206), (22, 6.809, 0.57560)):
        d = torch.full((1, k - 1), gap, dtype=torch.float64)
        d[:, 0] = 1.0
        assert solve_t(d).item() == pytest.approx(t, abs=2e-4)


def gaps(*pairs: tuple[float, int]) -> Tensor:
    """Ratios as the oracle stores them, rounded to float32: near a tie of two maxima the digits depend on it."""
    return torch.tensor([d for d, count in pairs for _ in range(count)]).double()


def fourteen(gap: float = 5.887) -> Tensor:
    return gaps((1.0, 1), (gap, 12))


def test_two_maxima_from_fourteen_classes() -> None:
    found = local_maxima(fourteen())
    assert [t for t, _ in found] == pytest.approx([0.95749076, 0.78831193], rel=1e-7)
    assert [g for _, g in found] == pytest.approx([0.286334256, 0.286334194], rel=1e-8)
    assert solve_t(fourteen()[None]).item() == pytest.approx(found[0][0], rel=1e-12)
    assert solve_t(fourteen(5.885)[None]).item() == pytest.approx(0.78312711835050787706, rel=1e-12)


@pytest.mark.parametrize("start", np.linspace(0.5, 1.4, 30))
def test_newton_never_settles_on_a_minimum(start: float) -> None:
    """Between the two maxima plain Newton would run to the minimum; the bracket turns it to a maximum from anywhere."""
    d = gaps((1.0, 1), (6.8, 20))
    peaks = [t for t, _ in local_maxima(d)]
    assert len(peaks) == 2
    t, low, high = (torch.tensor([s], dtype=torch.float64) for s in (start, 0.28, 2.6))
    found = _newton(d[:, None], t, low, high, 60).item()
    assert min(abs(found / peak - 1) for peak in peaks) < 1e-9


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("k", [2, 3, 10, numerics.FEW])
def test_numpy_and_torch_agree(k: int, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    """Few classes are solved by numpy on a CPU and by torch elsewhere: the same code, so the same t."""
    assert k <= _UNIMODAL  # the highest of several maxima is found by torch alone
    d = torch.from_numpy(random_rows(np.random.default_rng(4), 300, k)).to(dtype)
    by_numpy = solve_t(d)
    monkeypatch.setattr(numerics, "FEW", 0)
    torch.testing.assert_close(by_numpy, solve_t(d), rtol={torch.float32: 2e-6, torch.float64: 1e-14}[dtype], atol=0)


def test_three_maxima() -> None:
    found = local_maxima(gaps((1.0, 1), (5.612, 10), (15.8928, 416)))
    assert [round(t, 3) for t, _ in found] == [0.879, 0.694, 0.581]


def test_maxima_below_the_bracket_are_reported_too() -> None:
    """998 classes at 60 Delta: a low maximum at t = 0.0997, which never wins but exists."""
    found = local_maxima(gaps((1.0, 1), (60.0, 998)))
    assert [t for t, _ in found] == pytest.approx([1.27846454, 0.09967562], rel=1e-7)


@pytest.mark.parametrize("k", [10, 20])
def test_classes_without_weight_count_for_nothing(k: int) -> None:
    """An infinite ratio, a NaN row and a row without any rival leave the other rows alone and finite."""
    d = torch.from_numpy(random_rows(np.random.default_rng(0), 6, k))
    padded = torch.cat((d, torch.full((6, 1), math.inf, dtype=d.dtype)), dim=1)
    want = solve_t(d)
    torch.testing.assert_close(solve_t(padded, k), want, rtol=1e-14, atol=0)
    padded[0], padded[1] = math.nan, math.inf
    got = solve_t(padded, k)
    torch.testing.assert_close(got[2:], want[2:], rtol=1e-14, atol=0)
    assert torch.isfinite(got[1])
    assert solve_t(d[:0]).shape == (0,)


@pytest.mark.parametrize("k", [5, 10, 13, 14, 100, 1000])
def test_float32_is_close_enough(k: int) -> None:
    d = torch.from_numpy(random_rows(np.random.default_rng(k), 100, k))
    double, single = solve_t(d), solve_t(d.float()).double()
    assert (1 - height(d, single) / height(d, double)).max() < 1e-9
    torch.testing.assert_close(single, double, rtol=2e-5, atol=0)


def test_one_step() -> None:
    """Figure 1 (a), and the catastrophe of a thousand tied classes."""
    z = np.array([[2.5, -1.3, 0.8, 3.8, -0.9, 1.7, -2.1, 3.6, 0.4, -1.5]])
    assert one_step_t(torch.from_numpy(ratios(z))).item() == pytest.approx(1.33848427755459254, rel=1e-13)
    assert one_step_t(torch.ones(1, 999, dtype=torch.float64)).item() == pytest.approx(1 + 999 / math.e, rel=1e-14)
