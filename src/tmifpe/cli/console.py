"""What people see: a live bar on stderr, tables on stdout."""

from __future__ import annotations

__all__ = [
    "as_json",
    "bar",
    "encodable",
    "exit_if_flagged",
    "exit_if_incomplete",
    "harmless",
    "in_cli_words",
    "percent",
    "plain",
    "print_json",
    "prints_on_stderr",
    "progress_on_stderr",
    "result_table",
]

import json
import math
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, redirect_stdout
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

if TYPE_CHECKING:
    from tmifpe.run.result import Flag, Result
    from tmifpe.run.result import Progress as Step


def bar() -> Progress:
    """A progress bar on stderr, so that stdout stays clean for JSON."""
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[note]}"),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        transient=True,
    )


@contextmanager
def prints_on_stderr() -> Iterator[None]:
    """Within, what a model or its factory prints goes to stderr: it must not spoil the JSON on stdout."""
    with redirect_stdout(sys.stderr):
        yield


@contextmanager
def progress_on_stderr(title: str) -> Iterator[Callable[[Step], None]]:
    """Examples done, the robust accuracy so far with its bounds, examples per second, time left."""
    with bar() as shown, prints_on_stderr():
        task = shown.add_task(plain(title), total=None, note="")

        def told(step: Step) -> None:
            low, high = step.bounds
            speed = shown.tasks[0].finished_speed or shown.tasks[0].speed
            rate = f" {speed:.1f}/s" if speed else ""
            note = f"robust {low:.1%} to {high:.1%}{rate}"
            shown.update(task, total=step.total, completed=step.done, note=note)

        yield told


def harmless(text: str) -> str:
    """Text on one line that cannot steer a terminal: no escape sequences, no line breaks.

    >>> harmless("a\\x1b[31m\\nb") == "a\N{REPLACEMENT CHARACTER}[31m b"
    True
    """
    flat = " ".join(text.splitlines())
    return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in flat)


def encodable(text: str) -> str:
    """Text of several lines without the halves of characters that stand for odd bytes in the name of a file."""
    return text.encode(errors="replace").decode()


def plain(text: str) -> str:
    """A name from a file or a store for rich to print: harmless, and without markup."""
    return escape(harmless(text))


def percent(value: float) -> str:
    return f"{100 * value:.2f}"


def result_table(result: Result) -> Table:
    from tmifpe.core.stats import student

    spec = result.spec
    table = Table(title=plain(f"{spec.model} on {spec.data}"), show_header=False, title_justify="left")
    table.add_column(style="dim")
    table.add_column()
    rows = [
        ("robust accuracy", _accuracy(result)),
        ("clean accuracy", f"{percent(result.clean_accuracy)} %"),
        ("examples", f"{result.n}, of which broken {result.broken}"),
        ("threat", plain(f"{spec.threat.norm}, eps {spec.threat.eps:.6g}")),
        ("attack", plain("; ".join(spec.attacks).replace(",", ", "))),  # spaces, so that lines can break
        ("precision, mode, seed", plain(f"{spec.precision}, {spec.mode}, {spec.seed}")),
        ("cost", f"{result.seconds:.1f} s, {result.tally.forwards} forwards, {result.tally.backwards} backwards"),
    ]
    if spec.targets != "none":
        rows.insert(2, ("success rate", f"{percent(result.success_rate)} % towards {plain(spec.targets)}"))
    if spec.verify != "none":
        second = f"{percent(result.second_robust_accuracy)} % robust, {len(result.fragile)} examples differ (fragile)"
        rows.insert(1, (f"in {plain(spec.verify)}", second))
    if result.repeated:
        mean = sum(result.repeated) / len(result.repeated)
        bounds = " to ".join(percent(bound) for bound in student(result.repeated))
        rows.insert(1, (f"over {len(result.repeated)} draws", f"{percent(mean)} %  (95 %: {bounds})"))
    if result.part:
        rows.insert(0, ("shard", f"{result.part}, {len(result.outcomes)} of {result.plan.n} examples"))
    if result.resumed:
        rows.append(("from the store", f"{result.resumed} examples"))
    for name, text in rows:
        table.add_row(name, text)
    for note in result.notes:
        table.add_row("note", plain(note))
    for one in result.failures:
        table.add_row(f"[red]shard {one.shard} failed[/red]", plain(one.error))
    for flag in result.flags:
        table.add_row(f"[yellow]flag: {plain(flag.name)}[/yellow]", plain(f"{flag.seen} {flag.advice}"))
    return table


def _accuracy(result: Result) -> str:
    if result.missing:
        low, high = map(percent, result.bounds)
        every = result.n + result.missing
        return f"[bold]{low} to {high} %[/bold]  (incomplete: {result.missing} of {every} examples have no verdict)"
    low, high = map(percent, result.interval)
    return f"[bold]{percent(result.robust_accuracy)} %[/bold]  (95 %: {low} to {high})"


def in_cli_words(result: Result) -> Result:
    """The result with flags and notes that name options as the command line does."""
    from tmifpe.run.result import as_options

    flags, notes = (flag.on_command_line() for flag in result.flags), map(as_options, result.notes)
    return replace(result, flags=tuple(flags), notes=tuple(notes))


def exit_if_flagged(flags: Iterable[Flag]) -> None:
    """What --strict asks for: exit code 3 if a flag was raised."""
    if names := ", ".join(dict.fromkeys(flag.name for flag in flags)):
        Console(stderr=True).print(f"flags were raised: {names}", style="yellow", markup=False)
        raise typer.Exit(3)


def exit_if_incomplete(result: Result) -> None:
    """Exit code 4 if some shards failed; which ones, and why."""
    if not result.missing:
        return
    shown = Console(stderr=True, soft_wrap=True)
    for one in result.failures:
        said = harmless(f"shard {one.shard} failed {one.attempts} times: {one.error}")
        shown.print(said, style="red", markup=False, highlight=False)
    shown.print("incomplete: run the same command again to try the failed shards once more", style="yellow")
    raise typer.Exit(4)


def print_json(value: dict[str, Any]) -> None:
    """Exactly one JSON object on stdout."""
    sys.stdout.write(as_json(value))


def as_json(value: dict[str, Any]) -> str:
    """JSON knows no NaN and no infinity, so they become null."""
    return json.dumps(_finite(value), indent=2, allow_nan=False) + "\n"


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
