"""What an engine is: it maps shards to shard results."""

from __future__ import annotations

__all__ = ["Engine", "Tick"]

from collections.abc import Callable, Iterator, Sequence
from typing import Protocol, TypeAlias

from tmifpe.run.shard import Job, ShardFailure, ShardResult
from tmifpe.run.shown.progress import Look
from tmifpe.run.spec import Plan

Tick: TypeAlias = Callable[[Look], None]
"""Is told of all shards in work at once."""


class Engine(Protocol):
    """Shards are independent of each other and of where they are computed, so results may come in any order."""

    def map(
        self, job: Job, plan: Plan, shards: Sequence[int], tick: Tick, finished: int = 0
    ) -> Iterator[ShardResult | ShardFailure]:
        """The results of these shards, each as soon as it is there; `tick` is called along the way.

        An engine that isolates failures gives a `ShardFailure` for a shard that it could not compute and goes on.
        Where nothing has worked it ends the run; `finished` shards of it have, earlier.
        """
        ...
