"""What a worker process does: it holds the model, computes the shards it is given, and ends with its parent."""

from __future__ import annotations

__all__ = ["Answer", "compute", "receive", "send", "unpack", "work"]

import ctypes
import multiprocessing
import os
import pickle
import signal
import sys
import threading
import time
import traceback
from contextlib import ExitStack, suppress
from dataclasses import replace
from multiprocessing.connection import Connection, wait
from typing import Any, NamedTuple

import torch

from tmifpe.attacks import Attack
from tmifpe.core.errors import InputError, ModelError, first_line
from tmifpe.core.process import keep_freed_memory
from tmifpe.engines.engine import Tick
from tmifpe.engines.memory import run_in_memory
from tmifpe.engines.parcel import Order, Parcel, Task, pack_result, unpack_model
from tmifpe.run.prepared_model import PreparedModel, prepare_model
from tmifpe.run.shown.progress import Look
from tmifpe.run.tune.executor import tuned

_TICK_SECONDS = 0.1
_PR_SET_PDEATHSIG = 1


class Answer(NamedTuple):
    """`kind`: ready, began, tick, done, failed (this shard) or refused (the request itself)."""

    kind: str
    body: Any = None


def send(pipe: Connection, message: object) -> None:
    # Not pipe.send, whose pickler torch has taught to pass tensors as open files.
    pipe.send_bytes(pickle.dumps(message, protocol=pickle.HIGHEST_PROTOCOL))


def receive(pipe: Connection) -> Any:
    return pickle.loads(pipe.recv_bytes())  # noqa: S301 - from the other end of our own pipe


def work(pipe: Connection, threads: int) -> None:
    """The whole life of a worker: a parcel, then orders and tasks until the pipe is closed."""
    _die_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the parent decides what it means
    os.dup2(2, 1)  # what a model prints must not spoil the JSON on the parent's stdout
    keep_freed_memory()
    torch.set_num_threads(min(threads, torch.get_num_threads()))
    try:
        with ExitStack() as stack:
            prepared, second = unpack(receive(pipe), stack)
            send(pipe, Answer("ready"))
            _serve(pipe, prepared, second)
    except InputError as error:
        send(pipe, Answer("refused", str(error)))
    except (EOFError, BrokenPipeError, ConnectionError):
        pass  # the parent has closed the pipe, or is gone


def unpack(parcel: Parcel, stack: ExitStack) -> tuple[PreparedModel, PreparedModel | None]:
    """The model of a parcel, and the one of the second opinion, ready to be asked."""
    network = unpack_model(parcel)
    prepared = stack.enter_context(prepare_model(network, parcel.precision, parcel.device))
    prepared = replace(prepared, straight_through=parcel.straight_through)
    if parcel.verify is None:
        return prepared, None
    place = "cpu" if prepared.device.type == "mps" and parcel.verify == "fp64" else parcel.device
    return prepared, stack.enter_context(prepare_model(network, parcel.verify, place))


def compute(
    task: Task, order: Order, attack: Attack, prepared: PreparedModel, second: PreparedModel | None, tick: Tick
) -> Answer:
    """One shard: done or failed. What is wrong with the request, and not with this shard, is raised."""
    try:
        job = task.job(prepared, second, order, attack)
        return Answer("done", pack_result(run_in_memory(job, task.shard, range(len(task.indices)), tick)))
    except Exception as error:  # the model is the user's code, and may fail in any way
        if isinstance(error, InputError) and not isinstance(error, ModelError):
            raise
        said = str(error) if isinstance(error, InputError) else f"{type(error).__name__}: {first_line(error)}"
        leaves = prepared.device.type == "cuda"  # a CUDA error may have spoilt this process
        return Answer("failed", (task.shard, said, traceback.format_exc(), leaves))


def _serve(pipe: Connection, prepared: PreparedModel, second: PreparedModel | None) -> None:
    order, attack = None, None
    while True:
        message = receive(pipe)
        if isinstance(message, Order):
            order, attack = message, message.attack()
            prepared = tuned(prepared, order.tuning and order.tuning.elsewhere)
            continue
        assert order is not None  # noqa: S101 - an order comes before its tasks
        assert attack is not None  # noqa: S101
        task: Task = message
        send(pipe, Answer("began", task.shard))
        answer = compute(task, order, attack, prepared, second, _Ticker(pipe, task.shard))
        send(pipe, answer)
        if answer.kind == "failed" and answer.body[-1]:
            return


class _Ticker:
    """Progress, a few times a second."""

    def __init__(self, pipe: Connection, shard: int) -> None:
        self.pipe, self.shard, self.last = pipe, shard, 0.0

    def __call__(self, look: Look) -> None:
        now = time.monotonic()
        if now - self.last >= _TICK_SECONDS:
            self.last = now
            send(self.pipe, Answer("tick", (self.shard, *look)))


def _die_with_parent() -> None:
    """However the parent ends, SIGKILL included: by the kernel on Linux, by a thread that waits for it everywhere."""
    parent = multiprocessing.parent_process()
    if parent is None:
        return
    if sys.platform == "linux":
        with suppress(AttributeError, OSError):  # where the C library has no such call, the thread does it
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)

    def watch() -> None:
        wait([parent.sentinel])
        os._exit(1)

    threading.Thread(target=watch, daemon=True, name="tmifpe-watch-parent").start()
