"""What became of the shards of a run: waiting, tried again, done, failed."""

from __future__ import annotations

__all__ = ["Ledger"]

from collections import Counter, deque
from dataclasses import dataclass, field

from tmifpe.core.errors import ModelError
from tmifpe.run.shard import ShardFailure

_HOPELESS = 3
"""Failed shards without a single success, after which the rest is not tried."""


@dataclass
class Ledger:
    """Which shards of a run wait, how often each was tried, and what became of the others."""

    waiting: deque[int]
    retries: int
    tries: Counter[int] = field(default_factory=Counter)
    done: int = 0
    """In all, earlier ones included."""
    failures: list[ShardFailure] = field(default_factory=list)

    def again(self, shard: int, error: str, trace: str = "") -> ShardFailure | None:
        """Back to the end of the queue; or, after the last attempt, the failure."""
        self.tries[shard] += 1
        if self.tries[shard] <= self.retries:
            self.waiting.append(shard)
            return None
        failure = ShardFailure(shard, self.tries[shard], error, trace)
        self.failures.append(failure)
        return failure

    def give_up(self) -> None:
        """`ModelError` where nothing has worked and nothing speaks for going on."""
        if not self.done and len(self.failures) >= (_HOPELESS if self.waiting else 1):
            raise ModelError(f"{len(self.failures)} shards failed and none succeeded: {self.failures[0].error}")
