"""tmifpe audit: how much of each loss's gradient is lost to floating point, for one model."""

from __future__ import annotations

__all__ = ["audit", "audit_table"]

import math
from typing import TYPE_CHECKING, Annotated

import typer

from tmifpe.cli.options import SourceOptions

if TYPE_CHECKING:
    from rich.table import Table

    from tmifpe.audits.audit import Audit
    from tmifpe.audits.gradient_errors import Quantiles


def audit(
    source: SourceOptions,
    precisions: Annotated[str, typer.Option(help="fp16, bf16, fp32, fp64, separated by commas.")] = "fp16,bf16,fp32",
    losses: Annotated[str, typer.Option(help="Losses, separated by commas.")] = "ce,ce-margin,cw,dlr,mifpe,tmifpe",
    batch_size: Annotated[int, typer.Option(min=1, help="Images per forward pass.")] = 64,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout.")] = False,
    out: Annotated[
        str | None, typer.Option(help="Write audit.json, audit.csv (a row per example) and audit.png to this folder.")
    ] = None,
) -> None:
    """Audit the gradients of MODEL on DATA: each loss in each precision against float64."""
    from rich.console import Console

    import tmifpe
    from tmifpe.cli import console, parse
    from tmifpe.core.errors import as_options
    from tmifpe.core.options import split_list
    from tmifpe.report.audit_files import prepare_folder, write_audit
    from tmifpe.run.shown.progress import Progress

    if out is not None:
        prepare_folder(out)
    classifier, data, _ = parse.load_sources(source)
    with console.progress_on_stderr("audit") as told:
        result = tmifpe.audit(
            classifier,
            data,
            split_list(losses),
            split_list(precisions),
            box=parse.box_from(source.box),
            batch_size=batch_size,
            progress=lambda done, total: told(Progress(total, done, 0, 0)),
        )
    if out is not None:
        for path in write_audit(result, out):
            console.wrote(path)
    if json:
        console.print_json(result.to_json())
        return
    screen = Console()
    screen.print(audit_table(result))
    if result.layers:
        screen.print(console.layers_table(result.layers))
    for line in (*_gap_lines(result), "", *map(as_options, result.advice), "", *_ran(result)):
        screen.print(line, highlight=False, markup=False)


def audit_table(result: Audit) -> Table:
    """One row per precision and loss: shares in percent, errors at their 99th percentile."""
    from rich import box
    from rich.table import Table

    from tmifpe.cli.console import plain

    title = f"{result.model} on {result.data}: {int(result.correct.sum())} correctly classified of {result.n}"
    table = Table(title=plain(title), title_justify="left", box=box.SIMPLE)
    for heading in ("format", "loss"):
        table.add_column(heading, no_wrap=True)
    flat = any(finding.input.flat for finding in result.findings)  # zero in float64 too: nothing that was lost
    for heading in (*(["none\n%"] if flat else []), "zero\n%", "label\nlost %", "NaN\n%",
                    "error p99\nby logits", "error p99\nby input",
                    "wrong\nsigns %"):  # fmt: skip
        table.add_column(heading, justify="right", no_wrap=True)
    for finding in result.findings:
        table.add_row(
            finding.precision,
            plain(finding.loss),
            *([_share(finding.input.flat)] if flat else []),
            _share(max(finding.logits.zero, finding.input.zero)),
            _share(finding.label_lost),
            _share(max(finding.logits.nonfinite, finding.input.nonfinite)),
            _p99(finding.logits.error),
            _p99(finding.input.error),
            _share(finding.sign_disagreement),
            end_section=finding.loss == result.losses[-1],
            style="" if finding.sound else "yellow",
        )
    return table


def _gap_lines(result: Audit) -> list[str]:
    """The gaps, and the thresholds at which plain cross-entropy loses its label."""
    plain = result.to_json()
    gap = {name: math.inf if value is None else value for name, value in plain["delta"].items()}
    above = ", ".join(f"{at['share_above']:.0%} above {at['delta']:.2f} ({p})" for p, at in plain["ce_dies"].items())
    return [
        f"Gap Δ of the two largest logits: {gap['min']:.3g} to {gap['max']:.3g}, median {gap['median']:.3g}.",
        f"CE loses its label there (two classes): {above}.",
        "error: relative; by logits: the loss's own arithmetic; by input: of network and loss together.",
    ]


def _share(value: float) -> str:
    return "0" if value == 0 else f"{100 * value:.1f}" if value >= 0.0005 else "<0.1"


def _p99(error: Quantiles) -> str:
    return "-" if error.p99 is None else f"{error.p99:.0e}" if error.p99 else "0"


def _ran(result: Audit) -> tuple[str, ...]:
    """What ran in which precision; one line if there is nothing to warn about."""
    if any("ran in it" not in note for note in result.notes):
        return result.notes
    return (f"The whole network ran in fp64 (the reference) and in {', '.join(result.precisions)}.",)
