"""A live bar on stderr, in terminals and in notebooks."""

from __future__ import annotations

__all__ = ["AnyProgress", "counted", "make_bar", "reported", "shown_on_stderr"]

import importlib.util
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeAlias

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as RichProgress

from tmifpe.core.errors import InputError, shown
from tmifpe.run.result import Progress

AnyProgress: TypeAlias = bool | Callable[[Progress], None] | None
"""True for a bar on stderr, or a function that is told of every step."""

_OFTEN = 0.2  # seconds between two lines of a plain bar


@contextmanager
def reported(progress: AnyProgress, title: str) -> Iterator[Callable[[Progress], None]]:
    """Who is told of progress: the caller's function, a bar, or nobody."""
    if callable(progress):
        yield progress
    elif progress is True:
        with shown_on_stderr(title) as told:
            yield told
    elif progress in (None, False):
        yield lambda step: None
    else:
        raise InputError(f"progress must be True, False or a function that takes a Progress, got {shown(progress)}")


@contextmanager
def counted(progress: bool | Callable[[int, int], None] | None, title: str) -> Iterator[Callable[[int, int], None]]:
    """The same where there are no verdicts to report: examples done, of how many."""
    if callable(progress):
        yield progress
        return
    with reported(progress, title) as told:
        yield lambda done, total: told(Progress(total, done, 0, 0))


@contextmanager
def shown_on_stderr(title: str) -> Iterator[Callable[[Progress], None]]:
    """Examples done, the robust accuracy so far with its bounds, examples per second, time left."""
    if Console(stderr=True).is_jupyter and importlib.util.find_spec("ipywidgets") is None:
        with _plain(title) as line:  # without widgets rich would show nothing there
            yield line
        return
    with make_bar() as bar:
        task = bar.add_task(escape(title), total=None, note="")

        def told(step: Progress) -> None:
            speed = bar.tasks[0].finished_speed or bar.tasks[0].speed
            rate = f" {speed:.1f}/s" if speed else ""
            bar.update(task, total=step.total, completed=step.done, note=_verdicts(step) + rate)

        yield told


def make_bar() -> RichProgress:
    """A progress bar on stderr, so that stdout stays clean for JSON."""
    return RichProgress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[note]}"),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        transient=True,
    )


@contextmanager
def _plain(title: str) -> Iterator[Callable[[Progress], None]]:
    """One line that is written over, which every notebook can show."""
    last = 0.0

    def told(step: Progress) -> None:
        nonlocal last
        now = time.monotonic()
        if now - last < _OFTEN and step.done < step.total:
            return
        last = now
        filled = 20 * step.done // max(step.total, 1)
        line = f"{title} [{'#' * filled}{'.' * (20 - filled)}] {step.done}/{step.total} {_verdicts(step)}"
        sys.stderr.write(f"\r{line}")
        sys.stderr.flush()

    yield told
    sys.stderr.write("\n")


def _verdicts(step: Progress) -> str:
    low, high = step.bounds
    return f"robust {low:.1%} to {high:.1%}" if step.robust or step.wrong else ""
