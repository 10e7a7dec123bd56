"""What an engine is: it maps shards to shard results."""

from __future__ import annotations

__all__ = ["Engine"]

from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

from tmifpe.run.shard import Job, ShardResult
from tmifpe.run.spec import Plan


class Engine(Protocol):
    """Shards are independent of each other and of where they are computed, so results may come in any order."""

    def map(
        self, job: Job, plan: Plan, shards: Sequence[int], tick: Callable[[int, int], None]
    ) -> Iterator[ShardResult]:
        """The results of these shards, each as soon as it is there; `tick(done, wrong)` is called along the way."""
        ...
