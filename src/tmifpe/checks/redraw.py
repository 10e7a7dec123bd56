"""Repeated evaluation of a randomised model: one draw is luck, several have a mean and an interval."""

from __future__ import annotations

__all__ = ["redraw"]

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tmifpe.attacks.loop.frozen import preserved_state
from tmifpe.attacks.loop.queries import Queries
from tmifpe.checks.sample import read
from tmifpe.core import numerics
from tmifpe.core.rng import seed_rng
from tmifpe.run.outcomes import Outcomes
from tmifpe.run.shard import Job


def redraw(job: Job, shard: int, outcomes: Outcomes, adv: Tensor, repeats: int) -> tuple[NDArray[np.int64], int]:
    """How many examples of a shard are robust in each of `repeats` further draws, and the forwards that took.

    Every example that was attacked is read at the point the attack returned: the adversarial example of a broken
    one; of a survivor the image itself, or its strongest point in mode `strongest`. One draw is one forward pass,
    as the model is used; only the attack averages.
    """
    rows = np.flatnonzero(outcomes.correct & outcomes.counted)
    table, device = outcomes.take(rows), job.prepared.device
    points = adv[torch.from_numpy(rows).to(adv.device)].to(device, job.prepared.image_dtype)
    labels, targets = (torch.from_numpy(column.astype(np.int64)).to(device) for column in (table.label, table.target))
    queries = Queries(job.prepared.model, job.prepared.dtype)
    robust = np.zeros(repeats, dtype=np.int64)
    with preserved_state(job.prepared.model, device):
        for draw in range(repeats if len(rows) else 0):
            seed_rng(device, job.seed, shard, draw)
            logits = read(queries, points, job.batch_size)
            prediction = logits.argmax(dim=1)
            broken = torch.where(targets < 0, prediction != labels, prediction == targets)
            robust[draw] = len(rows) - int((broken & numerics.is_usable(logits)).sum())
    return robust, queries.tally.forwards
