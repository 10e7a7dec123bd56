"""Ctrl-C: once to stop after the current step, twice to stop at once. What is stored stays."""

from __future__ import annotations

__all__ = ["interruptible"]

import os
import shlex
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

import typer

_WAIT = b"\nstopping after this step; Ctrl-C again stops at once\n"


class _Stop(Exception):
    """Raised between two steps, where nothing is half done."""


@contextmanager
def interruptible(store: str | None) -> Iterator[Callable[[], None]]:
    """While inside, a first SIGINT or SIGTERM is only noted, and the yielded `check()` acts on it; a second one
    interrupts wherever the program is. Says how to resume, and exits with 130 (SIGTERM: 143)."""
    received: list[int] = []

    def noted(number: int, frame: FrameType | None) -> None:  # noqa: ARG001 - the signature of a handler
        received.append(number)
        if len(received) > 1:
            raise KeyboardInterrupt
        os.write(2, _WAIT)  # the one way to write that is safe in a handler

    def check() -> None:
        if received:
            raise _Stop

    # Python lets only its main thread set handlers; elsewhere Ctrl-C keeps what it does.
    numbers = (signal.SIGINT, signal.SIGTERM) if threading.current_thread() is threading.main_thread() else ()
    before = {number: signal.signal(number, noted) for number in numbers}
    try:
        yield check
    except (_Stop, KeyboardInterrupt) as stopped:
        typer.echo(_message(store), err=True)
        raise typer.Exit(128 + (received[0] if received else signal.SIGINT)) from stopped
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _message(store: str | None) -> str:
    if store is None:
        return "interrupted; nothing was stored (--no-store)"
    words = [word for word in sys.argv[1:] if word != "--fresh"]
    return f"interrupted; finished shards are stored in {store}. Resume with:\n  {shlex.join(['tmifpe', *words])}"
