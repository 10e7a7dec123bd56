"""tmifpe table1: the paper's Table 1, measured again, next to the printed values."""

from __future__ import annotations

__all__ = ["table1"]

from typing import TYPE_CHECKING, Annotated, Any

import typer

from tmifpe.cli.options import OutputOptions, StoreOptions
from tmifpe.core.errors import InputError

if TYPE_CHECKING:
    from rich.console import Console


def table1(
    keep: StoreOptions,
    output: OutputOptions,
    rows: Annotated[
        str | None, typer.Option(help="Rows by id, number or words, e.g. mnist-fast,3,'cifar10 trades'; default all.")
    ] = None,
    losses: Annotated[
        str, typer.Option(help="Columns: losses or attacks.")
    ] = "ce,cw,dlr,gama(momentum=0.75),mifpe,tmifpe",
    limit: Annotated[int | None, typer.Option(min=1, help="Only the first N images of each row.")] = None,
    sample: Annotated[
        int | None, typer.Option(min=1, help="Only N images of each row, drawn from all classes.")
    ] = None,
    with_autoattack: Annotated[
        bool, typer.Option("--with-autoattack", help="Measure the real AutoAttack too (extra autoattack; slow).")
    ] = False,
    weights_dir: Annotated[str, typer.Option(help="Where the weights are, by file name or in the zoo's layout.")] = (
        "models"
    ),
    data_dir: Annotated[str, typer.Option(help="Where the data is: DATA_DIR/mnist, DATA_DIR/cifar10, ...")] = "data",
    seeds: Annotated[str, typer.Option(help="Several seeds, e.g. 0,1,2: mean, spread and union.")] = "0",
    steps: Annotated[int, typer.Option(min=1, help="Gradient steps; the paper uses 100.")] = 100,
    batch_size: Annotated[int | None, typer.Option(min=1, help="Examples per batch; default by image size.")] = None,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:1, mps.")] = "auto",
) -> None:
    """Measure the rows of the paper's Table 1 whose weights are available, and list what the others need."""
    from tmifpe.attacks import PGD
    from tmifpe.cli.console import harmless, progress_on_stderr
    from tmifpe.cli.interrupt import interruptible
    from tmifpe.cli.parse import folder_from, seeds_from
    from tmifpe.core.options import split_list
    from tmifpe.paper.rows import choose_rows
    from tmifpe.paper.table1 import measure_row
    from tmifpe.run.prepared_model import pick_device

    if limit is not None and sample is not None:
        raise InputError("--limit takes the first images and --sample draws some; give one of them")
    if rows is not None and not split_list(rows):
        raise InputError("--rows is empty; leave it out to measure every row, which takes many hours")
    chosen = choose_rows(split_list(rows) if rows is not None else [])
    columns = [*split_list(losses), *(["autoattack"] if with_autoattack else [])]
    columns = _checked(list(dict.fromkeys(columns)), steps)
    place = str(pick_device(device))
    options: dict[str, Any] = {"limit": limit, "device": place, "seeds": seeds_from(seeds, 0), "batch_size": batch_size}
    options |= {"sample": sample, "store": keep.folder, "fresh": keep.fresh}
    folders = folder_from(weights_dir), folder_from(data_dir)
    with interruptible(keep.folder) as check, progress_on_stderr("Table 1") as told:
        options["progress"] = lambda column, step: (check(), told(step, harmless(f"Table 1, {column}")))
        found = [measure_row(row, *folders, columns, PGD(steps=steps), **options).to_json() for row in chosen]
    _print(found, output, place)


def _checked(columns: list[str], steps: int) -> list[str]:
    """Report unknown columns and missing extras before any compute, even if no row can be measured."""
    from tmifpe.attacks import PGD
    from tmifpe.run.resolve import resolve_attack

    for column in columns:
        resolve_attack(column, PGD(steps=steps))
    return columns


def _print(rows: list[dict[str, Any]], output: OutputOptions, device: str) -> None:
    from rich.console import Console

    from tmifpe.cli.console import encodable, print_json
    from tmifpe.cli.provenance import provenance
    from tmifpe.report import table1 as report

    if output.json:
        print_json(provenance(device) | {"rows": rows})
    elif output.markdown or output.latex:
        typer.echo(encodable(report.markdown(rows) if output.markdown else report.latex(rows)), nl=False)
    else:
        _show(rows, Console())


def _show(rows: list[dict[str, Any]], console: Console) -> None:
    from tmifpe.cli.console import harmless
    from tmifpe.report import table1 as report
    from tmifpe.report.comparison import significance

    for row in rows:
        if row["status"] == "measured":
            console.print(_table(row))
            for said in (*row["remarks"], significance(row["pairs"], row["seeds"])):
                console.print(said, markup=False, highlight=False)
            console.print()
    missing = [row for row in rows if row["status"] == "missing"]
    if missing:
        console.print(f"{len(missing)} of {len(rows)} rows were not measured; they need:", highlight=False)
    for row in missing:
        console.print(f"  {report.heading(row)} [{row['id']}]", markup=False, highlight=False)
        console.print(f"      {harmless(row['needs'])}", style="dim", markup=False, highlight=False)


def _table(row: dict[str, Any]) -> Any:
    from rich.table import Table

    from tmifpe.cli.console import percent, plain
    from tmifpe.report import table1 as report

    many = len(row["seeds"]) > 1
    clean = row["clean"]
    accuracy = f"clean {percent(clean['measured'])} (printed {percent(clean['printed'])})"
    title = f"{report.heading(row)}: {row['n']} images, {accuracy}"
    table = Table(title=plain(title), title_justify="left")
    for head in ["column", "measured", "printed", "diff", "95 %", *(["min–max", "union"] if many else []), "s"]:
        if head == "column":  # folded where the terminal is narrow, since a cut name says nothing
            table.add_column(head, overflow="fold", min_width=10)
        else:
            table.add_column(head, justify="right", no_wrap=head not in ("95 %", "min–max"))
    best = min(column["measured"] for column in row["columns"].values())
    for name, column in row["columns"].items():
        printed = (
            ["", ""]
            if column["printed"] is None
            else [percent(column["printed"]), f"{100 * column['difference']:+.2f}"]
        )
        low, high = column["interval"]
        cells = [plain(name), percent(column["measured"]), *printed, f"{percent(low)} to {percent(high)}"]
        if many:
            several = len(column["values"]) > 1  # AutoAttack is measured at the first seed only
            spread = [f"{percent(column['min'])} to {percent(column['max'])}", percent(column["worst_case"])]
            cells += spread if several else ["", ""]
        cells.append(f"{sum(column['seconds']):.0f}")
        table.add_row(*cells, style="bold" if column["measured"] == best else "")
    return table
