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
    from tmifpe.core.types import Threat

    for path in (csv, figure):
        parse.check_output(path)
    if figure is not None:
        from tmifpe.report.radius_curve import check_figure

        check_figure(figure)
    threat = Threat(ball.norm, to, *parse.box_from(source.box))  # pyright: ignore[reportArgumentType]
    classifier, data, device = parse.load_sources(source)
    options: dict[str, Any] = parse.rows_from(how) | {"device": device, "certify": certify}
    options |= {"store": keep.folder, "fresh": keep.fresh}
    options |= parse.checks_from(trust, data, device) | parse.engine_from(engine)
    radii = parse.radii_from(at, "at") if at is not None else ()
    with interruptible(keep.folder) as check, console.progress_on_stderr(classifier.name) as progress:
        options["progress"] = lambda step: (check(), progress(step))
        found = tmifpe.curve(classifier, data, threat, resolution=resolution, at=radii, **options)
    found = replace(found, result=console.in_cli_words(found.result))
    console.exit_if_incomplete(found.result)
    if csv is not None:
        parse.write_file(csv, found.to_csv().encode())
    if figure is not None:
        from tmifpe.report.radius_curve import save_radius_curves

        save_radius_curves({found.result.spec.model: found}, figure)
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
    import math

    from rich import box
    from rich.table import Table

    from tmifpe.cli.console import percent, plain

    result = found.result
    proved = result.spec.certify != "none"
    median = f"{found.median:.4g}" if math.isfinite(found.median) else f"beyond {found.to:.4g}"
    table = Table(
        title=plain(f"{result.spec.model} on {result.spec.data}: {result.spec.threat.norm} 0 to {found.to:.6g}"),
        caption=plain(
            f"Half of the {result.n} examples are broken at {median}; mean accuracy over all radii "
            f"{percent(found.area)} %. {found.steps:.0f} steps per example, {result.seconds:.1f} s."
        ),
        title_justify="left",
        caption_justify="left",
        box=box.SIMPLE_HEAD,
        show_edge=False,
    )
    for heading in ("eps", "robust %", "95 % interval", *(["certified %"] if proved else [])):
        table.add_column(heading, justify="right")
    for one in found.stated or found.points[:: len(found.points) // 8]:
        low, high = map(percent, one.interval)
        row = [f"{one.eps:.6g}", percent(one.robust_accuracy), f"{low} to {high}"]
        table.add_row(*row, *([percent(one.certified_accuracy)] if one.certified_accuracy is not None else []))
    return table
