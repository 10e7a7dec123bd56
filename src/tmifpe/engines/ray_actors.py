"""Ray: actors anywhere in a cluster, each holding the model once. The driver reads the data and writes the store."""

from __future__ import annotations

__all__ = ["RayActors"]

import os
import pickle
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch

from tmifpe.attacks import Attack
from tmifpe.core.errors import InputError, first_line
from tmifpe.core.process import keep_freed_memory
from tmifpe.engines.engine import Tick
from tmifpe.engines.ledger import Ledger
from tmifpe.engines.parcel import Order, Parcel, unpack_result
from tmifpe.engines.ray_connection import import_ray, ray_cluster, share_out
from tmifpe.engines.reader import AT_ONCE, Reader
from tmifpe.engines.worker import Answer, compute, unpack
from tmifpe.run.prepared_model import PreparedModel
from tmifpe.run.shard import Job, ShardFailure, ShardResult
from tmifpe.run.shown.progress import Look
from tmifpe.run.spec import Plan
from tmifpe.run.tune.executor import tuned
from tmifpe.version import __version__

_BEAT_SECONDS = 0.2
_START_SECONDS = 900.0
"""How long there may be no worker at all: a cluster may have to rent a machine for the first one."""


class Holder:
    """What runs in the cluster: the model, and one shard after the other.

    Bytes go in and out, pickled here and there: arrays that Ray itself had unpacked could not be written to.
    """

    def __init__(self) -> None:
        self._stack = ExitStack()
        self._model: tuple[PreparedModel, PreparedModel | None] | None = None
        self._order: tuple[bytes, Order, Attack] | None = None

    def load(self, parcel: bytes, threads: int, version: str) -> bytes:
        """Ready, with the process that this is, or refused."""
        if version != __version__:
            return _packed(Answer("refused", f"the Ray nodes have tmifpe {__version__}, and this process {version}"))
        keep_freed_memory()
        torch.set_num_threads(min(threads, torch.get_num_threads()))
        try:
            self._model = unpack(_unpacked(parcel), self._stack)
        except InputError as error:
            return _packed(Answer("refused", str(error)))
        return _packed(Answer("ready", os.getpid()))

    def compute(self, order: bytes, task: bytes) -> bytes:
        """Done, failed or refused."""
        assert self._model is not None  # noqa: S101 - loaded before anything is computed
        try:
            if self._order is None or self._order[0] != order:
                asked: Order = _unpacked(order)
                self._order = (order, asked, asked.attack())
                self._model = (tuned(self._model[0], asked.tuning and asked.tuning.elsewhere), self._model[1])
            return _packed(compute(_unpacked(task), *self._order[1:], *self._model, lambda *_: None))
        except InputError as error:
            return _packed(Answer("refused", str(error)))


@dataclass
class _Actor:
    """One actor as the driver sees it."""

    handle: Any
    pid: int | None = None
    """On its own machine; None until it is ready."""
    shard: int | None = None
    since: float = 0.0


class RayActors:
    """As `Processes`, on a Ray cluster: a context manager that lives for one model and leaves no actor.

    workers: `auto` is one per GPU of the cluster where the model is on one, else one per core.
    address: see `ray_cluster`.
    """

    def __init__(
        self,
        parcel: Parcel,
        workers: int | str,
        address: str = "",
        retries: int = 2,
        shard_timeout: float | None = None,
    ) -> None:
        self._ray: Any = import_ray()
        self._parcel, self._address, self._retries, self._limit = parcel, address, retries, shard_timeout
        self._wanted = None if workers == "auto" else int(workers)
        self._count = self._threads = 1
        self._actors: dict[int, _Actor] = {}  # by place
        self._asked: dict[Any, int] = {}  # the place by the reference of the answer that is awaited
        self._stillborn = 0
        self._stack = ExitStack()

    def __enter__(self) -> RayActors:
        with ExitStack() as stack, self._sentences():
            self._meet(stack.enter_context(ray_cluster(self._address, self._wanted)))
            self._stack = stack.pop_all()
        return self

    def _meet(self, ray: Any) -> None:
        """See what the cluster has, and give it the model."""
        nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
        self._count, cores, gpus = share_out(nodes, self._wanted, on_gpu=self._on_gpu)
        self._threads = max(1, cores)
        parcel = replace(self._parcel, device="cuda:0") if self._on_gpu else self._parcel
        # Once per node and not once per worker.
        self._sent = ray.put(_packed(parcel))
        self._kind = ray.remote(num_cpus=cores, num_gpus=gpus, max_restarts=0, max_task_retries=0)(Holder)

    def __exit__(self, *_: object) -> None:
        for place in list(self._actors):
            self._end(place)
        self._stack.close()

    @property
    def pids(self) -> list[int]:
        """Of the actors that are ready, each on its own machine."""
        return [actor.pid for actor in self._actors.values() if actor.pid is not None]

    def map(
        self, job: Job, plan: Plan, shards: Sequence[int], tick: Tick, finished: int = 0
    ) -> Iterator[ShardResult | ShardFailure]:
        ledger, reader = Ledger(deque(shards), self._retries, done=finished), Reader(job, plan)
        order, alive = _packed(Order.of(job)), time.monotonic()
        try:
            self._hand_out(order, ledger, reader)
            while ledger.waiting or self._busy():
                reading = reader.read_ahead(list(ledger.waiting)[: self._count])
                answered = self._answered(0 if reading else _BEAT_SECONDS)
                found = [self._heard(reference, ledger) for reference in answered]
                found += self._overdue(ledger)
                self._hand_out(order, ledger, reader)  # first: nobody waits while results are stored
                yield from (result for result in found if result is not None)
                ledger.give_up()
                alive = time.monotonic() if self.pids else alive
                if time.monotonic() - alive > _START_SECONDS:
                    raise InputError(f"Ray has had no room for a worker for {_START_SECONDS:g} seconds; see ray status")
                tick(Look())
        finally:
            # After an error or an early end: an actor in the middle of a shard cannot be asked anything else.
            for place, actor in list(self._actors.items()):
                if actor.shard is not None:
                    self._end(place)

    @contextmanager
    def _sentences(self) -> Iterator[None]:
        """What is wrong with the cluster, and not with an actor, as one sentence: say, its memory is full."""
        try:
            yield
        except self._ray.exceptions.RayError as error:
            raise InputError(f"Ray failed: {first_line(error)}; what is finished is kept") from error

    @property
    def _on_gpu(self) -> bool:
        return self._parcel.device.startswith("cuda")

    def _busy(self) -> list[_Actor]:
        return [actor for actor in self._actors.values() if actor.shard is not None]

    def _hand_out(self, order: bytes, ledger: Ledger, reader: Reader) -> None:
        """A shard for everyone who is ready and idle. An actor for which there is no room yet gets none."""
        wanted = min(self._count, len(self._busy()) + len(ledger.waiting))
        may_start = self._stillborn <= self._retries or not self.pids
        for place in range(self._count):
            if may_start and len(self._actors) < wanted and place not in self._actors:
                actor = self._actors[place] = _Actor(self._kind.remote())
                self._asked[actor.handle.load.remote(self._sent, self._threads, __version__)] = place
        for place, actor in self._actors.items():
            if actor.pid is not None and actor.shard is None and ledger.waiting:
                task = reader.read(ledger.waiting.popleft())
                actor.shard, actor.since = task.shard, time.monotonic()
                with self._sentences():
                    self._asked[actor.handle.compute.remote(order, _packed(task))] = place

    def _answered(self, seconds: float) -> list[Any]:
        """Some references whose answers are there; none if nothing comes within so many seconds."""
        awaited = list(self._asked)
        with self._sentences():
            first, _ = self._ray.wait(awaited, timeout=seconds)
            return self._ray.wait(awaited, num_returns=len(awaited), timeout=0)[0][:AT_ONCE] if first else []

    def _heard(self, reference: Any, ledger: Ledger) -> ShardResult | ShardFailure | None:
        if reference not in self._asked:  # its actor was ended meanwhile
            return None
        place = self._asked.pop(reference)
        actor = self._actors[place]
        try:
            answer: Answer = _unpacked(self._ray.get(reference))
        except self._ray.exceptions.RayError as error:
            return self._lost(place, ledger, first_line(error), str(error))
        if answer.kind == "refused":
            raise InputError(answer.body)
        if answer.kind == "ready":
            actor.pid, self._stillborn = answer.body, 0
            return None
        actor.shard = None
        if answer.kind == "done":
            ledger.done += 1
            return unpack_result(answer.body)
        shard, said, trace, leaves = answer.body
        if leaves:
            self._end(place)
        return ledger.again(shard, said, trace)

    def _lost(self, place: int, ledger: Ledger, said: str, trace: str) -> ShardFailure | None:
        """The actor or its node is gone, or it never started."""
        actor = self._actors[place]
        self._end(place)
        if actor.pid is None:
            self._stillborn += 1
            if self._stillborn > self._retries and not self.pids:
                raise InputError(f"the workers do not start on Ray: {said}; every node needs tmifpe {__version__}")
        return None if actor.shard is None else ledger.again(actor.shard, f"its Ray actor died: {said}", trace)

    def _overdue(self, ledger: Ledger) -> Iterator[ShardFailure]:
        """Shards that take longer than the limit; whoever works on them is ended."""
        for place, actor in list(self._actors.items()):
            late = self._limit is not None and time.monotonic() - actor.since > self._limit
            if late and actor.shard is not None:
                self._end(place)
                failed = ledger.again(actor.shard, f"it took longer than the limit of {self._limit:g} seconds")
                if failed is not None:
                    yield failed

    def _end(self, place: int) -> None:
        actor = self._actors.pop(place)
        self._asked = {reference: at for reference, at in self._asked.items() if at != place}
        self._ray.kill(actor.handle)


def _packed(message: object) -> bytes:
    return pickle.dumps(message, protocol=pickle.HIGHEST_PROTOCOL)


def _unpacked(message: bytes) -> Any:
    return pickle.loads(message)  # noqa: S301 - from our own driver or actor; whoever is in a cluster is trusted
