"""How an evaluation records its results. The run store is one recorder; keeping nothing is another."""

from __future__ import annotations

__all__ = ["Keeper", "NoRecorder", "Recorder"]

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

from torch import Tensor

from tmifpe.run.result import Result
from tmifpe.run.shard import ShardFailure, ShardResult
from tmifpe.run.spec import Plan, RunSpec


class Recorder(Protocol):
    """Called in this order: settled, begin, key, recall, finished, points, replan if a tuning was chosen, save or fail
    for every shard; replan and discard if early exit was wrong, and save again; keep and end if no shard is missing;
    close in any case."""

    def settled(self, spec: RunSpec, plan: Plan) -> RunSpec | None:
        """The spec, with its cut if it needs one, of a finished run of this request: the model then need not be
        queried at all, not even to see whether it is randomised. None if there is no such run."""
        ...

    def begin(self, spec: RunSpec, plan: Plan, device: str) -> Plan:
        """The plan to follow: the stored one if this spec was begun before, since shards must not change; otherwise
        the given one. If `spec.cut` names a cut, as it does for a randomised model, only a run with that cut counts
        as begun before."""
        ...

    def key(self) -> str | None:
        """The key under which the run is stored, which an older version may have made in another way."""
        ...

    def recall(self, with_adv: bool) -> Iterable[ShardResult]:
        """The shards that are finished already; their `adv` stays in the store unless requested."""
        ...

    def finished(self) -> dict[str, Any] | None:
        """The JSON of the result, if the run came to its end before."""
        ...

    def points(self) -> Mapping[int, Tensor]:
        """The adversarial examples that the repairs of a finished run found, by position."""
        ...

    def keep(self, points: Mapping[int, Tensor]) -> None:
        """Keep those; before `end`."""
        ...

    def replan(self, plan: Plan) -> None:
        """Keep how the model is run from now on; before any shard is saved."""
        ...

    def discard(self, shards: Sequence[int]) -> None:
        """Forget these shards, which are computed anew."""
        ...

    def save(self, result: ShardResult) -> None:
        """Make a finished shard durable before the next one begins."""
        ...

    def fail(self, failure: ShardFailure) -> None:
        """Keep why a shard has no outcomes, until it has some."""
        ...

    def end(self, result: Result) -> None: ...

    def close(self) -> None: ...


class Keeper(Protocol):
    """What makes recorders: a run store."""

    def recorder(self, fresh: bool = False) -> Recorder: ...


class NoRecorder:
    """Keeps nothing."""

    def settled(self, spec: RunSpec, plan: Plan) -> RunSpec | None:  # noqa: ARG002
        return None

    def begin(self, spec: RunSpec, plan: Plan, device: str) -> Plan:  # noqa: ARG002
        return plan

    def key(self) -> str | None:
        return None

    def recall(self, with_adv: bool) -> Iterable[ShardResult]:  # noqa: ARG002
        return ()

    def finished(self) -> dict[str, Any] | None:
        return None

    def points(self) -> Mapping[int, Tensor]:
        return {}

    def keep(self, points: Mapping[int, Tensor]) -> None: ...

    def replan(self, plan: Plan) -> None: ...

    def discard(self, shards: Sequence[int]) -> None: ...

    def save(self, result: ShardResult) -> None: ...

    def fail(self, failure: ShardFailure) -> None: ...

    def end(self, result: Result) -> None: ...

    def close(self) -> None: ...
