"""tmifpe curve: robust accuracy at every radius, from one run."""

from __future__ import annotations

__all__ = ["curve"]

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tmifpe.cli.options import BallOptions, EngineOptions, RowOptions, SourceOptions, StoreOptions, TrustOptions

if TYPE_CHECKING:
    from rich.table import Table

    from tmifpe.evaluation.curve import Curve


def curve(
    *,
    source: SourceOptions,
    ball: BallOptions,
    to: Annotated[str, typer.Option(help="The largest radius, in the units of the box: 0.4, 16/255.")],
    resolution: Annotated[
        str | None,
        typer.Option(help="How narrow the bracket of every example is to be, as a radius.  [default: --to / 256]"),
    ] = None,
    at: Annotated[str | None, typer.Option(help="Radii to state, e.g. 4/255,8/255.")] = None,
    how: RowOptions,
    trust: TrustOptions,
    certify: Annotated[
        bool, typer.Option("--certify", help="And prove up to which radius no Linf attack breaks an example.")
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout.")] = False,
    csv: Annotated[str | None, typer.Option(help="Write the points of the curve to this file.")] = None,
    figure: Annotated[
        str | None, typer.Option(help="Draw the curve: a .png, .svg or .pdf file (needs the extra `plots`).")
    ] = None,
    keep: StoreOptions,
    engine: EngineOptions,
) -> None:
    """Measure the robust accuracy of MODEL at every radius up to --to."""
    from rich.console import Console
    from rich.table import Table

    import tmifpe
    from tmifpe.cli import console, parse
    from tmifpe.cli.interrupt import interruptible
    from tmifpe.cli.provenance import provenance
    from tmifpe.core.numbers import read_number, real_number
    from tmifpe.core.types import Threat

    for path in (csv, figure):
        parse.check_output(path)
    if figure is not None:
        from tmifpe.report.radius_curve import check_figure

        check_figure(figure)
    farthest = real_number("--to", read_number("--to", to), above=0)
    threat = Threat(ball.norm, farthest, *parse.box_from(source.box))
    classifier, data, device = parse.load_sources(source)
    options: dict[str, Any] = parse.rows_from(how) | {"device": device, "certify": certify}
    options |= {"store": keep.folder, "fresh": keep.fresh}
    options |= parse.checks_from(trust, data, device) | parse.engine_from(engine)
    radii = parse.radii_from(at, "at") if at is not None else ()
    title = f"{classifier.name} at {farthest:g}"  # where the bounds hold
    with interruptible(keep.folder) as check, console.progress_on_stderr(title) as progress:
        options["progress"] = lambda step: (check(), progress(step))
        found = tmifpe.curve(classifier, data, threat, resolution=resolution, at=radii, **options)
    found = replace(found, result=console.in_cli_words(found.result))
    console.exit_if_incomplete(found.result)
    if csv is not None:
        parse.write_file(csv, found.to_csv().encode())
        console.wrote(csv)
    if figure is not None:
        from tmifpe.report.radius_curve import save_radius_curves

        console.wrote(save_radius_curves({found.result.spec.model: found}, figure))
    if json:
        console.print_json(provenance(device) | found.to_json())
    else:
        remarks = Table(show_header=False, box=None)
        console.add_remarks(remarks, found.result)
        Console().print(curve_table(found))
        if remarks.row_count:
            Console().print(remarks)
    if trust.strict:
        console.exit_if_flagged(found.result.flags)


def curve_table(found: Curve) -> Table:
    """The radii that were asked for, or nine evenly spaced ones."""
    from rich import box
    from rich.table import Table

    from tmifpe.cli.console import plain
    from tmifpe.evaluation.shown_radii import curve_sheet

    sheet = curve_sheet(found)
    table = Table(
        title=plain(sheet.title),
        caption=plain(sheet.note),
        title_justify="left",
        caption_justify="left",
        box=box.SIMPLE_HEAD,
        show_edge=False,
    )
    for heading in sheet.head:
        table.add_column(heading, justify="right")
    for row in sheet.rows:
        table.add_row(*row)
    return table
