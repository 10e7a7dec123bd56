"""What an evaluation asks of whoever keeps its results. The run store is one; keeping nothing is another."""

from __future__ import annotations

__all__ = ["Keeper", "NoRecorder", "Recorder"]

from collections.abc import Callable, Iterable
from typing import Any, Protocol

from tmifpe.run.result import Result
from tmifpe.run.shard import ShardResult
from tmifpe.run.spec import Plan, RunSpec


class Recorder(Protocol):
    """Called in this order, once each but `save`: begin, recall, finished, save per shard, end; close in every case."""

    def begin(self, spec: RunSpec, plan: Callable[[], Plan], device: str) -> Plan:
        """The plan to follow: the stored one if this spec was begun before, since shards must not change.
        Otherwise the new one, which is asked for only then. If `spec.cut` names a cut, as it does for a randomised
        model, only a run with that cut counts as begun before."""
        ...

    def recall(self, with_adv: bool) -> Iterable[ShardResult]:
        """The shards that are finished already; their `adv` stays in the store unless asked for."""
        ...

    def finished(self) -> dict[str, Any] | None:
        """The JSON of the result, if the run came to its end before."""
        ...

    def save(self, result: ShardResult) -> None:
        """Make a finished shard durable before the next one begins."""
        ...

    def end(self, result: Result) -> None: ...

    def close(self) -> None: ...


class Keeper(Protocol):
    """What makes recorders: a run store."""

    def recorder(self, fresh: bool = False) -> Recorder: ...


class NoRecorder:
    """Keeps nothing."""

    def begin(self, spec: RunSpec, plan: Callable[[], Plan], device: str) -> Plan:  # noqa: ARG002
        return plan()

    def recall(self, with_adv: bool) -> Iterable[ShardResult]:  # noqa: ARG002
        return ()

    def finished(self) -> dict[str, Any] | None:
        return None

    def save(self, result: ShardResult) -> None: ...

    def end(self, result: Result) -> None: ...

    def close(self) -> None: ...
