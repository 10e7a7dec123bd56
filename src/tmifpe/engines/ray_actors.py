"""Ray: actors anywhere in a cluster, each holding the model once. The driver reads the data and writes the store."""

from __future__ import annotations

__all__ = ["RayActors"]

import os
import socket
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

from tmifpe.core.errors import InputError, first_line
from tmifpe.core.extras import import_extra
from tmifpe.engines.engine import Tick
from tmifpe.engines.ledger import Ledger
from tmifpe.engines.parcel import Order, Parcel, Task, unpack_result
from tmifpe.engines.worker import Answer, compute, unpack
from tmifpe.run.shard import Job, ShardFailure, ShardResult
from tmifpe.run.spec import Plan

_BEAT_SECONDS = 0.2
_CONNECT_SECONDS = 10.0


class Holder:
    """What runs in the cluster: the model, and one shard after the other."""

    def __init__(self, parcel: Parcel) -> None:
        self._stack = ExitStack()
        self._model = unpack(parcel, self._stack)

    def compute(self, order: Order, task: Task) -> Answer:
        try:
            return compute(task, order, order.attack(), *self._model, lambda *_: None)
        except InputError as error:
            return Answer("refused", str(error))


class RayActors:
    """As `Processes`, on a Ray cluster: one that is there (`address`, or RAY_ADDRESS), else one on this machine.

    workers: actors; None is one per GPU of the cluster if the model is on a GPU, else one per core.
    """

    def __init__(
        self,
        parcel: Parcel,
        workers: int | None,
        retries: int = 2,
        shard_timeout: float | None = None,
        address: str | None = None,
    ) -> None:
        self._ray: Any = import_extra("ray", "Runs on Ray", "ray")
        self._parcel, self._wanted, self._retries, self._limit = parcel, workers, retries, shard_timeout
        self._address = address or os.environ.get("RAY_ADDRESS")
        self._actors: dict[int, Any] = {}
        self._work: dict[Any, tuple[int, int, float]] = {}  # by reference: place, shard, since
        self._ours = False
        self._sent: Any = None
        self._count = 0

    def __enter__(self) -> RayActors:
        ray = self._ray
        if not ray.is_initialized():
            if self._address:
                _reach(self._address)
            try:
                # Off: what workers print, and the page and the statistics of a cluster that lives for one run.
                ray.init(address=self._address, log_to_driver=False, logging_level="ERROR", **self._local())
            except (ConnectionError, RuntimeError, TimeoutError, ValueError, OSError) as error:
                raise InputError(
                    f"cannot connect to Ray at {self._address or 'this machine'}: {first_line(error)}"
                ) from error
            self._ours = True
        cluster, gpu = ray.cluster_resources(), self._parcel.device.startswith("cuda")
        self._count = self._wanted or max(1, int(cluster.get("GPU" if gpu else "CPU", 1)))
        self._sent = ray.put(replace(self._parcel, device="cuda:0" if gpu else self._parcel.device))
        self._kind = ray.remote(num_cpus=1, num_gpus=1 if gpu else 0, max_restarts=0, max_task_retries=0)(Holder)
        return self

    def __exit__(self, *_: object) -> None:
        for place in list(self._actors):
            self._end(place)
        if self._ours:
            self._ray.shutdown()

    def _local(self) -> dict[str, Any]:
        if self._address:
            return {}
        return {"num_cpus": self._wanted, "include_dashboard": False} if self._wanted else {"include_dashboard": False}

    def map(self, job: Job, plan: Plan, shards: Sequence[int], tick: Tick) -> Iterator[ShardResult | ShardFailure]:
        order, ledger = Order.of(job), Ledger(deque(shards), self._retries)
        try:
            while ledger.waiting or self._work:
                self._hand_out(job, plan, order, ledger)
                ready, _ = self._ray.wait(list(self._work), timeout=_BEAT_SECONDS)
                for reference in ready:
                    found = self._heard(reference, ledger)
                    if found is not None:
                        yield found
                yield from self._overdue(ledger)
                ledger.give_up()
                tick(0, 0)
        finally:
            for place, _, _ in self._work.values():  # an early end: nobody waits for these any more
                self._end(place)
            self._work.clear()

    def _hand_out(self, job: Job, plan: Plan, order: Order, ledger: Ledger) -> None:
        busy = {place for place, _, _ in self._work.values()}
        for place in range(self._count):
            if place not in busy and ledger.waiting:
                if place not in self._actors:
                    self._actors[place] = self._kind.remote(self._sent)
                shard = ledger.waiting.popleft()
                reference = self._actors[place].compute.remote(order, Task.fetch(job, plan, shard))
                self._work[reference] = (place, shard, time.monotonic())

    def _heard(self, reference: Any, ledger: Ledger) -> ShardResult | ShardFailure | None:
        place, shard, _ = self._work.pop(reference)
        try:
            answer: Answer = self._ray.get(reference)
        except self._ray.exceptions.RayError as error:  # the actor or its node is gone, or its model does not load
            self._end(place)
            cause = getattr(error, "cause", None)
            if isinstance(cause, InputError):
                raise InputError(str(cause)) from error
            return ledger.again(shard, f"its Ray actor died: {first_line(error)}", str(error))
        if answer.kind == "refused":
            raise InputError(answer.body)
        if answer.kind == "done":
            ledger.done += 1
            return unpack_result(answer.body)
        _, said, trace, leaves = answer.body
        if leaves:
            self._end(place)
        return ledger.again(shard, said, trace)

    def _overdue(self, ledger: Ledger) -> Iterator[ShardFailure]:
        for reference, (place, shard, since) in list(self._work.items()):
            if self._limit is not None and time.monotonic() - since > self._limit:
                del self._work[reference]
                self._end(place)
                failed = ledger.again(shard, f"it took longer than the limit of {self._limit:g} seconds")
                if failed is not None:
                    yield failed

    def _end(self, place: int) -> None:
        actor = self._actors.pop(place, None)
        if actor is not None:
            self._ray.kill(actor)


def _reach(address: str) -> None:
    """`InputError` if nobody listens there: Ray itself would try for minutes."""
    host, colon, port = address.rpartition("://")[2].partition("/")[0].rpartition(":")
    if not colon or not port.isdigit():
        if address in ("auto", "local"):
            return
        raise InputError(f"the address of a Ray cluster is HOST:PORT, ray://HOST:PORT or auto, got {address!r}")
    try:
        socket.create_connection((host, int(port)), timeout=_CONNECT_SECONDS).close()
    except (OSError, OverflowError) as error:
        raise InputError(f"no Ray cluster answers at {address}: {first_line(error)}") from error
