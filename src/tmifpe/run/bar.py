"""Who is told of progress: the caller's function, nobody, or a live view on stderr, in terminals and in notebooks."""

from __future__ import annotations

__all__ = ["AnyProgress", "counted", "reported", "shown_on_stderr"]

import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import TypeAlias

from rich.console import Console

from tmifpe.core.errors import InputError, shown
from tmifpe.run.shown.live import Teller, in_lines, in_notebook, on_terminal
from tmifpe.run.shown.progress import Progress

AnyProgress: TypeAlias = bool | Callable[[Progress], None] | None
"""True for a live view on stderr, or a function that is told of every step."""


@contextmanager
def reported(progress: AnyProgress, title: str) -> Iterator[Callable[[Progress], None]]:
    """Who is told of progress: the caller's function, a live view, or nobody."""
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


def shown_on_stderr(title: str) -> AbstractContextManager[Teller]:
    """Bounds on the robust accuracy, stage, pace and time left; stdout stays clean for JSON."""
    console = Console(stderr=True)
    if console.is_jupyter:
        return in_notebook(title)
    # Not `console.is_terminal`: FORCE_COLOR, as CIs set it, does not make a terminal of a log.
    if sys.stderr.isatty() and not console.is_dumb_terminal:
        return on_terminal(title, console)
    return in_lines(title)
