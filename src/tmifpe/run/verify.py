"""The attack is not believed: every claimed adversarial example is read again in a different batch."""

from __future__ import annotations

__all__ = ["Transferred", "disagree", "in_ball", "in_box", "inside", "verify"]

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tmifpe.attacks.loop.queries import Queries
from tmifpe.attacks.loop.rows import Problem
from tmifpe.core import numerics
from tmifpe.core.types import Threat


def verify(adv: Tensor, problem: Problem, queries: Queries, batch_size: int) -> Tensor:
    """Which of the claimed adversarial examples hold: inside ball and box, and misclassified (or predicted as the
    target) in a fresh forward pass at another batch composition.

    The claims come from different steps and are read in reverse order; a single one is read beside its image, since a
    batch of one would be the composition it was claimed in.
    """
    order = torch.arange(len(adv) - 1, -1, -1, device=adv.device)
    holds = inside(adv, problem)
    for rows in order.split(batch_size):
        part = problem.take(rows)
        points = adv[rows] if len(rows) > 1 else torch.cat([adv[rows], part.x.to(adv.dtype)])
        logits = queries.logits(points, fresh=True)[: len(rows)]
        holds[rows] &= numerics.is_usable(logits) & part.succeeded(logits.argmax(dim=1))
    return holds


def disagree(adv: Tensor, problem: Problem, queries: Queries, batch_size: int, fooled: Tensor) -> Tensor:
    """Where a second model (the same in another precision, on its own device) does not share the verdict `fooled`."""
    differ = torch.zeros_like(fooled)
    for rows in torch.arange(len(adv), device=fooled.device).split(batch_size):
        logits = queries.logits(adv[rows.to(adv.device)], fresh=True).to(fooled.device)
        broken = numerics.is_usable(logits) & problem.take(rows).succeeded(logits.argmax(dim=1))
        differ[rows] = broken != fooled[rows]
    return differ


def inside(adv: Tensor, problem: Problem) -> Tensor:
    """Whether each point is in its ball and the box, up to the rounding of its own dtype."""
    return in_box(adv, problem) & in_ball(adv, problem)


def in_ball(adv: Tensor, problem: Problem) -> Tensor:
    """Whether each point is within eps of its image, up to the rounding of its own dtype."""
    norm, wide = problem.norm, numerics.wide_dtype(adv.device)
    size = norm.size(adv.to(wide) - problem.x.to(wide))
    slack = norm.size(numerics.rounding_of(adv, problem.threat)).to(wide)
    return size <= problem.eps.to(wide) + slack


def in_box(adv: Tensor, problem: Problem) -> Tensor:
    flat = adv.flatten(1)
    return (flat >= problem.threat.low).all(dim=1) & (flat <= problem.threat.high).all(dim=1)


@dataclass(frozen=True, eq=False)
class Transferred:
    """What adversarial examples that were made elsewhere (`transfer_adv`) do to this model. Examples by index."""

    given: int
    outside_box: NDArray[np.int64]
    outside_ball: NDArray[np.int64]
    """Farther from the image than eps, and so not tried; nor were those outside the box."""
    farthest: float
    """The largest distance among them."""
    broken: NDArray[np.int64]
    new: NDArray[np.int64]
    """Those that the run's own attack had left standing."""
    robust_accuracy: float
    """After the given examples alone."""
    united_robust_accuracy: float
    """After the run's own attack and the given examples."""

    def remarks(self, threat: Threat) -> list[str]:
        """How many were not allowed, and why."""
        said = []
        if n := len(self.outside_ball):
            said.append(f"{n} lie outside the ball (up to {self.farthest:.4g} from the image, eps is {threat.eps:.4g})")
        if n := len(self.outside_box):
            said.append(f"{n} lie outside the box [{threat.low:g}, {threat.high:g}]")
        return (
            [f"of {self.given} examples in `transfer_adv`, {' and '.join(said)}; they were not tried"] if said else []
        )

    @classmethod
    def from_json(cls, plain: dict[str, Any]) -> Transferred:
        """As a store has it; `KeyError`, `TypeError` or `ValueError` where that is something else."""
        boxed, far, broken, new = (
            np.array([int(index) for index in plain[name]], dtype=np.int64)
            for name in ("outside_box", "outside_ball", "broken", "new")
        )
        alone, united = float(plain["robust_accuracy"]), float(plain["united_robust_accuracy"])
        if not 0 <= united <= alone <= 1:
            raise ValueError("no accuracy")
        return cls(int(plain["given"]), boxed, far, float(plain["farthest"]), broken, new, alone, united)

    def to_json(self) -> dict[str, Any]:
        return {name: value.tolist() if isinstance(value, np.ndarray) else value for name, value in vars(self).items()}
