"""The loop in parts: the rows are dealt out, and every part has a loop, a thread and a copy of the model of its own.

On a CPU, torch cuts every single operation among its threads, which wait for each other after each. Loops side by side
wait for nobody: a thread takes its rows from the images to the logits and back, and on to their next step. That is
faster on most networks, and much faster where other programs want the cores, too (docs/cost.md).
"""

from __future__ import annotations

__all__ = ["FEWEST", "PartedQueries", "run_parts"]

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from queue import SimpleQueue
from threading import Event, Lock
from typing import TYPE_CHECKING, TypeAlias, TypeVar

import torch
from torch import Tensor

from tmifpe.attacks.loop.queries import Queries, Tally
from tmifpe.attacks.loop.rows import Problem, Verdicts
from tmifpe.core.types import Model

if TYPE_CHECKING:
    from tmifpe.attacks.loop.loop import Loop

T = TypeVar("T")
RunPart: TypeAlias = "Callable[[Problem, Queries, Loop], Verdicts]"
FEWEST = 32
"""Rows in a part: with fewer, a look is mostly Python, of which only one thread can run at a time."""


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


def run_parts(one: RunPart, problem: Problem, queries: PartedQueries, loop: Loop) -> list[tuple[Tensor, Verdicts]]:
    """Positions and verdicts of every part, from `one` loop for each.

    Whoever verifies and whoever is told of progress sees one call at a time, the latter in the caller's own thread. An
    attack is a function of its rows and a loss one of its logits, so that they may run in several threads.
    """
    parts, count = queries.parts(), len(queries.copies)
    dealt = [torch.arange(k, len(problem), count, device=problem.labels.device) for k in range(count)]
    told, counted = [(0, 0)] * count, [Tally() for _ in parts]
    # True: a part has come to its end.
    news: SimpleQueue[bool] = SimpleQueue()
    stop, lock = Event(), Lock()

    def verify(adv: Tensor, rows: Problem) -> Tensor:
        assert loop.verify is not None  # noqa: S101 - asked only where there is one
        with lock:  # the user's model and its tally
            return loop.verify(adv, rows)

    def work(k: int) -> Verdicts:
        def tick(done: int, broken: int) -> None:
            if stop.is_set():
                raise _Stopped
            told[k] = (done, broken)
            news.put(False)

        size = -(-loop.batch_size // count)
        mine = replace(loop, batch_size=size, tick=tick, verify=None if loop.verify is None else verify)
        try:
            return one(problem.take(dealt[k]), parts[k], mine)
        except BaseException:
            stop.set()
            raise
        finally:
            news.put(True)

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
            left -= news.get()
            collect()
            if not stop.is_set():
                loop.tick(sum(done for done, _ in told), sum(broken for _, broken in told))
    finally:  # nobody goes on where the caller does not
        stop.set()
        wait(running)
        collect()
    failed = [error for future in running if (error := future.exception()) is not None]
    for error in failed:
        if not isinstance(error, _Stopped):
            raise error
    return [(rows, future.result()) for rows, future in zip(dealt, running, strict=True)]


class _Stopped(Exception):
    """Another part has failed, or the caller has enough."""
