"""GAMA-PGD: the margin of probabilities, at first guided away from the clean ones (Sriramanan et al. 2020)."""

from __future__ import annotations

__all__ = ["GAMA"]

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from tmifpe.attacks.ascent import Ascent, AscentState
from tmifpe.attacks.loop.queries import Objective
from tmifpe.attacks.loop.rows import Problem
from tmifpe.core import numerics, rng
from tmifpe.core.errors import InputError
from tmifpe.core.numbers import real_number
from tmifpe.norms import column


@dataclass(frozen=True)
class GAMA(Ascent):
    """Ascent on max_{i≠y} p_i − p_y + w_i ‖p − p_clean‖², with p the softmax; targeted p_t − max_{i≠t} p_i in front.

    w_i falls linearly from `weight` to 0 over the first `decay` of the steps. Published form: steps of 2 eps,
    divided by 10 at 60 % and again at 85 % of the steps, no momentum; `momentum=0.75` is that of the paper's
    protocol. p is computed in float32 or wider; where it saturates, its gradient is 0, and no step is taken.
    The authors' code takes p_clean at the random start; this is their formula, at the clean image itself.

    >>> GAMA(momentum=0.75).budget
    Budget(forwards=102, backwards=100)
    """

    steps: int = 100
    restarts: int = 1
    schedule: str = "drops"
    step_size: float = 2.0
    momentum: float = 0.0
    momentum_on: str = "iterate"
    weight: float = 50.0
    decay: float = 0.25

    name: ClassVar[str] = "gama"
    reads_clean: ClassVar[bool] = True

    def __post_init__(self) -> None:
        self.check_options()
        real_number("weight", self.weight, least=0, most=1e6)
        real_number("decay (a share of the steps)", self.decay, above=0, most=1)

    def objective(self, problem: Problem, state: AscentState) -> Objective:
        assert problem.clean is not None  # noqa: S101 - the loop sees to it, by reads_clean
        clean = _probabilities(problem.clean)
        left = 1 - self.number(state).to(clean.dtype) / (self.decay * self.steps)
        weight = self.weight * left.clamp(min=0)

        def value(logits: Tensor) -> Tensor:
            p = _probabilities(logits)
            relaxation = (p - clean).square().sum(dim=1)
            return numerics.margin(p, problem.labels, problem.targets) + weight * relaxation

        return value

    def start(self, problem: Problem, restart: int) -> Tensor:
        """A random point of the ball's surface: ±eps per pixel by a fair coin (Linf), a random direction (L2)."""
        norm, x, ball = problem.norm, problem.x, problem.ball
        noise = rng.normal(problem.seed, problem.indices, problem.stage, restart, tuple(x.shape[1:])).to(x.dtype)
        return norm.project(x + column(ball.radius, x) * norm.direction(noise), ball)


def _probabilities(logits: Tensor) -> Tensor:
    """The softmax; rows with NaN or +inf become the uniform distribution, without a gradient."""
    if logits.shape[1] < 2:
        raise InputError("gama needs at least 2 classes, the model has 1; there is no rival class to attack towards")
    z = logits.to(numerics.compute_dtype(logits.dtype))
    return torch.softmax(z.masked_fill(~numerics.is_usable(z)[:, None], 0.0), dim=1)
