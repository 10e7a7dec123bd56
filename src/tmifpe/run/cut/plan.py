"""How the work is split: a function of the request and of the images' shape, never of timing.

Every machine, engine and array job cuts the same request alike, so that shards computed anywhere belong together.
"""

from __future__ import annotations

__all__ = ["make_plan"]

import math

from tmifpe.attacks import Attack
from tmifpe.run.spec import Plan

BATCH_VALUES = 2**20
"""Input values per batch, about: larger images, smaller batches."""
SMALLEST_BATCH, LARGEST_BATCH = 16, 512
SHARD_WORK = 160_000_000
"""Input values times forward passes per shard, about: some ten seconds of a small network on one core. It is what a
killed run loses at most, against what storing a shard costs."""
SHARD_BATCHES = (2, 16)
"""Batches per shard, at least and at most: a batch refills only within its shard."""
SHARD_EXAMPLES, SHARD_VALUES = 2**13, 2**24
"""And how large a shard is at most, in examples and in input values: memory must not grow with the data."""


def make_plan(
    n: int, shape: tuple[int, ...], attack: Attack, batch_size: int | None = None, shard_size: int | None = None
) -> Plan:
    """The cut of `n` examples of this shape; sizes that the caller gives are kept.

    >>> from tmifpe.attacks import PGD
    >>> make_plan(10_000, (3, 32, 32), PGD())
    Plan(n=10000, batch_size=256, shard_size=512, tuning=None, failed_exits=None)
    """
    values = max(1, math.prod(shape))
    usual = max(SMALLEST_BATCH, min(LARGEST_BATCH, 2 ** round(math.log2(BATCH_VALUES / values))))
    batch = min(batch_size or usual, n)
    if attack.together is not None:  # its answer depends on what it is given together
        return Plan(n, batch, min(attack.together, n))
    if shard_size is not None:
        return Plan(n, batch, min(shard_size, n))
    fewest, most = SHARD_BATCHES
    batches = round(SHARD_WORK / (values * attack.budget.forwards * usual))
    room = min(SHARD_EXAMPLES, SHARD_VALUES // values) // usual
    size = usual * max(1, min(room, max(fewest, min(most, batches))))
    return Plan(n, batch, min(max(size, batch), n))
