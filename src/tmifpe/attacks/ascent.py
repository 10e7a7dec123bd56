"""How a row moves: projected steps along the steepest direction, with momentum and restarts (eq:pgd).

The attacks that climb share this and differ in what they climb (`objective`) and where they begin (`start`).
"""

from __future__ import annotations

__all__ = ["Ascent", "AscentState"]

from abc import abstractmethod
from dataclasses import dataclass, replace
from functools import lru_cache

import torch
from torch import Tensor

from tmifpe.attacks.loop.queries import Evaluated, Objective
from tmifpe.attacks.loop.rows import Problem, Rows
from tmifpe.attacks.schedules import get_schedule
from tmifpe.attacks.stepwise import Stepwise
from tmifpe.core.errors import InputError, shown
from tmifpe.core.numbers import real_number, whole_number
from tmifpe.norms import Ball, column

PLAIN_FROM = 0.7
"""The share of the steps after which the gradient is the true one: smoothing to the very end finds less (measured)."""
WIDE = 0.2
"""The share of the pixels that the first steps change in norms that charge by the pixel (Croce and Hein 2021)."""
MOST_LOOKS = 2**31
"""Outcomes count steps in 32 bits."""
_TABLE = 2**16
"""Steps up to which step sizes are looked up: half a dozen operations on a few rows cost more than one."""


@dataclass
class AscentState(Rows):
    """The point, the one before, the accumulated gradient, the looks taken so far; and, which never changes,
    what the norm wants to know of the image to project onto its ball."""

    x: Tensor
    previous: Tensor
    velocity: Tensor | None
    looks: Tensor
    region: Tensor | None = None


class Ascent(Stepwise):
    """u = P(x + a_i d),  x⁺ = P(x + m (u − x) + (1 − m)(x − x₋)), the first step plain; d is the steepest direction.

    A frozen dataclass of the values below inherits from it and adds `objective` and `start`.
    """

    steps: int
    restarts: int
    schedule: str
    step_size: float
    momentum: float
    momentum_on: str
    smooth: float = 0.0
    """How far the backward pass is smoothed at the first step (`SmoothBackward`); it falls to 0 by `PLAIN_FROM`."""

    @abstractmethod
    def objective(self, problem: Problem, state: AscentState) -> Objective:
        """What to climb."""

    @abstractmethod
    def start(self, problem: Problem, restart: int) -> Tensor:
        """Where every row of the problem begins its restart of that number."""

    def check_options(self) -> None:
        """`InputError` for values that cannot work."""
        for field in {"steps", "restarts"} & set(vars(self)):
            object.__setattr__(self, field, whole_number(field, getattr(self, field)))
        if self.looks >= MOST_LOOKS:
            raise InputError(f"steps times restarts must stay below {MOST_LOOKS}, got {shown(self.looks)}")
        real_number("momentum", self.momentum, least=0, most=1)
        real_number("step_size (in units of eps)", self.step_size, above=0, most=1e6)
        object.__setattr__(self, "smooth", real_number("smooth", self.smooth, least=0, most=100))
        if self.momentum_on not in ("iterate", "gradient"):
            raise InputError(f"momentum_on must be 'iterate' or 'gradient', got {shown(self.momentum_on)}")
        get_schedule(self.schedule)

    @property
    def looks(self) -> int:
        """Looks at the model per example: every step, and one more per restart to judge the last point."""
        return self.restarts * (self.steps + 1)

    def init(self, problem: Problem) -> AscentState:
        given = problem.start
        x = self.start(problem, 0) if given is None else problem.norm.project(given, problem.ball)
        velocity = torch.zeros_like(x) if self.momentum_on == "gradient" else None
        region = problem.norm.region(problem.ball)
        return AscentState(x, x.clone(), velocity, torch.zeros_like(problem.labels), region)

    def smoothness(self, state: AscentState) -> Tensor | None:
        if not self.smooth:
            return None
        share = self.smooth * (1 - self.number(state).to(state.x.dtype) / (PLAIN_FROM * self.steps)).clamp(min=0)
        return share if bool(share.any()) else None

    def number(self, state: AscentState) -> Tensor:
        """Which step of its restart each row is about to take, from 0."""
        return state.looks % (self.steps + 1)

    def step(self, problem: Problem, state: AscentState, evaluated: Evaluated) -> AscentState:
        """One step of every row, each at its own step number."""
        if evaluated.grad is None:  # every row has been judged for the last time
            return replace(state, looks=state.looks + 1)
        norm, ball = problem.norm, problem.ball
        number = self.number(state)
        share = self._scheduled(number, state.x.dtype)
        ascent, velocity = self._direction(state, evaluated.grad, number)
        size = column((ball.eps * self.step_size).to(state.x.dtype) * share, state.x)
        # In place from here on: on a CPU, new memory for every step costs as much as the arithmetic.
        way = self._way(problem, ascent, number)
        moved = torch.addcmul(state.x, way, size, out=way)
        moved = norm.project_(moved, ball, state.region)
        if self.momentum_on == "iterate" and 0 < self.momentum < 1:
            weight = column(_weights(self.momentum, state.x.dtype, number.device)[number.clamp(max=1)], state.x)
            # x + m (u - x) + (1 - m)(x - x_) as a blend of u and 2x - x_.
            coast = state.previous.lerp_(state.x, 2.0)
            moved = norm.project_(coast.lerp_(moved, weight), ball, state.region)
        state = AscentState(moved, state.x, velocity, state.looks + 1, state.region)
        return self._restarted(problem, state) if self.restarts > 1 else state

    def _scheduled(self, number: Tensor, dtype: torch.dtype) -> Tensor:
        """The share of the first step size that each row takes (n,)."""
        if self.steps > _TABLE:
            return get_schedule(self.schedule)(number.to(dtype) / self.steps)
        return _sizes(self.schedule, self.steps, dtype, number.device).index_select(0, number)

    def _way(self, problem: Problem, ascent: Tensor, number: Tensor) -> Tensor:
        """The step of size one for every row."""
        norm = problem.norm
        if not getattr(norm, "spreads", True):
            return norm.direction(ascent)
        return norm.spread(ascent, self._share(problem.ball, number))

    def _share(self, ball: Ball, number: Tensor) -> Tensor:
        """Over which share of the pixels a step is spread (n,): a fifth at first, falling by the same factor every step
        to as many as eps can carry across the box (one at least).

        Steps within the ball never take back what they spent on other pixels, so they begin at the end of this.
        """
        pixels = ball.x[0].numel()
        last = (ball.eps / ((ball.high - ball.low) * pixels)).clamp(1 / pixels, WIDE).to(ball.x.dtype)
        done = (number.to(ball.x.dtype) + 1) / self.steps if self.step_size > 1 else torch.ones_like(last)
        return WIDE * (last / WIDE) ** done

    def _direction(self, state: AscentState, grad: Tensor, number: Tensor) -> tuple[Tensor, Tensor | None]:
        """The vector to climb along, and the accumulated gradient if there is one."""
        if state.velocity is None:
            return grad, None
        # MI-FGSM: normalised by the mean absolute value, so that steps with small gradients count as much.
        # One lost or infinite pixel must not stay in the velocity for good, nor the mean of large ones overflow.
        unit = torch.nan_to_num(grad, nan=0.0, posinf=0.0, neginf=0.0)
        unit = _over(unit, unit.abs().flatten(1).amax(dim=1))
        unit = _over(unit, unit.abs().flatten(1).mean(dim=1))
        decay = column(torch.where(number == 0, 0.0, self.momentum).to(grad.dtype), grad)
        velocity = decay * state.velocity + unit
        return velocity, velocity

    def _restarted(self, problem: Problem, state: AscentState) -> AscentState:
        """Rows whose restart has been judged begin the next one."""
        restart, number = state.looks // (self.steps + 1), self.number(state)
        for k in torch.unique(restart[number == 0]).tolist():
            rows = ((number == 0) & (restart == k)).nonzero()[:, 0]
            state.x[rows] = self.start(problem.take(rows), int(k))
        return state


@lru_cache(maxsize=64)
def _sizes(schedule: str, steps: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """The shares of the first step size at steps 0 … `steps`."""
    with torch.inference_mode(False):  # what is kept must be of use anywhere
        return get_schedule(schedule)(torch.arange(steps + 1, device=device).to(dtype) / steps)


@lru_cache(maxsize=64)
def _weights(momentum: float, dtype: torch.dtype, device: torch.device) -> Tensor:
    """What the new point weighs at the first step and at later ones."""
    with torch.inference_mode(False):
        return torch.tensor([1.0, momentum], dtype=dtype, device=device)


def _over(x: Tensor, length: Tensor) -> Tensor:
    """Each row divided by its length, (n,); a row of length 0 stays 0."""
    return x / column(torch.where(length > 0, length, 1.0), x)
