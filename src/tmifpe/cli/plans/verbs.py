"""tmifpe run: the runs of a plan file; tmifpe plan: a file to begin with, and a script for Slurm."""

from __future__ import annotations

__all__ = ["plan", "run"]

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tmifpe.cli.command import Command
from tmifpe.cli.options import STORE, EngineOptions, OutputOptions, StoreOptions, Track
from tmifpe.core.errors import InputError, as_options, did_you_mean

if TYPE_CHECKING:
    from tmifpe.cli.plans.file import PlannedRun
    from tmifpe.cli.plans.running import PlanRow
    from tmifpe.run.shown.progress import Progress

plan = typer.Typer(name="plan", help="Write plan files, and scripts to submit them.", no_args_is_help=True)
_verb = partial(plan.command, cls=Command)

TEMPLATE = """\
# A plan of runs for: tmifpe run {name}
# Nearly every option of tmifpe evaluate is a key here, with _ for -; a wrong one is answered with the list of them.
# Running the plan again continues it.

store = "tmifpe-runs"

[defaults]  # of every run below
data = "digits"
norm = "linf"
limit = 100
# loss, steps, restarts and schedule are those of the default attack; attack = "quick" is another one

[[run]]  # a list makes a run of every value, several lists of every combination
name = "sweep"
model = ["digits-robust", "digits-distilled"]
eps = [0.05, "0.1"]
seed = [0, 1]

[[run]]
name = "gate"
model = "digits-robust"
eps = 0.1
fail_below = 0.4  # exit code 1 if the robust accuracy is below this
# fail_below_clean and fail_below_lower (of the 95 % interval) are gates, too
# strict = true   # exit code 3 if a flag is raised
# certify = true  # prove what no attack can break
# save_adv = "gate.safetensors"

# [outputs]
# json = "results.json"
# markdown = "results.md"
# junit = "results.xml"
"""

SCRIPT = """\
#!/bin/bash
#SBATCH --job-name=tmifpe
#SBATCH --array=1-{jobs}
#SBATCH --cpus-per-task={cpus}
#SBATCH --time={time}
#SBATCH --output=tmifpe-%A-%a.log
##SBATCH --gres=gpu:1
# Submit with: sbatch {script}
# When all jobs have ended:
#   tmifpe runs merge {store}/shard-*-of-{jobs} --into {store}
#   tmifpe run {plan} --store {store}
set -euo pipefail
export OMP_NUM_THREADS="${{SLURM_CPUS_PER_TASK:-1}}"
tmifpe run {plan} --shard auto --store {store}
"""


def run(
    keep: StoreOptions,
    engine: EngineOptions,
    output: OutputOptions,
    plan: Annotated[
        str, typer.Argument(help="A plan file; without it, the table tool.tmifpe of pyproject.toml.")
    ] = "pyproject.toml",
    only: Annotated[str | None, typer.Option(help="Only runs of this name, e.g. 'sweep/*'.")] = None,
    track: Track = None,
) -> None:
    """Run all runs of a PLAN, or what is left of them, and show them as one table."""
    from tmifpe.cli import console, parse
    from tmifpe.cli.attack import weaker
    from tmifpe.cli.interrupt import interruptible
    from tmifpe.cli.plans import table
    from tmifpe.cli.plans.file import read_plan
    from tmifpe.cli.plans.running import run_all
    from tmifpe.cli.reports import check_trackers, tell_trackers

    check_trackers(track, engine)
    read = read_plan(plan)
    for path in read.outputs.values():
        parse.check_output(path)
    runs = _only(list(read.runs), only)
    folder = keep.folder if keep.store != STORE or keep.no_store else read.store or STORE
    for said in filter(None, dict.fromkeys(weaker(run.how, run.attack, run.loss) for run in runs)):
        console.notice(said)
    with interruptible(folder) as check, _progress(len(runs)) as show:

        def told(run: PlannedRun, step: Progress | None) -> None:
            check()
            show(run, step)

        rows = run_all(runs, folder, keep.fresh, engine, told)
    plain = {"runs": [row.to_json() for row in rows]}
    texts = {"markdown": table.markdown, "latex": table.latex, "junit": table.junit}
    for kind, path in read.outputs.items():
        text = console.as_json(plain) if kind == "json" else texts[kind](rows)
        parse.write_file(path, console.encodable(text).encode())
        console.wrote(path)
    if output.json:
        console.print_json(plain)
    elif output.markdown or output.latex:
        typer.echo(console.encodable(table.markdown(rows) if output.markdown else table.latex(rows)), nl=False)
    else:
        _show(rows)
    tell_trackers(track, [row.result for row in rows if row.result is not None and not row.result.missing])
    _exit(rows)


def _only(runs: list[PlannedRun], only: str | None) -> list[PlannedRun]:
    if only is None:
        return runs
    chosen = [run for run in runs if fnmatchcase(run.name, only) or run.name.partition("/")[0] == only]
    if not chosen:
        raise did_you_mean("run of the plan", only, {run.name for run in runs})
    return chosen


@contextmanager
def _progress(count: int) -> Iterator[Callable[[PlannedRun, Progress | None], None]]:
    """The run that is running, and how many are over."""
    from tmifpe.cli.console import harmless, progress_on_stderr

    over = 0
    with progress_on_stderr(f"{count} runs") as show:

        def told(run: PlannedRun, step: Progress | None) -> None:
            nonlocal over
            if step is None:
                over += 1
            else:
                show(step, harmless(f"run {over + 1} of {count}, {run.name}"))

        yield told


def _show(rows: list[PlanRow]) -> None:
    from rich.console import Console
    from rich.table import Table

    from tmifpe.cli.console import plain
    from tmifpe.cli.plans.table import HEADINGS, cells

    table = Table()
    for heading in HEADINGS:
        right = heading in ("examples", "clean %", "robust %", "95 % interval")
        table.add_column(heading, justify="right" if right else "left", overflow="fold")
    for row in rows:
        *told, state = cells(row)
        table.add_row(*map(plain, told), plain("failed" if row.error else state))  # why is said below, in full
    Console().print(table)


def _exit(rows: list[PlanRow]) -> None:
    """2: all that failed could not work; 4: a run failed otherwise or is incomplete; 1: a gate is missed; 3: a flag was
    raised where the plan is strict."""
    for error in dict.fromkeys(row.error for row in rows if row.error):
        names = ", ".join(row.run.name for row in rows if row.error == error)
        _say(f"error: {as_options(error)} ({names})")
    if lost := [row for row in rows if row.state != "done"]:
        _say(f"{len(lost)} of {len(rows)} runs failed or are incomplete: {', '.join(row.run.name for row in lost)}")
        raise typer.Exit(2 if all(row.refused for row in lost) else 4)
    if missed := [f"{row.run.name} ({'; '.join(row.missed)})" for row in rows if row.missed]:
        _say(f"below what the plan asks for: {', '.join(missed)}")
        raise typer.Exit(1)
    if flagged := [row.run.name for row in rows if row.flagged]:
        _say(f"flags were raised: {', '.join(flagged)}")
        raise typer.Exit(3)


def _say(text: str) -> None:
    from rich.console import Console

    from tmifpe.cli.console import harmless

    Console(stderr=True, soft_wrap=True).print(harmless(text), style="red", markup=False, highlight=False)


@_verb("init")
def init(
    out: Annotated[str, typer.Option(help="The file to write; it must not be there yet.")] = "plan.toml",
) -> None:
    """Write a commented plan that runs as it is, on the bundled models."""
    from tmifpe.cli.parse import folder_from, write_file

    if folder_from(out).exists():
        raise InputError(f"{out} is there already; name another file with --out")
    write_file(out, TEMPLATE.format(name=Path(out).name).encode())
    typer.echo(f"wrote {out}; run it with: tmifpe run {out}")


@_verb("sbatch")
def sbatch(
    plan: Annotated[str, typer.Argument(help="The plan file to run.")],
    jobs: Annotated[int, typer.Option(min=1, max=100_000, help="Jobs in the array.")] = 16,
    cpus: Annotated[int, typer.Option(min=1, max=100_000, help="Cores per job.")] = 4,
    time: Annotated[str, typer.Option(help="Time limit of a job, as Slurm writes it.")] = "04:00:00",
    store: Annotated[str | None, typer.Option(help="The run store.  [default: that of the plan]")] = None,
) -> None:
    """Print a Slurm script that runs the shards of a PLAN as an array of jobs."""
    import re
    import shlex

    from tmifpe.cli.console import encodable
    from tmifpe.cli.plans.file import read_plan

    read = read_plan(plan)
    if not re.fullmatch(r"[0-9:-]+", time):
        raise InputError(f"--time is written as 04:00:00 or 2-12, got {time!r}")
    folder = store or read.store or STORE
    if any(character in plan + folder for character in "\r\n\0"):
        raise InputError("the names of a plan and a store in a script must stand on one line")
    words = {"plan": shlex.quote(plan), "store": shlex.quote(folder), "script": "job.sh"}
    typer.echo(encodable(SCRIPT.format(jobs=jobs, cpus=cpus, time=time, **words)), nl=False)
