"""The default engine: one shard after another, in this process."""

from __future__ import annotations

__all__ = ["Local"]

from collections.abc import Iterator, Sequence
from dataclasses import replace

from tmifpe.engines.engine import Tick
from tmifpe.engines.memory import run_in_memory
from tmifpe.run.shard import Job, ShardResult
from tmifpe.run.spec import Plan


class Local:
    """Whatever the model raises ends the run, as it would in the caller's own loop; finished shards stay stored."""

    def map(
        self,
        job: Job,
        plan: Plan,
        shards: Sequence[int],
        tick: Tick,
        finished: int = 0,  # noqa: ARG002 - whatever fails here ends the run
    ) -> Iterator[ShardResult]:
        for shard in shards:
            result = run_in_memory(job, shard, plan.positions(shard), tick)
            if result.batch_size is not None:  # the next shards would only run out of memory again
                job = replace(job, batch_size=result.batch_size)
            yield result
