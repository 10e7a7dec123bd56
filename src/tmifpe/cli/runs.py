"""tmifpe runs: list, show, compare, export and repair stored runs."""

from __future__ import annotations

__all__ = ["runs"]

from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tmifpe.cli.command import Command, Verbs
from tmifpe.cli.options import STORE
from tmifpe.cli.pages.report import find_run
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
_WIDE = 110  # columns of a terminal, from which on the list has room for seeds and dates

_verb = partial(runs.command, cls=Command)

Folder = Annotated[str, typer.Option("--store", envvar="TMIFPE_STORE", help="The folder of the run store.")]
Name = Annotated[
    str, typer.Argument(help="The key of a run, or its first digits, or latest; KEY.1 for an earlier attempt.")
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout.")]


@_verb("list")
def list_runs(
    ctx: typer.Context,
    store: Folder = STORE,
    every: Annotated[bool, typer.Option("--all", help="Also runs that were repeated with --fresh.")] = False,
    json: Json = False,
) -> None:
    """List the runs in the store."""
    from rich.console import Console
    from rich.table import Table

    from tmifpe.cli.console import harmless, percent, plain, print_json
    from tmifpe.run.shown.titles import model_titles

    kept = _store(store)
    given = getattr(ctx.get_parameter_source("store"), "name", "") == "COMMANDLINE"  # by default there is none at first
    if given and not kept.folder.is_dir():
        raise InputError(f"there is no folder {store}; tmifpe evaluate --store {store} would make it")
    found = kept.runs(superseded=every)
    if json:
        print_json({"runs": [run.to_json() | _bounds(kept, run) for run in found]})
        return
    if not found:
        typer.echo(harmless(f"no runs in {store}"), err=True)
        return
    table, shown = Table(), Console()
    more = ("seed", "started") if shown.width >= _WIDE else ()
    for heading in ("run", "model", "data", "threat", "attack", *more, "done", "robust %"):
        table.add_column(heading, no_wrap=heading == "run")
    for run, model in zip(found, model_titles([run.spec for run in found]), strict=True):
        spec, result = run.spec, run.result
        table.add_row(
            plain(run.name.replace(run.key, run.key[:8])),
            plain(model),
            plain(spec.data),
            plain(f"{spec.threat.norm} {spec.threat.eps:.6g}{spec.threat.within}"),
            plain(_asked(spec)),
            *([str(spec.seed), plain(run.started[:16].replace("T", " "))] if more else []),
            f"{run.done}/{run.plan.n}",
            percent(result["robust_accuracy"])
            if result
            else " to ".join(map(percent, _bounds(kept, run).get("bounds", ()))),
        )
    shown.print(table)


@_verb("show")
def show(run: Name, store: Folder = STORE, json: Json = False) -> None:
    """Show the request of a run, what it found, and what it was computed with."""
    import dataclasses

    from rich.console import Console

    from tmifpe.cli.console import harmless, in_cli_words, plain, print_json, result_table
    from tmifpe.report.page.command import command

    kept = _store(store)
    found = find_run(kept, run)
    result, sessions = in_cli_words(kept.result(found)), kept.sessions(found)
    if json:
        told = found.to_json() | {"spec": found.spec.as_dict(), "plan": dataclasses.asdict(found.plan)}
        flags = [dataclasses.asdict(flag) for flag in result.flags]
        told["failures"] = [dataclasses.asdict(failure) for failure in result.failures]
        told["result"] = (found.result or result.to_json()) | {"flags": flags}
        print_json(told | {"sessions": [dataclasses.asdict(session) for session in sessions]})
        return
    shown = Console()
    shown.print(result_table(result))
    typer.echo(harmless(f"command: {command(result)}"))
    for failure in result.failures:
        for line in failure.traceback.splitlines():
            shown.print(plain(line), highlight=False)
    if found.finished is None:
        last = "; its checks have not run" if result.complete else ""
        shown.print(
            f"Not finished: {found.done} of {found.plan.n} examples{last}; run the same command again to resume."
        )
    for session in sessions:
        what = ", ".join(f"{name} {value}" for name, value in {**session.versions, **session.machine}.items())
        shown.print(plain(f"{session.started}: {session.shards} shards with {what}"), highlight=False)


@_verb("compare")
def compare(first: Name, second: Name, store: Folder = STORE, json: Json = False) -> None:
    """Compare two runs on the same examples: which broke what, and, under one threat, whether that is more than
    chance."""
    from rich.console import Console

    from tmifpe.cli.console import plain, print_json

    told = _compared(_store(store), first, second)
    if json:
        print_json(told)
        return
    shown = Console()
    for side, model in zip(("first", "second"), told["models"], strict=True):
        accuracy = told[side]["robust_accuracy"]
        attack = "; ".join(_short(attack) for attack in told[side]["attacks"])
        words = [f"{accuracy:.2%} robust", model, told["threats"][side], attack]
        shown.print(plain(f"{told[side]['run']}: {', '.join(words)}"))
    said = "the threats differ, so that this says nothing about the attacks, and no test is made"
    if told["p"] is not None:
        verdict = "more than chance" if told["differs"] else "may be chance"
        said = f"{verdict} (McNemar's exact test, p = {told['p']:.2g})"
    shown.print(f"broken only by the first {told['only_first']}, only by the second {told['only_second']}: {said}")
    for side in ("first", "second"):
        if indices := told[f"indices_{side}"]:
            more = f" and {len(indices) - _LISTED} more (--json has all)" if len(indices) > _LISTED else ""
            listed = ", ".join(map(str, indices[:_LISTED]))
            shown.print(f"only by the {side}, at index {listed}{more}", highlight=False)


def _compared(store: Store, first: str, second: str) -> dict[str, Any]:
    from tmifpe.core.stats import mcnemar
    from tmifpe.run.shown.titles import model_titles

    one, two = find_run(store, first), find_run(store, second)
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
    tested = one.spec.threat == two.spec.threat  # a larger ball breaks more, whatever the attack
    return {
        "first": one.to_json(),
        "second": two.to_json(),
        "models": model_titles([one.spec, two.spec]),
        "threats": {
            side: f"{threat.norm} {threat.eps:.6g}{threat.within}"
            for side, threat in (("first", one.spec.threat), ("second", two.spec.threat))
        },
        "only_first": pair.only_first,
        "only_second": pair.only_second,
        "p": pair.p if tested else None,
        "differs": pair.differs if tested else None,
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
    for run in [find_run(kept, name) for name in names]:  # all are found before any is removed
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
    eval_results: Annotated[
        str | None,
        typer.Option(
            metavar="FOLDER",
            help="For the Hugging Face Hub: write model-index.yaml and .eval_results/*.yaml to this folder.",
        ),
    ] = None,
    dataset: Annotated[
        str | None,
        typer.Option(metavar="ID", help="With --eval-results: the dataset's id on the Hub, if the run's is not known."),
    ] = None,
    task_id: Annotated[
        str | None,
        typer.Option(
            metavar="ID", help="With --eval-results: the task in the dataset's eval.yaml.  [default: robust-NORM-EPS]"
        ),
    ] = None,
) -> None:
    """Export the outcomes of a run, its adversarial examples, or its numbers for a model card."""
    from tmifpe.cli.console import wrote
    from tmifpe.cli.parse import write_file
    from tmifpe.store import adversarial
    from tmifpe.store import export as made

    ending = adversarial.check_ending(adv) if adv is not None else ""
    kept = _store(store)
    found = find_run(kept, run)
    if robustbench is not None:
        write_file(robustbench, made.robustbench_file(kept, found))
        wrote(robustbench)
    if adv is not None:
        write_file(adv, adversarial.adv_file(_with_adv(kept, found), ending))
        wrote(adv)
    if eval_results is not None:
        _for_the_hub(kept, found, eval_results, dataset, task_id)
    elif dataset is not None or task_id is not None:
        raise InputError("--dataset and --task-id go with --eval-results FOLDER")
    if output is not None:
        write_file(output, made.outcomes_file(kept, found, format))
        wrote(output)
    elif adv is None and robustbench is None and eval_results is None:
        if format == "parquet":
            raise InputError("Parquet is not text; name a file with --output FILE")
        for piece in made.outcomes_file(kept, found, format):
            typer.echo(piece.decode(), nl=False)


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


def _for_the_hub(store: Store, run: StoredRun, where: str, dataset: str | None, task: str | None) -> None:
    from tmifpe.cli.console import in_cli_words, remark
    from tmifpe.cli.parse import folder_from, write_file
    from tmifpe.report.hub import hub_entry, yaml_text

    result = in_cli_words(store.result(run))
    entry, folder = hub_entry(result, dataset, task, run.finished), folder_from(where)
    try:
        (folder / ".eval_results").mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"cannot make the folder {where}: {error.strerror or error}") from error
    files = {"model-index.yaml": {"model-index": entry.model_index}, f".eval_results/{entry.name}": entry.eval_results}
    for name, value in files.items():
        write_file(str(folder / name), yaml_text(value).encode())
        remark(f"wrote {folder / name}")
    remark("model-index.yaml belongs into the head of the model's README.md, between its two lines ---")


def _bounds(store: Store, run: StoredRun) -> dict[str, Any]:
    """Of the robust accuracy of a run that is not finished: it has no number."""
    return {} if run.result or not run.done else {"bounds": list(store.result(run).bounds)}


def _asked(spec: RunSpec) -> str:
    """The attacks and, where they are not the usual ones, what else tells the run from another: targets, seed, ..."""
    title = spec.attack_title
    words = [title if spec.is_named else "; ".join(_short(attack) for attack in spec.attacks)]
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
