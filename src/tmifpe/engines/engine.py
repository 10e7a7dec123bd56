"""What an engine is: it maps shards to shard results."""

from __future__ import annotations

__all__ = ["Engine"]

from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

from tmifpe.run.shard import Job, ShardResult
from tmifpe.run.spec import Plan


class Engine(Protocol):
    """Shards do not depend on each other, nor on who computes them, so that results may come in any order."""

    def map(
        self, job: Job, plan: Plan, shards: Sequence[int], tick: Callable[[int, int], None]
    ) -> Iterator[ShardResult]:
        """The results of these shards, each as soon as it is there; `tick(done, wrong)` is called along the way."""
        ...
