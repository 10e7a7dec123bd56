"""The default engine: one shard after another, in this process."""

from __future__ import annotations

__all__ = ["Local"]

import time
from collections.abc import Callable, Iterator, Sequence

from tmifpe.run.shard import Job, ShardResult, run_shard
from tmifpe.run.spec import Plan


class Local:
    def map(
        self, job: Job, plan: Plan, shards: Sequence[int], tick: Callable[[int, int], None]
    ) -> Iterator[ShardResult]:
        for shard in shards:
            since = time.perf_counter()
            result = run_shard(job, shard, plan.positions(shard), tick)
            result.seconds = time.perf_counter() - since
            yield result
