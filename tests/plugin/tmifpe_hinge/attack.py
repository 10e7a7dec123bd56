"""PGD from the corners of the ball."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

import tmifpe
from tmifpe.attacks import Problem
from tmifpe.core import rng
from tmifpe.norms import column


@dataclass(frozen=True)
class CornerPGD(tmifpe.PGD):
    """PGD whose random starts lie on the surface of the ball; random numbers belong to the example, not the batch."""

    name: ClassVar[str] = "corner-pgd"

    def start(self, problem: Problem, restart: int) -> Tensor:
        x, ball = problem.x, problem.ball
        noise = rng.normal(problem.seed, problem.indices, problem.stage, restart, tuple(x.shape[1:])).to(x.dtype)
        return problem.norm.project(x + column(ball.radius, x) * problem.norm.direction(noise), ball)
