"""The few examples that checks examine; their queries are counted separately from the attack's."""

from __future__ import annotations

__all__ = ["LARGEST", "Sample", "change_of", "draw_sample", "gradient_attacks", "read", "share"]

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from tmifpe.attacks import Stepwise
from tmifpe.attacks.loop.frozen import preserved_state
from tmifpe.attacks.loop.queries import Objective, Queries, Tally
from tmifpe.attacks.loop.rows import Problem
from tmifpe.checks.allowance import spread
from tmifpe.core import numerics
from tmifpe.core.types import Data
from tmifpe.run.prepared_model import PreparedModel
from tmifpe.run.shard import Job, fetch_rows, targets_of

_ASKED_TWICE = 8  # examples

LARGEST = 64
"""How many examples a check may use."""


@dataclass
class Sample:
    """Some examples of a job as a problem, with their clean logits and the queries to use."""

    positions: np.ndarray
    problem: Problem
    logits: Tensor
    queries: Queries
    batch_size: int

    def __len__(self) -> int:
        return len(self.problem)

    @property
    def classes(self) -> int:
        return self.logits.shape[1]

    @property
    def right(self) -> Tensor:
        """Which are classified correctly, with logits that mean something."""
        return numerics.is_usable(self.logits) & (self.logits.argmax(dim=1) == self.problem.labels)

    def take(self, rows: Tensor) -> Sample:
        return Sample(
            self.positions[rows.cpu().numpy()],
            self.problem.take(rows),
            self.logits[rows],
            self.queries,
            self.batch_size,
        )

    def first(self, count: int) -> Sample:
        """So many of them, evenly spread."""
        rows = torch.from_numpy(spread(len(self), count)).to(self.problem.x.device)
        return self if count == len(self) else self.take(rows)

    def counted_by(self, tally: Tally) -> Sample:
        """The same examples, with further questions counted there."""
        return replace(self, queries=replace(self.queries, tally=tally))

    def read(self, x: Tensor) -> Tensor:
        """Logits of x (n, ...) in batches, in at least float32."""
        return read(self.queries, x, self.batch_size)

    def gradients(self, objective: Callable[[Problem], Objective]) -> Tensor:
        """d objective / d x at the clean images, (n, ...)."""
        rows = torch.arange(len(self), device=self.problem.x.device).split(self.batch_size)
        parts = [self.problem.take(r) for r in rows]
        grads = [self.queries.look(part.x, objective(part)).grad for part in parts]
        return torch.cat([grad for grad in grads if grad is not None])


def draw_sample(job: Job, positions: np.ndarray, tally: Tally, eot: int = 1) -> Sample | None:
    """The examples at these positions, read once; None where there is nothing to check."""
    if not len(positions):
        return None
    x, labels, indices = fetch_rows(job, positions.tolist())
    prepared = job.prepared
    queries = Queries(prepared.model, prepared.dtype, eot, tally, straight_through=prepared.straight_through)
    logits = read(queries, x, job.batch_size)
    if int(labels.max()) >= logits.shape[1] or logits.shape[1] < 2:
        return None
    targets = targets_of(job, positions.tolist(), logits, labels, indices)
    problem = Problem(x, labels, targets, indices, job.threat, job.seed, clean=logits)
    return Sample(positions, problem, logits, queries, job.batch_size)


def gradient_attacks(job: Job) -> list[Stepwise]:
    """The stages of the job's attack that follow a gradient, step by step, in our loop."""
    return [stage for stage in job.attack.stages if isinstance(stage, Stepwise) and stage.needs_gradient]


def is_randomised(prepared: PreparedModel, data: Data) -> bool:
    """Whether the first images give different logits the second time."""
    x, _ = data.fetch(range(min(_ASKED_TWICE, len(data))))
    queries = Queries(prepared.model, prepared.dtype)
    with preserved_state(prepared.model, prepared.device):
        first, second = (read(queries, x.to(prepared.device, prepared.image_dtype), len(x)) for _ in range(2))
    return bool((change_of(first, second, prepared) > 1).any())


def read(queries: Queries, x: Tensor, batch_size: int) -> Tensor:
    """Logits of x (n, ...) in batches, in at least float32."""
    logits = torch.cat([queries.logits(part) for part in x.split(batch_size)])
    return logits.to(numerics.compute_dtype(logits.dtype))


def change_of(one: Tensor, other: Tensor, prepared: PreparedModel) -> Tensor:
    """How far each row of logits moved, in units of what rounding in a deep network may explain."""
    tf32 = prepared.device.type == "cuda" and prepared.dtype == torch.float32
    eps = 2.0**-10 if tf32 else torch.finfo(prepared.dtype).eps  # convolutions on CUDA keep 10 digits by default
    size = torch.maximum(one.abs().amax(dim=1), other.abs().amax(dim=1)).clamp(min=torch.finfo(one.dtype).tiny)
    # eps^(2/3): 2.4e-5 in float32, 4e-2 in bfloat16; errors grow with depth, but never to that share.
    moved = (one - other).abs().amax(dim=1) / (eps ** (2 / 3) * size)
    return torch.nan_to_num(moved, nan=0.0)


def share(mask: Tensor | np.ndarray) -> float:
    """The share of rows where `mask` is true; 0 of none.

    >>> share(torch.tensor([True, False]))
    0.5
    """
    return float(mask.sum()) / len(mask) if len(mask) else 0.0
