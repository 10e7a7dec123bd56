"""Step sizes over the steps of an attack, as shares of the first one."""

from __future__ import annotations

__all__ = ["SCHEDULES", "get_schedule"]

import math
from collections.abc import Callable
from typing import TypeAlias

import torch
from torch import Tensor

from tmifpe.core.errors import did_you_mean

Schedule: TypeAlias = Callable[[Tensor], Tensor]

SCHEDULES: dict[str, Schedule] = {
    # The paper: alpha_i = eps (1 + cos(pi i / I)), with the default first step 2 eps.
    "cosine": lambda done: (1 + torch.cos(math.pi * done)) / 2,
    "linear": lambda done: 1 - done,
    "constant": torch.ones_like,
    # GAMA-PGD: divided by 10 at 60 % and again at 85 % of the steps.
    # A little early, since a GPU divides by multiplying, and 60 / 100 is then below 0.6.
    "drops": lambda done: torch.where(done < 0.6 - 1e-6, 1.0, torch.where(done < 0.85 - 1e-6, 0.1, 0.01)).to(
        done.dtype
    ),
}
"""From the share of steps done, in [0, 1), to the share of the first step size; one number per example."""


def get_schedule(name: str) -> Schedule:
    """The schedule of that name.

    >>> get_schedule("linear")(torch.tensor([0.0, 0.25]))
    tensor([1.0000, 0.7500])
    """
    if not isinstance(name, str) or name not in SCHEDULES:
        raise did_you_mean("schedule", name, SCHEDULES)
    return SCHEDULES[name]
