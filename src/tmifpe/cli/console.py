"""What people see: a live view and remarks on stderr, tables on stdout."""

from __future__ import annotations

__all__ = [
    "as_json",
    "encodable",
    "exit_if_flagged",
    "exit_if_incomplete",
    "harmless",
    "hushed",
    "in_cli_words",
    "layers_table",
    "notice",
    "percent",
    "plain",
    "print_json",
    "prints_on_stderr",
    "progress_on_stderr",
    "remark",
    "result_table",
    "wrote",
]

import json
import math
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from contextvars import ContextVar
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import typer
from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

if TYPE_CHECKING:
    from tmifpe.attacks.hooks.layer_gradient import LayerGradient
    from tmifpe.attacks.loop.queries import Tally
    from tmifpe.run.result import Flag, Result
    from tmifpe.run.shown.live import Teller


_QUIET: ContextVar[bool] = ContextVar("quiet", default=False)


@contextmanager
def hushed(quiet: bool) -> Iterator[None]:
    """--quiet: within, neither progress nor remarks are shown; results and errors are."""
    before = _QUIET.set(quiet)
    try:
        yield
    finally:
        _QUIET.reset(before)


@contextmanager
def prints_on_stderr() -> Iterator[None]:
    """Within, what a model or its factory prints goes to stderr: it must not spoil the JSON on stdout."""
    with redirect_stdout(sys.stderr):
        yield


@contextmanager
def progress_on_stderr(title: str) -> Iterator[Teller]:
    """The bounds on the robust accuracy so far, stage, pace, time left; nothing with --quiet."""
    from tmifpe.run.bar import shown_on_stderr

    if _QUIET.get():
        with prints_on_stderr():
            yield lambda step, title="": None
        return
    with shown_on_stderr(harmless(title)) as told, prints_on_stderr():
        yield told


def notice(text: str) -> None:
    """A remark on stderr that changes nothing."""
    remark(f"notice: {text}")


def wrote(path: object) -> None:
    """Which file was written."""
    remark(f"wrote {path}")


def remark(text: str) -> None:
    """A line on stderr, unless --quiet."""
    if not _QUIET.get():
        Console(stderr=True, soft_wrap=True).print(harmless(text), style="dim", markup=False, highlight=False)


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
    from tmifpe.attacks.catalogue import stage_title
    from tmifpe.run.shown.sheets import clean_said, examples_said

    spec = result.spec
    table = Table(title=plain(f"{spec.model} on {spec.data}"), show_header=False, title_justify="left")
    table.add_column(style="dim")
    table.add_column()
    rows = [
        ("robust accuracy", _accuracy(result)),
        ("clean accuracy", clean_said(result)),
        ("examples", f"{result.n}, of which broken {result.broken}" if result.complete else examples_said(result)),
        ("threat", plain(f"{spec.threat.norm}, eps {spec.threat.eps:.6g}{spec.threat.within}")),
        ("attack", plain(spec.attack_title.replace(",", ", "))),  # spaces, so that lines can break
        ("precision, mode, seed", plain(f"{spec.precision}, {spec.mode}, {spec.seed}")),
        ("cost", _cost(result)),
    ]
    # The parts of an attack, as AutoAttack has them; stages have lines of their own.
    parts = {name: indices for name, indices in result.broken_by().items() if ": " in name}
    if parts := {name: indices for name, indices in parts.items() if not name.startswith("repair: ")}:
        told = ", ".join(f"{name} {len(indices)}" for name, indices in parts.items())
        rows.insert(3, ("broken by", plain(told)))
    if spec.targets != "none" and result.complete:
        rows.insert(2, ("success rate", f"{percent(result.success_rate)} % towards {plain(spec.targets)}"))
    parts = [("shard", f"{result.part}, {len(result.outcomes)} of {result.plan.n} examples")] if result.part else []
    if not len(result.outcomes):  # nothing is known but how many there are
        rows = [row for row in rows if not row[0].endswith("accuracy")]
    for name, text in (*parts, rows[0], *_beside(result), *rows[1:], *_added(result)):
        table.add_row(name, text)
    for number, stage in enumerate(result.stages if len(spec.attacks) > 1 else (), 1):
        name = stage_title(spec.attacks[number - 1])
        cost = f"{stage.forwards} forwards, {stage.backwards} backwards"
        told = f"{name} broke {stage.broken} of {stage.examples} ({cost})" if stage.examples else f"{name}: not needed"
        table.add_row(f"stage {number}", plain(told))
    add_remarks(table, result)
    return table


def add_remarks(table: Table, result: Result) -> None:
    """Notes, failures and flags, in two columns."""
    for note in result.notes:
        table.add_row("note", plain(note))
    for one in result.failures:
        table.add_row(f"[red]shard {one.shard} failed[/red]", plain(one.error))
    for flag in result.flags:
        table.add_row(f"[yellow]flag: {plain(flag.name)}[/yellow]", plain(f"{flag.seen} {flag.advice}"))


def _accuracy(result: Result) -> str:
    if not result.complete:
        low, high = map(percent, result.bounds)
        every = len(result.outcomes) + result.missing
        return f"[bold]{low} to {high} %[/bold]  (incomplete: {result.missing} of {every} examples have no verdict)"
    low, high = map(percent, result.interval)
    return f"[bold]{percent(result.robust_accuracy)} %[/bold]  (95 %: {low} to {high})"


def _beside(result: Result) -> Iterator[tuple[str, str]]:
    """Other readings of the robust accuracy."""
    from tmifpe.core.stats import student

    if (given := result.transferred) is not None:
        both, alone = percent(given.united_robust_accuracy), percent(given.robust_accuracy)
        yield "with --transfer-adv", f"{both} % robust ({alone} % after those examples alone)"
    if result.repeated:
        mean = sum(result.repeated) / len(result.repeated)
        bounds = " to ".join(percent(bound) for bound in student(result.repeated))
        yield f"over {len(result.repeated)} draws", f"{percent(mean)} %  (95 %: {bounds})"
    for one in result.radii[:-1] if result.complete else ():
        low, high = map(percent, one.interval)
        proved = "" if one.certified_accuracy is None else f", certified {percent(one.certified_accuracy)} %"
        yield f"at eps {one.eps:.6g}", f"{percent(one.robust_accuracy)} %  (95 %: {low} to {high}){proved}"
    if result.certified_accuracy is not None and len(result.outcomes):
        proved, attacked = percent(result.certified_accuracy), percent(result.bounds[1])
        yield "proved and attacked", f"certified {proved} % ≤ robust ≤ attacked {attacked} %"
    if result.spec.verify != "none" and result.complete:
        second = f"{percent(result.second_robust_accuracy)} % robust, {len(result.fragile)} examples differ (fragile)"
        yield f"in {plain(result.spec.verify)}", second


def _cost(result: Result) -> str:
    """All of it; what checks and repairs took of that has lines of its own."""
    seconds = result.seconds + result.check_seconds
    spent = f"{seconds:.1f} s, {_passes(result.spent)}"
    if not result.check_forwards:
        return spent
    return f"{spent}; of these {result.check_seconds:.1f} s for checks{' and repairs' if result.repairs else ''}"


def _passes(tally: Tally) -> str:
    return f"{tally.forwards} forwards, {tally.backwards} backwards"


def _added(result: Result) -> Iterator[tuple[str, str]]:
    """What was done besides the attack."""
    if result.check_forwards:
        cut = f"; held to their share of the cost: {'; '.join(result.checks_cut)}" if result.checks_cut else ""
        yield "checks", plain(f"{_passes(result.checked)}{cut}")
    for repair in result.repairs:
        yield "repair", plain(f"{repair} survivors ({_passes(repair.tally)})")
    if (spot := result.spot_check) is not None:
        low, high = map(percent, spot.robust_accuracy)
        yield "spot check", plain(f"{spot.title}: {spot}; robust accuracy {low} to {high} %")
    if result.early_exits is not None:
        yield "early exit", plain(str(result.early_exits))
    if (led := result.from_model) is not None:
        yield "from another model", plain(f"{led.model}: {led}")
    if result.spec.straight_through:
        yield "straight through", plain(", ".join(result.spec.straight_through))
    if result.resumed:
        yield "from the store", f"{result.resumed} examples"


def layers_table(layers: Sequence[LayerGradient], most: int = 40) -> Table:
    """What becomes of the gradient, module by module, in percent of the images (of the units: off)."""
    table = Table(title="Gradient on its way back, % of images", title_justify="left", box=box.SIMPLE)
    table.add_column("module", overflow="fold")
    table.add_column("kind", overflow="fold")
    for heading in ("none", "nearly\nnone", "shat-\ntered", "units\noff %"):
        table.add_column(heading, justify="right", no_wrap=True)
    for layer in layers[:most]:
        shares = [f"{100 * share:.0f}" if share else "0" for share in (layer.none, layer.faint, layer.shattered)]
        name = (layer.name or "the model itself") + (f", call {layer.call}" if layer.call > 1 else "")
        off = "" if layer.off is None else f"{100 * layer.off:.0f}"
        table.add_row(plain(name), plain(layer.kind), *shares, off, style="yellow" if layer.dies else "")
    if len(layers) > most:
        table.add_row(f"and {len(layers) - most} more (--json)")
    return table


def in_cli_words(result: Result) -> Result:
    """The result with flags and notes that name options as the command line does."""
    from tmifpe.core.errors import as_options

    flags, notes = (flag.on_command_line() for flag in result.flags), map(as_options, result.notes)
    return replace(result, flags=tuple(flags), notes=tuple(notes))


def exit_if_flagged(flags: Iterable[Flag]) -> None:
    """--strict: exit code 3 if a flag was raised."""
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
