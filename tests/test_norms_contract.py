"""Every norm in the registry: projection, steepest direction, random start."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.cases import cases
from tmifpe.core.types import Threat
from tmifpe.norms import NORMS, Ball, get_norm
from tmifpe.testing import check_norm

pytestmark = pytest.mark.numerical

SHAPE = (2, 3, 3)


def images(seed: int, n: int = 6, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    x = torch.rand(n, *SHAPE, generator=generator, dtype=torch.float64)
    x[0, 0, 0, 0], x[0, 0, 0, 1] = 0.0, 1.0
    return x.to(dtype)


@pytest.fixture(params=list(NORMS))
def norm(request):
    return get_norm(request.param)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@settings(max_examples=cases(40), deadline=None)
@given(seed=st.integers(0, 10**6), eps=st.floats(1e-4, 3), far=st.floats(0.01, 100))
@pytest.mark.parametrize("name", list(NORMS))
def test_projection(name, dtype, seed, eps, far):
    """Feasible, idempotent, the identity inside, and nearer than any other feasible point tried."""
    norm, threat = get_norm(name), Threat(name, eps)
    x = images(seed, dtype=dtype)
    generator = torch.Generator().manual_seed(seed + 1)
    wild = x + far * torch.randn(x.shape, generator=generator, dtype=torch.float64).to(dtype)
    point = norm.project(wild, Ball.of(x, threat))
    slack = 32 * torch.finfo(dtype).eps
    assert (point >= 0).all()
    assert (point <= 1).all()
    assert (norm.size(point - x) <= eps + slack).all()
    assert (norm.project(point, Ball.of(x, threat)) - point).abs().max() <= slack
    # any feasible point is at least as far from `wild`
    for k in range(5):
        other = torch.rand(x.shape, generator=generator, dtype=torch.float64).to(dtype)
        other = norm.project(x + (other - x) * (k + 1) / 5, Ball.of(x, threat))
        gap = (wild - point).flatten(1).norm(dim=1) - (wild - other).flatten(1).norm(dim=1)
        assert (gap <= slack * (1 + far) * 10).all()


def test_keeps_the_contract(norm):
    check_norm(norm)


def test_projection_is_the_identity_inside(norm):
    x = images(3)
    inside = (x + 0.01 * torch.sign(0.5 - x) * torch.rand_like(x)).clamp(0, 1)
    assert torch.equal(norm.project(inside, Ball.of(x, Threat(norm.name, 0.5))), inside)


def test_l2_projection_is_nearest_where_scaling_then_clipping_is_not():
    x = torch.tensor([[[[0.9, 0.5]]]], dtype=torch.float64)
    wild = torch.tensor([[[[2.9, 1.5]]]], dtype=torch.float64)
    norm, threat = get_norm("l2"), Threat("l2", 0.4)
    point = norm.project(wild, Ball.of(x, threat))
    scaled = (x + (wild - x) * 0.4 / (wild - x).norm()).clamp(0, 1)
    assert (wild - point).norm() < (wild - scaled).norm() - 0.01
    # the first pixel is at the box, the second takes what is left of the ball
    expected = torch.tensor([1.0, 0.5 + (0.4**2 - 0.1**2) ** 0.5], dtype=torch.float64)
    torch.testing.assert_close(point.flatten(), expected)


@pytest.mark.parametrize("scale", [1e-30, 1e-12, 1.0, 1e12, 1e30])
def test_direction_is_dual(norm, scale):
    """<g, d> = the dual norm of g, at unit size, at every scale of the gradient."""
    grad = scale * torch.randn(5, *SHAPE, generator=torch.Generator().manual_seed(0), dtype=torch.float32)
    way = norm.direction(grad)
    assert torch.allclose(norm.size(way), torch.ones(5), atol=1e-6)
    gain = (grad.double() * way.double()).flatten(1).sum(dim=1)
    dual = grad.double().flatten(1).norm(p={"linf": 1, "l2": 2, "l1": torch.inf}[norm.name], dim=1)
    assert torch.allclose(gain, dual, rtol=1e-5)


def test_zero_and_nan_gradients_stay_put(norm):
    grad = torch.zeros(3, *SHAPE)
    grad[1, 0, 0, 0] = torch.nan
    grad[2, 0, 0, 0], grad[2, 1, 1, 1] = torch.nan, 2.0
    way = norm.direction(grad)
    assert torch.isfinite(way).all()
    assert way[:2].abs().sum() == 0
    assert way[2, 1, 1, 1] == 1


def test_start_is_feasible_and_belongs_to_the_example(norm):
    threat, x = Threat(norm.name, 0.4), images(1)
    indices = torch.tensor([5, 9, 2, 7, 0, 1])
    start = norm.start(Ball.of(x, threat), 0, indices, 0, 0)
    assert (norm.size(start - x) <= 0.4 + 1e-9).all()
    assert ((start >= 0) & (start <= 1)).all()
    order = torch.tensor([3, 0, 5])
    alone = norm.start(Ball.of(x[order], threat), 0, indices[order], 0, 0)
    # A direction is made of float32 logarithms and cosines, whose last bit (6e-8) may depend on the place in a batch.
    torch.testing.assert_close(alone, start[order], rtol=0, atol=1e-6)
    if norm.name == "linf":  # no function and no sum: the same on every processor
        assert torch.equal(alone, start[order])
    for other in ((1, 0, 0), (0, 1, 0), (0, 0, 1)):
        seed, stage, restart = other
        apart = (norm.start(Ball.of(x, threat), seed, indices, stage, restart) - start).abs().flatten(1).amax(dim=1)
        assert (apart > 1e-3).all()


@pytest.mark.parametrize(("low", "high"), [(0.0, 1.0), (-0.42, 2.82), (-2.1, 2.6)])
def test_the_l2_projection_stays_in_any_box(low, high):
    random = torch.Generator().manual_seed(0)
    x = low + (high - low) * torch.rand(64, 3, 8, 8, generator=random)
    far = x + 10 * torch.randn(x.shape, generator=random)
    for eps in (0.5, 5.0, 15.0, 25.0):
        threat = Threat("l2", eps, low, high)
        point = get_norm("l2").project(far, Ball.of(x.clamp(low, high), threat))
        assert bool(((point >= low) & (point <= high)).all())
