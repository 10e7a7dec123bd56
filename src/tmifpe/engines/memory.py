"""Out of memory: the same shard again, in smaller batches."""

from __future__ import annotations

__all__ = ["run_in_memory"]

import gc
import time
from dataclasses import replace

import torch

from tmifpe.core.errors import is_out_of_memory
from tmifpe.engines.engine import Tick
from tmifpe.run.shard import Job, ShardResult, run_shard


def run_in_memory(job: Job, shard: int, positions: range, tick: Tick) -> ShardResult:
    """`run_shard`, with the batch halved as often as memory runs out, and a note that says so.

    An example's verdict does not depend on its batch. Where it does, because the model draws random numbers, the
    batch is part of the question (`job.keeps_batches`) and the error stands.
    """
    since, asked = time.perf_counter(), job.batch_size
    while True:
        try:
            result = run_shard(job, shard, positions, tick)
            break
        except (MemoryError, RuntimeError) as error:
            smaller = min(job.batch_size, len(positions)) // 2
            if not is_out_of_memory(error) or job.keeps_batches or not smaller:
                raise
        # Outside the handler, whose traceback holds the tensors of the failed attempt.
        gc.collect()
        if job.prepared.device.type == "cuda":
            torch.cuda.empty_cache()
        job = replace(job, batch_size=smaller)
    result.seconds = time.perf_counter() - since
    if job.batch_size < asked:
        told = f"memory ran out: some shards were computed in batches of {job.batch_size} instead of {asked}"
        result.notes = result.notes | {told}
        result.batch_size = job.batch_size
    return result
