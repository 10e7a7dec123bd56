"""tmifpe demo: what the toolkit is about, on two bundled models, in less than a minute."""

from __future__ import annotations

__all__ = ["demo"]

from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from rich.console import Console

    from tmifpe.core.types import Classifier, Data
    from tmifpe.evaluation.compare import Comparison
    from tmifpe.evaluation.curve import Curve
    from tmifpe.report.page.reported import Reported

EPS = 0.15
EXAMPLES = 300
STEPS = 100
FEW = 12
"""Images whose certificates are computed: each takes as long as a hundred attacks."""
MODELS = ("digits-robust", "digits-distilled")


def demo(
    out: Annotated[
        str, typer.Option(help="Where to save the figure (needs the extra `plots`); report.html is written beside it.")
    ] = "demo/tmifpe-demo.png",
) -> None:
    """Attack the two bundled models with every loss and say what it shows."""
    from rich.console import Console

    import tmifpe
    from tmifpe.cli import console
    from tmifpe.cli.compare import comparison_table

    data, threat = tmifpe.load_data("digits", limit=EXAMPLES), tmifpe.Threat("linf", EPS)
    shown, results, reports = Console(), {}, []
    shown.print(f"PGD-{STEPS} at linf {EPS} on {len(data)} handwritten digits, every loss in turn:", highlight=False)
    for name in MODELS:
        model = tmifpe.load_model(name)
        with console.progress_on_stderr(name) as progress:
            results[name] = tmifpe.compare(
                model,
                data,
                threat,
                attack=tmifpe.PGD(steps=STEPS),
                keep_adv=True,
                progress=lambda loss, step, told=progress, name=name: told(step, f"{name}, {loss}"),
            )
        reports += _reported(results[name], data, model)
        shown.print(comparison_table(name, results[name]))
    shown.print(_paragraph(results), highlight=False, markup=False)
    with console.progress_on_stderr(f"every radius, here at {2 * EPS:g}") as progress:
        line = tmifpe.curve(
            tmifpe.load_model(MODELS[0]),
            tmifpe.load_data("digits", limit=FEW),
            tmifpe.Threat("linf", 2 * EPS),
            certify=True,
            checks=False,
            progress=progress,
        )
    shown.print(_between(line), highlight=False, markup=False)
    _figure(results, line, out, shown)
    _report(reports, out, shown)


def _paragraph(results: dict[str, Comparison]) -> str:
    def percent(model: str, loss: str) -> float:
        return 100 * results[model].accuracies(loss)[0]

    robust, distilled = MODELS
    over = percent(distilled, "ce") - percent(distilled, "tmifpe")
    apart = abs(percent(robust, "ce") - percent(robust, "tmifpe"))
    return (
        f"What it shows: {distilled} was trained by defensive distillation, which inflates its logits. Plain "
        f"cross-entropy then has a gradient of exactly zero in float32 and reports {percent(distilled, 'ce'):.1f} % "
        f"robust accuracy; T-MIFPE, which rescales the logits first, finds {percent(distilled, 'tmifpe'):.1f} %. The "
        f"difference of {over:.1f} points is robustness that was never there. On {robust}, which really was trained "
        f"against attacks, the two are {apart:.1f} points apart: where floating point does no harm, the losses agree."
    )


def _between(line: Curve) -> str:
    """What the two curves of the figure say at one radius."""
    at = line.point(EPS / 3)
    proved = 100 * (at.certified_accuracy or 0.0)
    return (
        f"An attack gives an upper bound, a proof a lower one. On {line.result.n} images of {MODELS[0]} at linf "
        f"{at.eps:g}: certified {proved:.0f} % <= robust <= attacked {100 * at.robust_accuracy:.0f} %. The figure has "
        "both at every radius."
    )


def _figure(results: dict[str, Comparison], line: Curve, out: str, shown: Console) -> None:
    from tmifpe.core.errors import MissingExtra
    from tmifpe.report.bars import save_bars

    try:
        path = save_bars(results, out, f"Robust accuracy under PGD-{STEPS}, linf {EPS}", {MODELS[0]: line})
    except MissingExtra as error:
        shown.print(f"No figure: {error}", highlight=False, markup=False)
        return
    shown.print(f"Figure: {path}", highlight=False, markup=False)


def _reported(row: Comparison, data: Data, model: Classifier) -> list[Reported]:
    """Every loss with some of its examples; the adversarial ones are let go."""
    from dataclasses import replace

    from tmifpe.cli.console import in_cli_words
    from tmifpe.cli.pages.gallery import gallery_of
    from tmifpe.report.page.reported import Reported

    reports = []
    for (result,) in row.results.values():
        pictures, note = gallery_of(result, data, model, 500 // (len(MODELS) * len(row.results)))
        told = replace(in_cli_words(result), adv=None)
        reports.append(Reported(told, pictures=pictures, pictures_note=note))
    return reports


def _report(reports: list[Reported], out: str, shown: Console) -> None:
    from pathlib import Path

    from tmifpe.cli.parse import write_file
    from tmifpe.report.page.render import report_html

    path = Path(out).expanduser().with_name("report.html")
    path.parent.mkdir(parents=True, exist_ok=True)
    write_file(str(path), report_html(reports).encode(errors="replace"))
    shown.print(f"Report: {path} (open it in a browser)", highlight=False, markup=False)
