"""The loop in parts: the rows are dealt out, and every part has a loop, a thread and a copy of the model of its own.

On a CPU, torch cuts every single operation among its threads, which wait for each other after each. Loops side by side
wait for nobody: a thread takes its rows from the images to the logits and back, and on to their next step. That is
faster on most networks, and much faster where other programs want the cores, too (docs/cost.md).
"""

from __future__ import annotations

__all__ = ["FEWEST", "PartedQueries", "run_parts"]

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from queue import SimpleQueue
from threading import Event, Lock
from typing import TYPE_CHECKING, Protocol, TypeVar

import torch
from torch import Tensor

from tmifpe.attacks.loop.queries import Queries, Tally
from tmifpe.attacks.loop.rows import Problem, Verdicts
from tmifpe.attacks.loop.seats import Seat
from tmifpe.core.types import Model

if TYPE_CHECKING:
    from tmifpe.attacks.loop.loop import Loop

T = TypeVar("T")
FEWEST = 32
"""Rows in a part: with fewer, a look is mostly Python, of which only one thread can run at a time."""


class Running(Protocol):
    """A loop over some rows, which an exception at a tick may stop."""

    verdicts: Verdicts
    done: int
    broken: int

    def go(self) -> Verdicts: ...

    def rest(self) -> Seat: ...


class Begin(Protocol):
    """A loop over the rows of a problem, or over the `rest` of them."""

    def __call__(self, problem: Problem, queries: Queries, loop: Loop, rest: Seat | None = None, /) -> Running: ...


@dataclass
class PartedQueries(Queries):
    """Queries of a model that has `copies`, one for every part; `model` answers where rows are few.

    Not for modules to pass straight through, which are named in the model itself.
    """

    copies: tuple[Model, ...] = ()

    def __post_init__(self) -> None:
        # Each uses as many of torch's threads as the one that makes them: torch keeps the number by thread.
        given = (torch.get_num_threads(),)
        self.workers = ThreadPoolExecutor(
            len(self.copies), "tmifpe-rows", initializer=torch.set_num_threads, initargs=given
        )

    def parts(self) -> list[Queries]:
        """Queries of the copies, each with a tally of its own."""
        return [Queries(copy, self.dtype, self.eot) for copy in self.copies]

    def each(self, work: Callable[[int], T]) -> list[T]:
        """What comes of `work(0)`, `work(1)`, ... in as many threads as there are copies."""
        return list(self.workers.map(work, range(len(self.copies))))


def run_parts(begin: Begin, problem: Problem, queries: PartedQueries, loop: Loop) -> Verdicts:
    """Verdicts by one loop for every part; once few rows are left, by one loop for all of these.

    Whoever verifies and whoever is told of progress sees one call at a time, the latter in the caller's own thread. An
    attack is a function of its rows and a loss one of its logits, so that they may run in several threads.
    """
    parts, count = queries.parts(), len(queries.copies)
    dealt = [torch.arange(k, len(problem), count, device=problem.labels.device) for k in range(count)]
    counted, lock, told = [Tally() for _ in parts], Lock(), _Told(len(problem), count)

    def verify(adv: Tensor, rows: Problem) -> Tensor:
        assert loop.verify is not None  # noqa: S101 - asked only where there is one
        with lock:  # the user's model and its tally
            return loop.verify(adv, rows)

    def work(k: int) -> Running:
        size = -(-loop.batch_size // count)
        checked = None if loop.verify is None else verify
        try:
            mine = replace(loop, batch_size=size, tick=partial(told.tick, k), verify=checked)
            run = begin(problem.take(dealt[k]), parts[k], mine)
            with suppress(_FewLeft):
                run.go()
            return run
        except BaseException:
            told.stop.set()
            raise
        finally:
            told.news.put(True)

    def collect() -> None:
        with lock:
            for part, before in zip(parts, counted, strict=True):
                now = replace(part.tally)
                queries.tally.forwards += now.forwards - before.forwards
                queries.tally.backwards += now.backwards - before.backwards
                before.forwards, before.backwards = now.forwards, now.backwards
                queries.notes |= set(part.notes)

    running = [queries.workers.submit(work, k) for k in range(count)]
    try:
        left = count
        while left:
            left -= told.news.get()
            collect()
            if not told.stop.is_set():
                loop.tick(*told.so_far)
    finally:  # nobody goes on where the caller does not
        told.stop.set()
        wait(running)
        collect()
    failed = [error for future in running if (error := future.exception()) is not None]
    for error in failed:
        if not isinstance(error, _Stopped):
            raise error
    return _together(begin, [future.result() for future in running], dealt, problem, queries, loop)


class _Told:
    """What the parts say of their progress, and whether they should stop."""

    def __init__(self, total: int, count: int) -> None:
        self.total, self.each = total, [(0, 0)] * count
        # True: a part has come to its end.
        self.news: SimpleQueue[bool] = SimpleQueue()
        self.stop = Event()

    @property
    def so_far(self) -> tuple[int, int]:
        """Examples done and broken."""
        return sum(done for done, _ in self.each), sum(broken for _, broken in self.each)

    def tick(self, part: int, done: int, broken: int) -> None:
        self.each[part] = (done, broken)
        self.news.put(False)
        if self.stop.is_set():
            raise _Stopped
        if self.total - self.so_far[0] < FEWEST:
            raise _FewLeft


def _together(
    begin: Begin, runs: list[Running], dealt: list[Tensor], problem: Problem, queries: Queries, loop: Loop
) -> Verdicts:
    """What all parts have found, and the rows that they have left over in one loop."""
    rest: Seat | None = None
    for run, positions in zip(runs, dealt, strict=True):
        left = run.rest()
        if len(left):
            left.slots.position = positions.index_select(0, left.slots.position)
            rest = left if rest is None else rest.join(left)
    last = begin(problem, queries, loop, rest or runs[0].rest())
    for run, positions in zip(runs, dealt, strict=True):
        last.verdicts.put(positions, run.verdicts)
        last.done += run.done
        last.broken += run.broken
    loop.tick(last.done, last.broken)
    return last.go()


class _Stopped(Exception):
    """Another part has failed, or the caller has enough."""


class _FewLeft(Exception):
    """So few rows, of all parts, that side by side they would mostly wait for Python."""
