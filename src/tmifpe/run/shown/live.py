"""A run as it goes: the bounds on its robust accuracy closing in, the stage, the pace, the time left.

Three lines that are written over on a terminal, the same in a notebook's own cell, and now and then a plain line
anywhere else, such as the log of a CI.
"""

from __future__ import annotations

__all__ = ["Pace", "Teller", "View", "in_lines", "in_notebook", "on_terminal", "sentence"]

import math
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from html import escape
from typing import TYPE_CHECKING, Any, Protocol

from rich.text import Text

from tmifpe.core.errors import shorten
from tmifpe.core.shown.palette import COLOURS
from tmifpe.core.shown.sheet import visible

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult

    from tmifpe.run.shown.progress import Progress

_WIDEST = 100
_OFTEN = 0.2  # seconds between two pictures in a notebook
_LINES, _SELDOM = 10, 5.0  # plain lines per run at most, and seconds between two of them at least
_ROBUST, _OPEN, _WRONG = COLOURS[0], "#999999", COLOURS[1]


class Teller(Protocol):
    """Is told of every step; another title begins another run."""

    def __call__(self, step: Progress, title: str = "") -> None: ...


class Pace:
    """How fast a run goes, over all of its time, so that the number keeps still."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._first: tuple[float, int] | None = None
        self.speed, self.unit = 0.0, "steps"

    def told(self, step: Progress) -> None:
        now, count = self._clock(), step.steps or step.done
        if self._first is None or (step.steps and self.unit != "steps"):
            self._first = now, count
        self.unit = "steps" if step.steps else "examples"
        since, before = self._first
        self.speed = (count - before) / (now - since) if now > since and count > before else 0.0

    def seconds_left(self, step: Progress) -> float | None:
        """None where nothing is known of it."""
        left = step.left if step.steps else step.total - step.done
        return left / self.speed if self.speed and left else None


def _verdicts(step: Progress) -> str:
    """Empty where none is given, as in an audit."""
    if not step.robust and not step.wrong:
        return ""
    low, high = step.bounds
    return f"robust {100 * low:.1f} to {100 * high:.1f} %"


def _details(step: Progress, pace: Pace) -> Iterator[str]:
    if step.robust or step.wrong:
        yield f"{step.robust} withstood, {step.total - step.done} open, {step.wrong} broken or wrong"
    if step.stage:
        yield shorten(visible(step.stage), 60)
    if pace.speed:
        yield f"{pace.speed:.{0 if pace.speed >= 10 else 1}f} {pace.unit}/s"
    if (seconds := pace.seconds_left(step)) is not None:
        yield f"up to {_clock_time(seconds)} left"


def _clock_time(seconds: float) -> str:
    """In hours, minutes and seconds.

    >>> _clock_time(3725.2)
    '1:02:06'
    """
    whole = math.ceil(seconds)
    hours, minutes = whole // 3600, whole // 60 % 60
    return f"{hours}:{minutes:02}:{whole % 60:02}" if hours else f"{minutes}:{whole % 60:02}"


def sentence(title: str, step: Progress, pace: Pace) -> str:
    """All of it on one line."""
    parts = [f"{step.done} of {step.total} done", _verdicts(step), *_details(step, pace)]
    return f"{visible(title)}: {'; '.join(part for part in parts if part)}"


class View:
    """What is known, to be drawn by rich or by a notebook whenever they like."""

    def __init__(self, title: str, clock: Callable[[], float] = time.monotonic) -> None:
        self.title, self._clock = title, clock
        self.step: Progress | None = None
        self.pace = Pace(clock)

    def told(self, step: Progress, title: str = "") -> None:
        again = self.step is not None and step.done < self.step.done  # the same with another seed
        if again or (title and title != self.title):
            self.title, self.pace = title or self.title, Pace(self._clock)
        self.pace.told(step)
        self.step = step

    def __repr__(self) -> str:
        return visible(self.title) if self.step is None else sentence(self.title, self.step, self.pace)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        width = min(options.max_width, _WIDEST)
        if self.step is None:
            yield Text(_cut(self.title, width))
            return
        step, count = self.step, f"  {self.step.done} of {self.step.total}"
        yield Text(_cut(self.title, width - len(count)) + count)
        said = _verdicts(step)
        plain = not console.encoding.lower().startswith("utf")
        yield _bar(step, width - len(said) - 2, plain).append(f"  {said}")
        yield Text("; ".join(_details(step, self.pace)), style="dim")

    def _repr_html_(self) -> str:
        step = self.step
        if step is None:
            return f"<div>{escape(visible(self.title))}</div>"
        bars = "".join(
            f'<span style="display:inline-block;height:0.8em;width:{100 * share:.2f}%;background:{colour}"></span>'
            for share, colour in _shares(step)
        )
        said = "; ".join(part for part in (_verdicts(step), *_details(step, self.pace)) if part)
        return (
            f"<div>{escape(visible(self.title))}: {step.done} of {step.total}</div>"
            f'<div style="max-width:40em;line-height:0;white-space:nowrap">{bars}</div><div>{escape(said)}</div>'
        )


def _shares(step: Progress) -> list[tuple[float, str]]:
    """From the left what withstood, from the right what is broken: the bounds are the ends of what lies between."""
    total = max(1, step.total)
    if not step.robust and not step.wrong:
        return [(step.done / total, _ROBUST), (1 - step.done / total, _OPEN)]
    low, high = step.bounds
    return [(low, _ROBUST), (high - low, _OPEN), (1 - high, _WRONG)]


def _bar(step: Progress, width: int, plain: bool) -> Text:
    marks = {_ROBUST: "#" if plain else "█", _OPEN: "." if plain else "·", _WRONG: "x" if plain else "░"}
    made, begun, share = Text(no_wrap=True), 0, 0.0
    for more, colour in _shares(step):
        share += more
        end = round(max(0, width) * share)
        made.append(marks[colour] * (end - begun), style=colour)
        begun = end
    return made


def _cut(text: str, most: int) -> str:
    return shorten(visible(text), max(8, most - len("...")))


@contextmanager
def on_terminal(title: str, console: Console) -> Iterator[Teller]:
    """Drawn by rich, and gone at the end."""
    from rich.live import Live

    view = View(title)
    with Live(view, console=console, transient=True):
        yield view.told


@contextmanager
def in_notebook(title: str) -> Iterator[Teller]:
    """In the cell's own output, which every front end shows and a saved notebook keeps."""
    from IPython.display import display

    view, last = View(title), 0.0
    handle: Any = display(view, display_id=True)

    def told(step: Progress, title: str = "") -> None:
        nonlocal last
        view.told(step, title)
        if (now := time.monotonic()) - last >= _OFTEN:
            last = now
            handle.update(view)

    yield told
    handle.update(view)


@contextmanager
def in_lines(title: str, clock: Callable[[], float] = time.monotonic) -> Iterator[Teller]:
    """On stderr, at most ten per run and none of a run of seconds."""
    view, last, shown = View(title, clock), clock(), 0.0
    pace = view.pace

    def told(step: Progress, title: str = "") -> None:
        nonlocal last, pace, shown
        view.told(step, title)
        if view.pace is not pace:  # another run
            pace, shown = view.pace, 0.0
        now = clock()
        if step.share >= shown + 1 / _LINES and now - last >= _SELDOM:
            last, shown = now, math.floor(_LINES * step.share) / _LINES
            sys.stderr.write(f"{view}\n")
            sys.stderr.flush()

    yield told
