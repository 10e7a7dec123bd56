"""What every norm promises, for authors of norms outside the package."""

from __future__ import annotations

__all__ = ["check_norm"]

from dataclasses import dataclass

import torch
from torch import Tensor

from tmifpe.attacks.loop.early_exit import linear_gain
from tmifpe.norms import NORMS, Ball, Norm, column, get_norm
from tmifpe.testing.trial import Trial, try_all

_SHAPE = (2, 3, 3)
_EPS = (0.05, 0.2, 0.5, 1.0, 2.0, 0.2)


def check_norm(norm: str | Norm | type[Norm]) -> None:
    """`AssertionError`, in one sentence, unless a norm keeps the contract that attacks rely on.

    A norm is absolutely homogeneous and measures examples one by one. Projection is feasible, idempotent, the
    identity inside and the nearest point; the steepest direction has size one, no feasible one gains more, and it is 0
    where the gradient is; random starts are feasible and belong to the example.

    norm: a name, a norm, or its class.

    >>> check_norm("l2")
    """
    if isinstance(norm, str):
        found, name = get_norm(norm), norm
    else:
        cls = norm if isinstance(norm, type) else type(norm)
        name = NORMS.name_for(cls)
        found = get_norm(name)
    try_all(_Trial(name.partition("@")[0], found), (_size, _projection, _nearest, _direction, _gain, _start))


@dataclass(frozen=True)
class _Trial(Trial):
    norm: Norm

    def require_feasible(self, what: str, point: Tensor, ball: Ball) -> None:
        if not bool(((point >= ball.low) & (point <= ball.high)).all()):
            raise self.fail(f"{what} outside the box: {float(point.min()):.4g} to {float(point.max()):.4g}")
        beyond = self.norm.size(point - ball.x) - ball.eps
        if bool((beyond > 1e-9).any()):
            raise self.fail(f"{what} outside the ball, by {float(beyond.max()):.3g}")


def _noise(seed: int, n: int = len(_EPS)) -> Tensor:
    return torch.randn(n, *_SHAPE, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def _ball() -> Ball:
    """Images of which one touches the box, each with a radius of its own."""
    x = torch.sigmoid(_noise(0))
    x[0, 0, 0, 0], x[0, 0, 0, 1] = 0.0, 1.0
    return Ball(x, torch.tensor(_EPS, dtype=torch.float64), 0.0, 1.0)


def _size(trial: _Trial) -> None:
    delta = _noise(1)
    size = trial.norm.size(delta)
    if size.shape != (len(delta),):
        raise trial.fail(f"gives sizes of shape {tuple(size.shape)} for {len(delta)} examples; give one for each")
    if not bool((size > 0).all()) or bool((trial.norm.size(torch.zeros_like(delta)) != 0).any()):
        raise trial.fail("must be 0 for no change, and above 0 for any other")
    if not torch.allclose(trial.norm.size(-3 * delta), 3 * size):
        raise trial.fail("is no norm: three times the change, backwards, is not three times the size")
    if not torch.allclose(trial.norm.size(delta[2:3]), size[2:3]):
        raise trial.fail("measures an example differently among others")


def _projection(trial: _Trial) -> None:
    ball = _ball()
    for far in (0.01, 1.0, 100.0):
        wild = ball.x + far * _noise(2)
        before = wild.clone()
        point = trial.norm.project(wild, ball)
        if not torch.equal(wild, before):
            raise trial.fail("overwrites the points that it projects; only project_ may")
        trial.require_feasible("projects", point, ball)
        moved = (trial.norm.project(point, ball) - point).abs().max()
        if moved > 1e-9:
            raise trial.fail(f"projects a projected point once more, by {float(moved):.3g}")
        inside = ball.x + 0.5 * (point - ball.x)  # ball and box are convex
        moved = (trial.norm.project(inside, ball) - inside).abs().max()
        if moved > 1e-9:
            raise trial.fail(f"moves a point that is inside already, by {float(moved):.3g}")
        again = trial.norm.project_(wild.clone(), ball, trial.norm.region(ball))
        if not torch.allclose(again, point, rtol=0, atol=1e-12):
            raise trial.fail("projects differently by project_ with the region at hand")


def _nearest(trial: _Trial) -> None:
    """Against feasible points further along, random ones, and points a little towards them."""
    ball = _ball()
    wild = ball.x + _noise(3)
    point = trial.norm.project(wild, ball)
    best = (wild - point).flatten(1).norm(dim=1)
    further = [ball.boxed(point.lerp(wild, share)) for share in (0.1, 0.3, 1.0)]
    drawn = [torch.rand(ball.x.shape, generator=torch.Generator().manual_seed(seed)) for seed in range(50)]
    for other in [*further, *drawn]:
        feasible = _scaled_into(trial, ball, other)
        for share in (1.0, 0.1, 0.01):
            nearer = best - (wild - point.lerp(feasible, share)).flatten(1).norm(dim=1)
            if bool((nearer > 1e-9).any()):
                raise trial.fail(f"projects to a point that is not the nearest: one is nearer by {nearer.max():.3g}")


def _scaled_into(trial: _Trial, ball: Ball, other: Tensor) -> Tensor:
    """A point of the box, moved towards the image until it lies in the ball: feasible without any projection."""
    way = other.to(ball.x.dtype) - ball.x
    share = (ball.eps / trial.norm.size(way)).clamp(max=1.0)
    return ball.x + column(share, way) * way


def _direction(trial: _Trial) -> None:
    for scale in (1e-30, 1.0, 1e30):
        grad = scale * _noise(4)
        way = trial.norm.direction(grad)
        size = trial.norm.size(way)
        if not torch.allclose(size, torch.ones_like(size)):
            raise trial.fail(f"has a steepest direction of size {float(size[0]):.4g} for a gradient of about {scale:g}")
        gain = (grad * way).flatten(1).sum(dim=1)
        for seed in range(50):
            other = _noise(100 + seed) if seed else grad
            other = other / column(trial.norm.size(other), other)
            more = (grad * other).flatten(1).sum(dim=1) - gain
            if bool((more > 1e-9 * gain.abs()).any()):
                raise trial.fail("has a direction that is not the steepest: another step of size one gains more")
    lost = torch.zeros(2, *_SHAPE)
    lost[1, 0, 0, 0] = torch.nan
    if bool((trial.norm.direction(lost) != 0).any()):
        raise trial.fail("has a direction where the gradient is 0 or NaN; give 0 there")


def _gain(trial: _Trial) -> None:
    """Of a norm that says itself how much a linear model can gain; examples leave by it that cannot be broken."""
    if not hasattr(trial.norm, "gain"):
        return
    ball, grad = _ball(), _noise(5)
    here = trial.norm.project(ball.x + _noise(6), ball)
    gain = linear_gain(trial.norm, grad, here, ball, trial.norm.region(ball))
    steepest = ball.x + column(ball.eps, grad) * trial.norm.direction(grad)
    drawn = [torch.rand(ball.x.shape, generator=torch.Generator().manual_seed(seed)) for seed in range(50)]
    for other in (steepest, ball.x + torch.sign(grad), *drawn):
        feasible = trial.norm.project(other.to(ball.x.dtype), ball)
        more = (grad * (feasible - here)).flatten(1).sum(dim=1) - gain
        if bool((more > 1e-9).any()):
            raise trial.fail(f"has a gain that a feasible point exceeds, by {float(more.max()):.3g}")


def _start(trial: _Trial) -> None:
    ball, indices = _ball(), torch.tensor([5, 9, 2, 7, 0, 1])
    start = trial.norm.start(ball, 0, indices, 0, 0)
    trial.require_feasible("starts", start, ball)
    rows = torch.tensor([3, 0, 5])
    if not torch.allclose(trial.norm.start(ball.take(rows), 0, indices[rows], 0, 0), start[rows], rtol=0, atol=1e-12):
        raise trial.fail("starts elsewhere among other examples: draw by the example's index")
    for seed, stage, restart in ((1, 0, 0), (0, 1, 0), (0, 0, 1)):
        if torch.equal(trial.norm.start(ball, seed, indices, stage, restart), start):
            raise trial.fail("starts at the same points for another seed, stage or restart")
