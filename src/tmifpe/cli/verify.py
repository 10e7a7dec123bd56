"""tmifpe verify: somebody else's adversarial examples, read again."""

from __future__ import annotations

__all__ = ["verify"]

from typing import TYPE_CHECKING, Annotated

import typer

from tmifpe.cli.options import STORE, ModelOptions, ThreatOptions

if TYPE_CHECKING:
    from rich.table import Table

    from tmifpe.evaluation.verification import Verification

_LISTED = 20  # indices, before the rest is counted


def verify(
    *,
    adv: Annotated[
        str, typer.Argument(help="A .safetensors, .npz or .pt file of adversarial examples, or RobustBench's tensor.")
    ],
    source: ModelOptions,
    threat: ThreatOptions,
    precision: Annotated[str | None, typer.Option(help="fp64, fp32, bf16 or fp16; default: the model's own.")] = None,
    batch_size: Annotated[str, typer.Option(help="Examples per batch, or auto.")] = "auto",
    run: Annotated[str | None, typer.Option(help="The key of a stored run to unite them with.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout.")] = False,
    store: Annotated[str, typer.Option(envvar="TMIFPE_STORE", help="The folder of the run store.")] = STORE,
) -> None:
    """Verify adversarial examples from a file: which are allowed, which break MODEL, what accuracy they imply."""
    from rich.console import Console

    import tmifpe
    from tmifpe.cli import console, parse
    from tmifpe.cli.pages.report import find_run
    from tmifpe.cli.provenance import provenance
    from tmifpe.core.errors import InputError
    from tmifpe.store.adversarial import read_adv

    if threat.eps is not None and "," in threat.eps:
        raise InputError("--eps takes one radius here: that of the ball in which the examples must lie")
    tensors, asked = read_adv(adv), parse.threat_from(threat, source.box)
    classifier, data, device = parse.load_sources(source)
    known = None
    if run is not None:
        kept = tmifpe.Store(store)
        found = find_run(kept, run)
        if found.done < found.plan.n:
            raise InputError(f"run {found.name} is not finished: {found.done} of {found.plan.n}; resume it first")
        known = kept.result(found)
    with console.prints_on_stderr():
        result = tmifpe.verify(
            classifier,
            data,
            asked,
            tensors,
            run=known,
            precision=precision,
            batch_size=parse.batch_size_from(batch_size),
            device=device,
        )
    if json:
        console.print_json(provenance(device) | {"file": adv} | result.to_json())
    else:
        Console().print(_table(adv, len(data), result))


def _table(file: str, asked: int, result: Verification) -> Table:
    from rich.table import Table

    from tmifpe.cli.console import percent, plain
    from tmifpe.core.errors import as_options

    told, threat = result.to_json(), result.threat
    interval = " to ".join(percent(bound) for bound in result.interval)
    outside = f"outside the ball {told['outside_ball']}, outside the box {told['outside_box']}"
    outside += f", not a number {told['not_a_number']}" if told["not_a_number"] else ""
    table = Table(title=plain(f"{file}: {result.model} on {result.data}"), show_header=False, title_justify="left")
    table.add_column(style="dim")
    table.add_column()
    left = f" of {asked} images; the file has no others" if result.n < asked else ""
    lost = len(told["indices_fooled_outside"])
    rows = [
        ("accuracy they imply", f"[bold]{percent(result.robust_accuracy)} %[/bold]  (95 %: {interval})"),
        ("clean accuracy", f"{percent(result.clean_accuracy)} %"),
        ("examples", f"{result.n}{left}"),
        ("threat", plain(f"{threat.norm}, eps {threat.eps:.6g}, box {threat.low:g} to {threat.high:g}")),
        ("inside ball and box", f"{told['inside']}; {outside}"),
        ("largest size", "not a number" if told["largest_size"] is None else f"{told['largest_size']:.6g}"),
        ("broken", f"{told['broken']} at index {_listed(told['indices_broken'])}"),
    ]  # fmt: skip
    if told["indices_outside"]:
        more = f", {lost} of which would change a correct answer" if lost else ""
        rows.append(("not counted", f"outside, at index {_listed(told['indices_outside'])}{more}"))
    if result.run is not None and result.united_accuracy is not None:
        rows += [
            ("the run alone", f"{percent(result.run.robust_accuracy)} %"),
            ("united with the run", f"[bold]{percent(result.united_accuracy)} %[/bold]"),
            ("broken only by these", f"{len(result.only_these)} at index {_listed(result.only_these)}"),
            ("broken only by the run", f"{len(told['indices_only_run'])} at index {_listed(told['indices_only_run'])}"),
        ]
    rows += [("note", plain(as_options(note))) for note in result.notes]
    for name, text in rows:
        table.add_row(name, text.removesuffix(" at index "))
    return table


def _listed(indices: list[int]) -> str:
    more = f" and {len(indices) - _LISTED} more (--json has all)" if len(indices) > _LISTED else ""
    return ", ".join(map(str, indices[:_LISTED])) + more
