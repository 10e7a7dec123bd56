"""tmifpe runs: list, show, compare, export and repair stored runs."""

from __future__ import annotations

__all__ = ["runs"]

from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tmifpe.cli.command import Command, Verbs
from tmifpe.cli.options import STORE
from tmifpe.core.errors import InputError

if TYPE_CHECKING:
    from tmifpe.run.spec import RunSpec
    from tmifpe.store import Store, StoredRun

runs = typer.Typer(
    cls=Verbs,
    name="runs",
    help="List, show, compare, remove and export stored runs.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

_LISTED = 20  # indices, before the rest is counted

_verb = partial(runs.command, cls=Command)

Folder = Annotated[str, typer.Option("--store", envvar="TMIFPE_STORE", help="The folder of the run store.")]
Name = Annotated[str, typer.Argument(help="The key of a run, or its first digits; KEY.1 for an earlier attempt.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout.")]


@_verb("list")
def list_runs(
    store: Folder = STORE,
    every: Annotated[bool, typer.Option("--all", help="Also runs that were repeated with --fresh.")] = False,
    json: Json = False,
) -> None:
    """List the runs in the store."""
    from rich.console import Console
    from rich.table import Table

    from tmifpe.cli.console import harmless, percent, plain, print_json

    found = _store(store).runs(superseded=every)
    if json:
        print_json({"runs": [run.to_json() for run in found]})
        return
    if not found:
        typer.echo(harmless(f"no runs in {store}"), err=True)
        return
    table = Table()
    for heading in ("run", "model", "data", "threat", "attack", "done", "robust %"):
        table.add_column(heading, no_wrap=heading == "run")
    for run in found:
        spec, result = run.spec, run.result
        table.add_row(
            plain(run.name.replace(run.key, run.key[:8])),
            plain(spec.model),
            plain(spec.data),
            plain(f"{spec.threat.norm} {spec.threat.eps:.6g}{spec.threat.within}"),
            plain(_asked(spec)),
            f"{run.done}/{run.plan.n}",
            percent(result["robust_accuracy"]) if result else "",
        )
    Console().print(table)


@_verb("show")
def show(run: Name, store: Folder = STORE, json: Json = False) -> None:
    """Show the request of a run, what it found, and what it was computed with."""
    import dataclasses

    from rich.console import Console

    from tmifpe.cli.console import in_cli_words, plain, print_json, result_table

    kept = _store(store)
    found = kept.find(run)
    result, sessions = in_cli_words(kept.result(found)), kept.sessions(found)
    if json:
        told = found.to_json() | {"spec": found.spec.as_dict(), "plan": dataclasses.asdict(found.plan)}
        flags = [dataclasses.asdict(flag) for flag in result.flags]
        told["failures"] = [dataclasses.asdict(failure) for failure in result.failures]
        told["result"] = found.result and found.result | {"flags": flags}
        print_json(told | {"sessions": [dataclasses.asdict(session) for session in sessions]})
        return
    shown = Console()
    shown.print(result_table(result))
    for failure in result.failures:
        for line in failure.traceback.splitlines():
            shown.print(plain(line), highlight=False)
    if found.finished is None:
        shown.print(f"Not finished: {found.done} of {found.plan.n} examples; run the same command again to resume.")
    for session in sessions:
        what = ", ".join(f"{name} {value}" for name, value in {**session.versions, **session.machine}.items())
        shown.print(plain(f"{session.started}: {session.shards} shards with {what}"), highlight=False)


@_verb("compare")
def compare(first: Name, second: Name, store: Folder = STORE, json: Json = False) -> None:
    """Compare two runs on the same examples: which broke what, and whether that is more than chance."""
    from rich.console import Console

    from tmifpe.cli.console import plain, print_json

    told = _compared(_store(store), first, second)
    if json:
        print_json(told)
        return
    shown = Console()
    for side in ("first", "second"):
        accuracy = told[side]["robust_accuracy"]
        attack = "; ".join(_short(attack) for attack in told[side]["attacks"])
        shown.print(plain(f"{told[side]['run']}: {accuracy:.2%} robust, {told[side]['model']}, {attack}"))
    verdict = "more than chance" if told["differs"] else "may be chance"
    shown.print(
        f"broken only by the first {told['only_first']}, only by the second {told['only_second']}: {verdict} "
        f"(McNemar's exact test, p = {told['p']:.2g})"
    )
    for side in ("first", "second"):
        if indices := told[f"indices_{side}"]:
            more = f" and {len(indices) - _LISTED} more (--json has all)" if len(indices) > _LISTED else ""
            listed = ", ".join(map(str, indices[:_LISTED]))
            shown.print(f"only by the {side}, at index {listed}{more}", highlight=False)


def _compared(store: Store, first: str, second: str) -> dict[str, Any]:
    from tmifpe.core.stats import mcnemar

    one, two = store.find(first), store.find(second)
    if (one.spec.data_identity, one.spec.subset) != (two.spec.data_identity, two.spec.subset):
        raise InputError(f"runs {one.name} and {two.name} are not on the same examples")
    if one.spec.targets != two.spec.targets:
        raise InputError(
            f"runs {one.name} and {two.name} ask different questions: targets {one.spec.targets} and {two.spec.targets}"
        )
    if one.spec.targets == "random" and one.spec.seed != two.spec.seed:
        raise InputError(
            f"runs {one.name} and {two.name} ask different questions: their seeds, {one.spec.seed} and "
            f"{two.spec.seed}, drew different random targets"
        )
    for run in (one, two):
        if run.done < run.plan.n:
            raise InputError(f"run {run.name} is not finished: {run.done} of {run.plan.n} examples; resume it first")
    a, b = store.result(one).outcomes, store.result(two).outcomes
    # An example that is misclassified to begin with is as good as broken: two models may differ in that too.
    pair = mcnemar(one.name, two.name, ~a.robust, ~b.robust)
    only_first, only_second = (
        a.index[~one & other].tolist() for one, other in ((a.robust, b.robust), (b.robust, a.robust))
    )
    return {
        "first": one.to_json(),
        "second": two.to_json(),
        "only_first": pair.only_first,
        "only_second": pair.only_second,
        "p": pair.p,
        "differs": pair.differs,
        "indices": a.index[a.robust != b.robust].tolist(),
        "indices_first": only_first,
        "indices_second": only_second,
    }


@_verb("rm")
def remove(
    names: Annotated[list[str], typer.Argument(help="Keys of runs, or their first digits.")], store: Folder = STORE
) -> None:
    """Remove runs and their adversarial examples."""
    kept = _store(store)
    for run in [kept.find(name) for name in names]:  # all are found before any is removed
        kept.remove(run)
        typer.echo(f"removed {run.name}")


@_verb("export")
def export(
    run: Name,
    store: Folder = STORE,
    format: Annotated[str, typer.Option(help="csv, json or parquet: one row per example.")] = "csv",
    output: Annotated[str | None, typer.Option(help="The file to write; without it, stdout.")] = None,
    adv: Annotated[
        str | None, typer.Option(help="Write the adversarial examples to this .safetensors, .npz or .pt file.")
    ] = None,
    robustbench: Annotated[
        str | None, typer.Option(help="Write the .pt tensor that RobustBench expects to this file.")
    ] = None,
) -> None:
    """Export the outcomes of a run, or its adversarial examples."""
    from tmifpe.cli.parse import write_file
    from tmifpe.store import adversarial
    from tmifpe.store import export as made

    ending = adversarial.check_ending(adv) if adv is not None else ""
    kept = _store(store)
    found = kept.find(run)
    if robustbench is not None:
        write_file(robustbench, made.robustbench_file(kept, found))
    if adv is not None:
        write_file(adv, adversarial.adv_file(_with_adv(kept, found), ending))
    if output is not None:
        write_file(output, made.outcomes_file(kept, found, format))
    elif adv is None and robustbench is None:
        if format == "parquet":
            raise InputError("Parquet is not text; name a file with --output FILE")
        typer.echo(made.outcomes_file(kept, found, format).decode(), nl=False)


@_verb("repair")
def repair(store: Folder = STORE) -> None:
    """Rebuild a damaged or lost database from the shard files; the old one is kept."""
    from tmifpe.cli.console import harmless
    from tmifpe.store.repair import repair as rebuild

    done = rebuild(_store(store).folder)
    kept = f"; the old database is {done.kept.name}" if done.kept else ""
    typer.echo(f"{done.shards} shards of {done.runs} runs are back{kept}")
    for line in done.unreadable:
        typer.echo(harmless(line), err=True)


def _store(folder: str) -> Store:
    from tmifpe.store import Store

    return Store(folder)


def _with_adv(store: Store, run: StoredRun) -> Any:
    from dataclasses import replace

    import torch

    parts = list(store.adv(run))
    if not parts:
        raise InputError(f"run {run.name} has no finished shard yet; resume it first")
    return replace(store.result(run), adv=torch.cat(parts))


def _asked(spec: RunSpec) -> str:
    """The attacks and, where they are not the usual ones, what else tells the run from another: targets, seed, ..."""
    from tmifpe.attacks.catalogue import NAMED

    title = spec.attack_title
    words = [title if title in NAMED else "; ".join(_short(attack) for attack in spec.attacks)]
    words += [f"to {spec.targets}"] if spec.targets != "none" else []
    words += [f"through {', '.join(spec.straight_through)}"] if spec.straight_through else []
    words += ["certify"] if spec.certify != "none" else []
    words += [f"verify {spec.verify}"] if spec.verify != "none" else []
    words += [f"eot {spec.eot}"] if spec.eot != 1 else []
    return " ".join([*words, f"seed {spec.seed}"] if spec.seed else words)


def _short(attack: str) -> str:
    """`pgd(loss=tmifpe,...)` as the words that matter in a table; `x5` are five restarts."""
    from tmifpe.core.options import parse

    name, options = parse(attack)
    words = [name, *(str(options[key]) for key in ("loss", "steps") if key in options)]
    return " ".join([*words, f"x{options['restarts']}"] if options.get("restarts", 1) != 1 else words)
