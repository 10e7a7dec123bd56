"""The examples of the next shards, read by the driver while the workers compute."""

from __future__ import annotations

__all__ = ["AT_ONCE", "Reader"]

from collections.abc import Sequence

from tmifpe.engines.parcel import Task
from tmifpe.run.shard import Job
from tmifpe.run.spec import Plan

AT_ONCE = 8
"""How many results a driver holds before it stores them; the others wait where they are."""


class Reader:
    """Reads shards once, ahead of time where there is time."""

    def __init__(self, job: Job, plan: Plan) -> None:
        self._job, self._plan = job, plan
        self._ahead: dict[int, Task] = {}

    def read(self, shard: int) -> Task:
        return self._ahead.pop(shard, None) or Task.fetch(self._job, self._plan, shard)

    def read_ahead(self, shards: Sequence[int]) -> bool:
        """Whether one of these was not read yet; if so, the first is now, and no more: by then a worker may wait."""
        for shard in shards:
            if shard not in self._ahead:
                self._ahead[shard] = Task.fetch(self._job, self._plan, shard)
                return True
        return False
