"""The examples of the next shards, read by the driver while the workers compute."""

from __future__ import annotations

__all__ = ["Reader"]

from collections.abc import Sequence

from tmifpe.engines.parcel import Task
from tmifpe.run.shard import Job
from tmifpe.run.spec import Plan


class Reader:
    """Reads shards once, ahead of time where there is time."""

    def __init__(self, job: Job, plan: Plan) -> None:
        self._job, self._plan = job, plan
        self._ahead: dict[int, Task] = {}

    def read(self, shard: int) -> Task:
        return self._ahead.pop(shard, None) or Task.fetch(self._job, self._plan, shard)

    def read_ahead(self, shards: Sequence[int]) -> None:
        """The first of these that is not read yet, and no more: by then a worker may be waiting for the next task."""
        for shard in shards:
            if shard not in self._ahead:
                self._ahead[shard] = Task.fetch(self._job, self._plan, shard)
                return
