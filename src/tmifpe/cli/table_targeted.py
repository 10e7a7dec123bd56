"""tmifpe table-targeted: how often each loss reaches its target class, which the paper does not report."""

from __future__ import annotations

__all__ = ["table_targeted"]

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tmifpe.cli.options import AttackOptions, SourceOptions, StoreOptions
from tmifpe.core.errors import InputError, shown

if TYPE_CHECKING:
    from rich.table import Table


def table_targeted(
    models: Annotated[list[str], typer.Argument(help="Models, as for evaluate; all on the same data.")],
    attack: AttackOptions,
    keep: StoreOptions,
    data: Annotated[
        str | None, typer.Option(help="A data source, e.g. mnist:DIR, npz:FILE.  [default: digits]")
    ] = None,
    weights: Annotated[list[str] | None, typer.Option(help="Weights, once per model and in their order.")] = None,
    mean: Annotated[str | None, typer.Option(help="Normalisation the models expect, e.g. 0.49,0.48,0.45.")] = None,
    std: Annotated[str | None, typer.Option(help="Standard deviations that go with --mean.")] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="Only the first N examples.")] = None,
    sample: Annotated[
        int | None, typer.Option(min=1, help="Only N examples, drawn at random from all classes by their share.")
    ] = None,
    sample_seed: Annotated[int, typer.Option(min=0, help="Another draw of --sample.")] = 0,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:1, mps.")] = "auto",
    losses: Annotated[str, typer.Option(help="Losses or attacks, separated by commas.")] = "ce,cw,dlr,mifpe,tmifpe",
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout.")] = False,
    markdown: Annotated[bool, typer.Option("--markdown", help="Print Markdown.")] = False,
) -> None:
    """Success rate of every loss on MODELS for targets least-likely, second and random (or those of --targets)."""
    from rich.console import Console

    from tmifpe.cli import console, parse
    from tmifpe.cli.attack import paper_from
    from tmifpe.cli.interrupt import interruptible
    from tmifpe.cli.provenance import provenance
    from tmifpe.core.options import split_list
    from tmifpe.paper.targeted import targeted_rows
    from tmifpe.report import targeted as report

    if weights and len(weights) != len(models):
        raise InputError(f"{len(models)} models need as many --weights, in their order, got {len(weights)}")
    rules = _rules(attack.targets)
    threat, base = parse.threat_from(attack), paper_from(attack)
    rows: list[dict[str, Any]] = []
    place = device
    with interruptible(keep.folder) as check, console.progress_on_stderr("targeted") as told:
        for model, file in zip(models, weights or [None] * len(models), strict=True):
            asked = SourceOptions(
                model, data, limit, sample, sample_seed, weights=file or None, mean=mean, std=std, device=device
            )
            classifier, images, place = parse.load_sources(asked)
            options = parse.request_from(replace(attack, targets=None), images)
            options |= {"device": place, "store": keep.folder, "fresh": keep.fresh}
            del options["targets"]
            title = console.harmless(classifier.name)
            options["progress"] = lambda loss, step, title=title: (check(), told(step, f"{title}, {loss}"))
            found = targeted_rows(classifier, images, threat, split_list(losses), rules, base, **options)
            rows += [row.to_json() for row in found]
    if json:
        console.print_json(provenance(place) | {"rows": rows})
    elif markdown:
        typer.echo(console.encodable(report.markdown(rows)))
    else:
        Console().print(_table(rows))


def _rules(text: str | None) -> list[str | int]:
    from tmifpe.core.errors import did_you_mean
    from tmifpe.core.numbers import parse_whole
    from tmifpe.core.options import split_list

    known = ("least-likely", "second", "random")
    rules: list[str | int] = []
    for word in split_list(text) if text is not None else known:
        number = parse_whole(word)
        if word not in known and number is None:
            raise did_you_mean("target", word, known)
        rules.append(word if number is None else number)
    if not rules:
        raise InputError(f"--targets needs at least one of {', '.join(known)} or a class number, got {shown(text)}")
    return rules


def _table(rows: list[dict[str, Any]]) -> Table:
    from rich.table import Table

    from tmifpe.cli.console import plain
    from tmifpe.report.targeted import STAR, cells

    losses = list(rows[0]["losses"])
    table = Table(
        title="Success rate in percent of the images attacked",
        caption=STAR,
        title_justify="left",
        caption_justify="left",
    )
    for head in ("model", "target", "attacked", *losses):
        table.add_column(plain(head), justify="left" if head in ("model", "target") else "right")
    for row in rows:
        table.add_row(plain(row["model"]), row["targets"], str(row["attacked"]), *cells(row, losses))
    return table
