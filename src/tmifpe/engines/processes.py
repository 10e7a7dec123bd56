"""Worker processes on this machine, one per GPU or per group of cores. Each holds the model once and pulls shards."""

from __future__ import annotations

__all__ = ["Processes"]

import multiprocessing
import signal
import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any

from tmifpe.core.errors import InputError
from tmifpe.engines.engine import Tick
from tmifpe.engines.ledger import Ledger
from tmifpe.engines.parcel import Order, Parcel, Task, unpack_result
from tmifpe.engines.places import Places
from tmifpe.engines.reader import AT_ONCE, Reader
from tmifpe.engines.worker import Answer, receive, send, work
from tmifpe.run.shard import Job, ShardFailure, ShardResult
from tmifpe.run.shown.progress import Look, together
from tmifpe.run.spec import Plan

_BEAT_SECONDS = 0.2
"""How long the driver waits before it reports progress anyway, so that Ctrl-C is seen and time limits are kept."""


@dataclass
class _Worker:
    """One process as the driver sees it."""

    process: BaseProcess
    pipe: Connection
    ready: bool = False
    shard: int | None = None
    """What it works on."""
    since: float | None = None
    """When it began that shard."""
    seen: Look = Look()  # noqa: RUF009 - it cannot be changed
    order: Order | None = None

    def take(self, parcel: Parcel, order: Order, task: Task) -> None:
        self.shard, self.since, self.seen = task.shard, None, Look(len(task.indices))
        if self.order is None:
            send(self.pipe, parcel)
        if self.order != order:
            self.order = order
            send(self.pipe, order)
        send(self.pipe, task)

    def end(self) -> str:
        """Kill it, and say how it ended."""
        if self.process.is_alive():
            self.process.kill()
        self.process.join()
        self.pipe.close()
        code = self.process.exitcode or 0
        self.process.close()
        if code >= 0:
            return f"its worker process ended with exit code {code}"
        try:
            name = signal.Signals(-code).name
        except ValueError:
            name = f"signal {-code}"
        return f"its worker process was killed ({name}{', perhaps for want of memory' if code == -9 else ''})"


class Processes:
    """An engine that lives for one model, for as many runs as it is asked: a context manager that leaves no process.

    A shard that fails (its worker dies, hangs beyond `shard_timeout` seconds, or the model raises) is tried again
    `retries` times, then given as a `ShardFailure`, and the rest goes on. What is wrong with the request itself is
    raised.
    """

    def __init__(self, parcel: Parcel, places: Places, retries: int = 2, shard_timeout: float | None = None) -> None:
        self._parcel, self._places, self._retries, self._limit = parcel, places, retries, shard_timeout
        self._workers: dict[int, _Worker] = {}  # by place
        self._stillborn = 0

    def __enter__(self) -> Processes:
        return self

    def __exit__(self, *_: object) -> None:
        for place in list(self._workers):
            self._workers.pop(place).end()

    @property
    def pids(self) -> list[int]:
        return [worker.process.pid for worker in self._workers.values() if worker.process.pid is not None]

    def map(
        self, job: Job, plan: Plan, shards: Sequence[int], tick: Tick, finished: int = 0
    ) -> Iterator[ShardResult | ShardFailure]:
        order, ledger, reader = Order.of(job), Ledger(deque(shards), self._retries, done=finished), Reader(job, plan)
        try:
            self._hand_out(order, ledger, reader)
            while ledger.waiting or self._busy():
                reading = reader.read_ahead(list(ledger.waiting)[: self._places.workers])
                answers = self._answers(0 if reading else _BEAT_SECONDS)
                found = [self._heard(place, answer, ledger) for place, answer in answers]
                found += self._overdue(ledger)
                self._hand_out(order, ledger, reader)  # first: nobody waits while results are stored
                yield from (result for result in found if result is not None)
                ledger.give_up()
                tick(together(worker.seen for worker in self._busy()))
        finally:
            # Only after an error or an early end: a worker in the middle of a shard cannot be asked anything else.
            for place, worker in list(self._workers.items()):
                if worker.shard is not None:
                    self._workers.pop(place).end()

    def _busy(self) -> list[_Worker]:
        return [worker for worker in self._workers.values() if worker.shard is not None]

    def _hand_out(self, order: Order, ledger: Ledger, reader: Reader) -> None:
        """A shard for everyone who is idle."""
        wanted = min(self._places.workers, len(self._busy()) + len(ledger.waiting))
        for place in range(self._places.workers):
            if len(self._workers) < wanted and place not in self._workers:
                self._workers[place] = self._start(place)
        for place, worker in list(self._workers.items()):
            if worker.shard is None and ledger.waiting:
                task = reader.read(ledger.waiting.popleft())
                try:
                    worker.take(replace(self._parcel, device=self._places.device(place)), order, task)
                except OSError:  # it is gone; `_answers` finds the end of its pipe
                    continue

    def _start(self, place: int) -> _Worker:
        context = multiprocessing.get_context("spawn")  # a fork would copy locks and CUDA in whatever state they are
        ours, theirs = context.Pipe()
        process = context.Process(
            target=work, args=(theirs, self._places.threads), daemon=True, name=f"tmifpe-worker-{place}"
        )
        try:
            process.start()
        except RuntimeError as error:  # spawn imports the caller's script, which has come to this line again
            raise InputError(
                "worker processes import the script that started them: put what it does under "
                "if __name__ == '__main__':"
            ) from error
        finally:
            theirs.close()
        return _Worker(process, ours)

    def _answers(self, seconds: float) -> Iterator[tuple[int, Answer]]:
        """What some workers have said, `lost` for one that is gone; nothing if nobody speaks within so many seconds."""
        places: dict[Any, int] = {worker.pipe: place for place, worker in self._workers.items()}
        for pipe in wait(list(places), seconds)[:AT_ONCE]:
            try:
                yield places[pipe], receive(pipe)  # pyright: ignore[reportArgumentType]
            except (EOFError, OSError):
                yield places[pipe], Answer("lost")

    def _heard(self, place: int, answer: Answer, ledger: Ledger) -> ShardResult | ShardFailure | None:
        worker = self._workers[place]
        if answer.kind == "refused":
            raise InputError(answer.body)
        if answer.kind == "ready":
            worker.ready = True
        elif answer.kind == "began":
            worker.since = time.monotonic()
        elif answer.kind == "tick":
            _, *seen = answer.body
            worker.seen = Look(*seen)
        elif answer.kind == "done":
            worker.shard, ledger.done = None, ledger.done + 1
            return unpack_result(answer.body)
        elif answer.kind == "failed":
            shard, error, trace, leaves = answer.body
            worker.shard = None
            if leaves:
                self._workers.pop(place).end()
            return ledger.again(shard, error, trace)
        else:
            return self._lost(place, ledger)
        return None

    def _lost(self, place: int, ledger: Ledger, reason: str = "") -> ShardFailure | None:
        worker = self._workers.pop(place)
        ended = worker.end()
        if not worker.ready:
            self._stillborn += 1
            if self._stillborn > self._retries:
                raise InputError(
                    f"the worker processes do not start: {ended.replace('its worker', 'a worker')}; what it said is "
                    "above. A script must do its work under if __name__ == '__main__':"
                )
            if worker.shard is not None:
                ledger.waiting.append(worker.shard)
            return None
        return None if worker.shard is None else ledger.again(worker.shard, reason or ended)

    def _overdue(self, ledger: Ledger) -> Iterator[ShardFailure]:
        """Shards that take longer than the limit; whoever works on them is ended."""
        for place, worker in list(self._workers.items()):
            if self._limit is None or worker.shard is None or worker.since is None:
                continue
            if time.monotonic() - worker.since > self._limit:
                failed = self._lost(place, ledger, f"it took longer than the limit of {self._limit:g} seconds")
                if failed is not None:
                    yield failed
