"""Adversarial examples that were made elsewhere: which are allowed, what they break, and what both attacks leave."""

from __future__ import annotations

__all__ = ["check_transfer", "try_given"]

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from tmifpe.attacks.loop.frozen import preserved_state
from tmifpe.attacks.loop.queries import Queries
from tmifpe.attacks.loop.rows import Problem
from tmifpe.checks.flags import flag, some
from tmifpe.run.outcomes import Outcomes
from tmifpe.run.result import Flag
from tmifpe.run.shard import Job, fetch_rows
from tmifpe.run.verify import Transferred, inside, verify


def try_given(job: Job, outcomes: Outcomes, given: Tensor) -> tuple[Transferred, int]:
    """Every given example on its image, one per example of the data; and the forward passes that took.

    Those outside ball or box are counted and not tried. The others are read like any claim of an attack, on every
    example that was attacked.
    """
    n, threat = len(outcomes), job.threat
    boxed, allowed, broken = (np.zeros(n, dtype=bool) for _ in range(3))
    size = np.zeros(n)
    attacked = outcomes.correct & outcomes.counted
    queries = Queries(job.prepared.model, job.prepared.dtype, job.eot)
    with preserved_state(job.prepared.model, job.prepared.device):
        for start in range(0, n, job.batch_size):
            rows = np.arange(start, min(start + job.batch_size, n))
            x, labels, indices = fetch_rows(job, rows.tolist())
            points = given[torch.from_numpy(rows).to(given.device)].to(x)
            targets = (
                None if job.targets is None else torch.from_numpy(outcomes.target[rows].astype(np.int64)).to(labels)
            )
            problem = Problem(x, labels, targets, indices, threat, job.seed)
            boxed[rows] = ((points >= threat.low) & (points <= threat.high)).flatten(1).all(dim=1).cpu().numpy()
            size[rows] = problem.norm.size(points - x).double().cpu().numpy()
            allowed[rows] = inside(points, problem).cpu().numpy()
            tried = torch.from_numpy(allowed[rows] & attacked[rows]).to(x.device).nonzero()[:, 0]
            if len(tried):
                holds = verify(points[tried], problem.take(tried), queries, job.batch_size)
                broken[rows[tried.cpu().numpy()]] = holds.cpu().numpy()
    robust, counted = outcomes.robust & outcomes.counted, max(1, int(outcomes.counted.sum()))
    far = boxed & ~allowed
    found = Transferred(
        given=n,
        outside_box=outcomes.index[~boxed],
        outside_ball=outcomes.index[far],
        farthest=float(size[far].max()) if far.any() else 0.0,
        broken=outcomes.index[broken],
        new=outcomes.index[broken & robust],
        robust_accuracy=float((attacked & ~broken).sum() / counted),
        united_robust_accuracy=float((robust & ~broken).sum() / counted),
    )
    return found, queries.tally.forwards


def check_transfer(found: Transferred, robust_accuracy: float) -> Iterator[Flag]:
    """The flag for an attack that was beaten by examples made for another model."""
    if len(found.new):
        yield flag(
            "transfer-failure",
            f"The given examples break {some(found.new)} that withstood the attack: the robust accuracy with both is "
            f"{found.united_robust_accuracy:.2%}, without them {robust_accuracy:.2%}.",
        )
