"""Square Attack: random search that changes a square window at a time and keeps what raises the margin.

After Andriushchenko et al. 2020 (linf, l2) and Croce and Hein 2021 (l1). It asks for no gradient, so that masked
gradients do not mislead it.
"""

from __future__ import annotations

__all__ = ["Square"]

from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from tmifpe.attacks.ascent import MOST_LOOKS
from tmifpe.attacks.loop.queries import Evaluated, Objective
from tmifpe.attacks.loop.rows import Problem, Rows
from tmifpe.attacks.stepwise import Stepwise
from tmifpe.core import numerics, rng
from tmifpe.core.errors import InputError, shown
from tmifpe.core.numbers import real_number, whole_number
from tmifpe.core.types import Threat
from tmifpe.norms import column

_HALVED = (10, 50, 200, 500, 1000, 2000, 4000, 6000, 8000)
"""Queries of 10,000 after which the window's area is halved; for another number of queries in proportion."""
_POWERS = {"l2": 2, "l1": 1}


@dataclass
class SquareState(Rows):
    """The point asked about now, the best one so far, its margin, and the looks taken."""

    x: Tensor
    best: Tensor
    value: Tensor
    looks: Tensor


@dataclass(frozen=True)
class Square(Stepwise):
    """Random search on the margin with `queries` forward passes per example and no backward pass.

    linf: every pixel is at an end of its range; a window is set to one end, drawn for each channel.
    l2, l1: a window gets the mass of another one, and what eps has left, in the shape of two pyramids of opposite sign;
    the other one is drawn where the change is, not anywhere.
    l1: that is once more as much as eps allows for every channel, so that the projection into the ball leaves few
    pixels of the change, and only those change much.
    `p_init` is the share of the pixels in the first windows.

    >>> Square(queries=1000).budget
    Budget(forwards=1000, backwards=0)
    """

    queries: int = 5000
    p_init: float = 0.8
    restarts: int = 1

    name: ClassVar[str] = "square"
    needs_gradient: ClassVar[bool] = False

    def __post_init__(self) -> None:
        for field in ("queries", "restarts"):
            object.__setattr__(self, field, whole_number(field, getattr(self, field)))
        if self.looks >= MOST_LOOKS:
            raise InputError(f"queries times restarts must stay below {MOST_LOOKS}, got {shown(self.looks)}")
        real_number("p_init (a share of the pixels)", self.p_init, above=0, most=1)

    def check(self, threat: Threat, *, targeted: bool = False, eot: int = 1) -> None:
        super().check(threat, targeted=targeted, eot=eot)
        if threat.norm != "linf" and threat.norm not in _POWERS:
            raise InputError(f"square knows linf, l2 and l1, not {shown(threat.norm)}")

    @property
    def looks(self) -> int:
        return self.restarts * self.queries

    def init(self, problem: Problem) -> SquareState:
        given = problem.start
        x = self._start(problem, 0) if given is None else problem.norm.project(given, problem.ball)
        lowest = torch.full_like(problem.eps, -torch.inf)
        return SquareState(x, x.clone(), lowest, torch.zeros_like(problem.labels))

    def objective(self, problem: Problem, state: SquareState) -> Objective:  # noqa: ARG002
        def value(logits: Tensor) -> Tensor:
            z = logits.to(numerics.compute_dtype(logits.dtype))
            return numerics.margin(z, problem.labels, problem.targets).masked_fill(~numerics.is_usable(z), -torch.inf)

        return value

    def step(self, problem: Problem, state: SquareState, evaluated: Evaluated) -> SquareState:
        """Keep the point if it is better than the best, and propose the next one."""
        looks = state.looks + 1
        if evaluated.value is None:  # every row has been judged for the last time
            return replace(state, looks=looks)
        value = evaluated.value.to(state.value.dtype)
        better = (value > state.value) | (state.looks % self.queries == 0)  # a restart forgets the best before it
        best = torch.where(column(better, state.x), state.x, state.best)
        value = torch.where(better, value, state.value)
        return SquareState(self._proposed(problem, best, looks), best, value, looks)

    def _proposed(self, problem: Problem, best: Tensor, looks: Tensor) -> Tensor:
        images = _as_images(best)
        draws = rng.uniform_at(problem.seed, problem.indices, problem.stage, 0, looks, (4 + images.shape[1],))
        side = self._side(images, looks % self.queries, odd=problem.threat.norm != "linf")
        windows = _Windows(images, side, draws.to(best.dtype))
        change = _stamped if problem.threat.norm == "linf" else _moved
        moved = problem.norm.project(change(problem, images, windows).view_as(best), problem.ball)
        if self.restarts > 1:
            for k in torch.unique(looks[looks % self.queries == 0] // self.queries).tolist():
                rows = (looks == k * self.queries).nonzero()[:, 0]
                moved[rows] = self._start(problem.take(rows), int(k))
        return moved

    def _side(self, images: Tensor, number: Tensor, odd: bool) -> Tensor:
        """The side of each row's window (n,), in pixels; an odd one has a middle, and is 3 at least where it can be."""
        height, width = images.shape[2:]
        done = number.to(torch.float64) * (10_000 / self.queries)
        halved = sum((done > after).to(torch.float64) for after in _HALVED)
        side = torch.sqrt(self.p_init * height * width * torch.exp2(-torch.as_tensor(halved))).round().long()
        longest = max(height, width)
        if not odd:
            return side.clamp(1, longest)
        side = side.clamp(min(3, longest), longest)
        return side + (1 - side % 2)

    def _start(self, problem: Problem, restart: int) -> Tensor:
        """linf: stripes one pixel wide, at random ends; l2, l1: a grid of five by five pairs of pyramids, one above or
        beside the other, of random sign."""
        images = _as_images(problem.x)
        channels, height, width = images.shape[1:]
        if problem.threat.norm == "linf":
            draw = rng.uniform(problem.seed, problem.indices, problem.stage, restart, (channels, 1, width))
            way = _coins(draw, images.dtype).expand_as(images) * column(problem.ball.radius, images)
            return problem.norm.project(problem.x + way.reshape(problem.x.shape), problem.ball)
        power, tile = _POWERS[problem.threat.norm], max(1, min(height, width) // 5)
        rows, columns = height // tile, width // tile
        draw = rng.uniform(problem.seed, problem.indices, problem.stage, restart, (channels + 1, rows, columns))
        draw = _coins(draw, images.dtype).repeat_interleave(tile, 2).repeat_interleave(tile, 3)
        pair = _pair(tile, power, images)
        upright, lying = (one.repeat(rows, columns) for one in (pair, pair.T))
        made = draw[:, 1:] * torch.where(draw[:, :1] < 0, upright, lying)
        grid, margins = torch.zeros_like(images), (height - made.shape[2], width - made.shape[3])
        top, left = (rest // 2 for rest in margins)
        grid[:, :, top : top + made.shape[2], left : left + made.shape[3]] = made
        # At l1 the projection keeps the tips of the pyramids; a grid that fits into the ball would have none.
        far = 1.0 if power == 1 else column(problem.ball.radius / problem.norm.size(grid), images)
        return problem.norm.project(problem.x + (grid * far).reshape(problem.x.shape), problem.ball)


class _Windows:
    """One window of each row to change, another to take from, and the coins of the change."""

    def __init__(self, images: Tensor, side: Tensor, draws: Tensor) -> None:
        self.side, self.draws = side, draws
        self.top, self.left = (_begin(side, draws[:, k], images.shape[2 + k]) for k in (0, 1))
        self.here = _mask(images, side, self.top, self.left)
        self.upright = draws[:, 3] < 0.5
        self.coins = _coins(draws[:, 4:, None, None], images.dtype)

    def there(self, change: Tensor) -> Tensor:
        """The other window (n, 1, H, W), around a pixel drawn in proportion to how much it is changed.

        Andriushchenko et al. draw it anywhere, and where nothing is changed, there is nothing to take: this leaves half
        as many survivors of the same queries (docs/named.md).
        """
        width = change.shape[3]
        mass = change.abs().sum(dim=1).flatten(1).cumsum(dim=1)
        drawn = torch.searchsorted(mass, self.draws[:, 2:3] * mass[:, -1:], right=True)[:, 0]
        drawn = drawn.clamp(max=mass.shape[1] - 1)
        places = ((drawn // width, change.shape[2]), (drawn % width, width))
        top, left = (
            (place - self.side // 2).clamp(min=0).minimum((length - self.side).clamp(min=0)) for place, length in places
        )
        return _mask(change, self.side, top, left)


def _begin(side: Tensor, draw: Tensor, length: int) -> Tensor:
    """Where windows of these sides begin along an axis of that length (n,)."""
    return (draw * (length - side + 1).clamp(min=1)).long()


def _mask(images: Tensor, side: Tensor, top: Tensor, left: Tensor) -> Tensor:
    """The pixels of each row's window (n, 1, H, W)."""
    masks = []
    for begin, length in ((top, images.shape[2]), (left, images.shape[3])):
        places = torch.arange(length, device=images.device)
        masks.append((places >= begin[:, None]) & (places < (begin + side)[:, None]))
    return (masks[0][:, :, None] & masks[1][:, None, :])[:, None]


def _stamped(problem: Problem, best: Tensor, windows: _Windows) -> Tensor:
    """Every pixel of the window at its lower or upper end, by the channel's coin."""
    radius, x = column(problem.ball.radius, best), _as_images(problem.x)
    new = torch.where(windows.here, problem.ball.boxed(x + windows.coins * radius), best)
    # A draw that changes nothing is turned round, so that no query is wasted on the same point.
    same = (new == best).flatten(1).all(dim=1)
    turned = torch.where(windows.here, problem.ball.boxed(x - windows.coins * radius), best)
    return torch.where(column(same, new), turned, new)


def _moved(problem: Problem, best: Tensor, windows: _Windows) -> Tensor:
    """Both windows are emptied; the first gets their mass and what eps has left, in its old shape plus pyramids."""
    power, x = _POWERS[problem.threat.norm], _as_images(problem.x)
    old = best - x
    both = windows.here | windows.there(old)
    spent = old.abs().pow(power).sum(dim=(1, 2, 3), keepdim=True)
    unused = numerics.left_over(column(problem.ball.radius, old).pow(power), spent, old[0].numel())
    mass = (old * both).abs().pow(power).sum(dim=(2, 3), keepdim=True) + unused / old.shape[1]
    shape = windows.coins * _normed(_pyramids(best, windows, power), power) + _normed(old * windows.here, power)
    more = old.shape[1] if power == 1 else 1
    return x + torch.where(both, 0.0, old) + _normed(shape, power) * mass.pow(1 / power) * more


def _pyramids(images: Tensor, windows: _Windows, power: int) -> Tensor:
    """(n, 1, H, W): in each row's window a pyramid and a negative one beside it or below it."""
    made = torch.zeros_like(images[:, :1])
    for side in torch.unique(windows.side).tolist():
        rows = (windows.side == side).nonzero()[:, 0]
        shape = _pair(side, power, images)
        down, right = (
            (torch.arange(length, device=images.device) - begin[rows, None]).clamp(0, side - 1)
            for length, begin in ((images.shape[2], windows.top), (images.shape[3], windows.left))
        )
        upright = shape[down[:, :, None], right[:, None, :]]
        lying = shape[right[:, None, :], down[:, :, None]]
        made[rows, 0] = torch.where(windows.upright[rows, None, None], upright, lying)
    return made * windows.here


def _pair(side: int, power: int, like: Tensor) -> Tensor:
    """(side, side), of size one: a pyramid above and a negative one below, each of size one before."""
    half = side // 2
    parts = [_pyramid(side, power, like, half), -_pyramid(side, power, like, side - half)]
    return _normed(torch.cat([_normed(part, power) for part in parts]), power)


def _pyramid(width: int, power: int, like: Tensor, height: int) -> Tensor:
    """(height, width): sum_{k <= M} (m + 1 - k)^-2 with m half the longer side and M = m less the distance to the
    middle, the larger of the two; at l1 the power of -4, which is steeper."""
    half = max(height, width) // 2
    steps = torch.arange(half + 1, 0, -1).to(like).pow(-4 if power == 1 else -2).cumsum(dim=0)
    down, right = ((torch.arange(n, device=like.device) - n // 2).abs() for n in (height, width))
    return steps[half - torch.maximum(down[:, None], right[None, :])]


def _normed(x: Tensor, power: int) -> Tensor:
    """Each plane of the last two dimensions divided by its size; one of size 0 stays 0."""
    size = torch.linalg.vector_norm(x, ord=power, dim=(-2, -1), keepdim=True)
    return x / torch.where(size > 0, size, 1.0)


def _coins(draws: Tensor, dtype: torch.dtype) -> Tensor:
    return torch.where(draws < 0.5, -1.0, 1.0).to(dtype)


def _as_images(x: Tensor) -> Tensor:
    """(n, C, H, W), with a C or an H of 1 for rows that have no channels or no height."""
    return x.reshape(len(x), *[1] * (4 - x.dim()), *x.shape[1:]) if x.dim() <= 4 else x.flatten(1, -3)
