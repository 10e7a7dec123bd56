"""tmifpe compare: one model under several losses, in the layout of the paper's Table 1."""

from __future__ import annotations

__all__ = ["checks_held", "compare", "comparison_table", "flags_raised"]

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tmifpe.cli.options import (
    AttackOptions,
    EngineOptions,
    OutputOptions,
    SourceOptions,
    StoreOptions,
    Track,
    TrustOptions,
)

if TYPE_CHECKING:
    from rich.table import Table

    from tmifpe.evaluation.compare import Comparison


def compare(
    *,
    source: SourceOptions,
    losses: Annotated[
        str,
        typer.Option(
            help="Losses or attacks, e.g. ce,tmifpe,'gama(momentum=0.75)',autoattack; ce+gama is a sequence.",
        ),
    ] = "ce,ce-margin,cw,dlr,mifpe,tmifpe",
    attack: AttackOptions,
    seeds: Annotated[str | None, typer.Option(help="Several seeds, e.g. 0,1,2: mean, spread and union.")] = None,
    trust: TrustOptions,
    engine: EngineOptions,
    output: OutputOptions,
    track: Track = None,
    keep: StoreOptions,
) -> None:
    """Compare losses on MODEL, everything else being equal."""
    from rich.console import Console

    import tmifpe
    from tmifpe.cli import console, parse
    from tmifpe.cli.attack import paper_from
    from tmifpe.cli.interrupt import interruptible
    from tmifpe.cli.provenance import provenance
    from tmifpe.cli.reports import check_trackers, tell_trackers
    from tmifpe.core.options import split_list
    from tmifpe.core.shown.formats import sheet_latex, sheet_markdown
    from tmifpe.evaluation.shown import comparison_sheet
    from tmifpe.report.comparison import significance, spread

    check_trackers(track, engine)
    names = split_list(losses)
    threat, base = parse.threat_from(attack, source.box), paper_from(attack)
    chosen = parse.seeds_from(seeds, attack.seed)
    classifier, data, device = parse.load_sources(source)
    options: dict[str, Any] = parse.request_from(attack, data) | {"device": device}
    options |= {"store": keep.folder, "fresh": keep.fresh, "seeds": chosen}
    options |= parse.checks_from(trust, data, device) | parse.engine_from(engine)
    del options["seed"]
    with interruptible(keep.folder) as check, console.progress_on_stderr(classifier.name) as progress:
        place = {name: f"{classifier.name}, {name} ({k} of {len(names)})" for k, name in enumerate(names, 1)}
        options["progress"] = lambda loss, step: (check(), progress(step, console.harmless(place[loss])))
        result = tmifpe.compare(classifier, data, threat, names, base, **options)
    result = replace(result, results={loss: tuple(map(console.in_cli_words, r)) for loss, r in result.results.items()})
    plain = result.to_json()
    if output.json:
        console.print_json(provenance(device) | plain)
    elif output.markdown or output.latex:
        sheet = comparison_sheet(result)
        said = (sheet.note, significance(plain["pairs"], plain["seeds"]), spread(plain), flags_raised(result))
        sheet = replace(sheet, note=" ".join(text for text in said if text))
        typer.echo(console.encodable(sheet_markdown(sheet) if output.markdown else sheet_latex(sheet)))
    else:
        shown = Console()
        shown.print(comparison_table(classifier.name, result))
        for said in (significance(plain["pairs"], plain["seeds"]), spread(plain)):
            if said:
                shown.print(said, highlight=False, markup=False)
        for note in dict.fromkeys(note for runs in result.results.values() for run in runs for note in run.notes):
            shown.print(f"Note: {console.harmless(note)}.", highlight=False, markup=False)
        if held := checks_held(result):
            shown.print(held, highlight=False, markup=False)
        if raised := flags_raised(result):
            shown.print(raised, style="yellow", highlight=False, markup=False)
    tell_trackers(track, [run for runs in result.results.values() for run in runs])
    if trust.strict:
        console.exit_if_flagged(flag for runs in result.results.values() for run in runs for flag in run.flags)


def comparison_table(title: str, result: Comparison) -> Table:
    """Robust accuracy in percent per loss, the difference to CE if that is one of them, the strongest in bold."""
    from rich import box
    from rich.table import Table

    from tmifpe.cli.console import percent, plain

    many = len(result.seeds) > 1
    first = next(iter(result.results.values()))[0]
    table = Table(
        title=plain(f"{title}: clean {percent(result.clean_accuracy)} %, {_asked(result)}"),
        caption=plain(_from_store(result)) or None,
        title_justify="left",
        caption_justify="left",
        box=box.SIMPLE_HEAD,  # eight columns fit a terminal of 80
        padding=(0, 1, 0, 0),
        show_edge=False,
    )
    second = plain(first.spec.verify) if first.spec.verify != "none" else ""
    headings = ["loss", "robust %", "95 % interval", *(["to CE"] if "ce" in result.results else []), "seconds"]
    headings += ["min", "max", "all seeds"] if many else []
    headings += [f"at {one.eps:.4g}" for one in first.radii[:-1]]
    headings += [f"in {second}"] if second else []
    headings += [f"over {len(first.repeated)} draws"] if first.repeated else []
    headings += ["with the given"] if first.transferred else []
    for heading in headings:
        if heading == "loss":  # folded where the terminal is narrow, since a cut name says nothing
            table.add_column(heading, overflow="fold", min_width=10)
        else:
            table.add_column(heading, justify="right")
    means = {loss: result.mean(loss) for loss in result.results}
    best = min(means.values())
    for loss, mean in means.items():
        values = result.accuracies(loss)
        bold = "bold" if mean == best else ""
        low, high = result.interval(loss)
        row = [
            plain(loss),
            percent(mean),
            f"{percent(low)} to {percent(high)}",
            *([f"{100 * (mean - means['ce']):+.2f}"] if "ce" in means else []),
            f"{sum(run.seconds for run in result.results[loss]):.1f}",
        ]
        if many:
            several = len(values) > 1  # AutoAttack is measured at the first seed only
            spread = [percent(min(values)), percent(max(values)), percent(result.worst_case(loss))]
            row += spread if several else ["", "", ""]
        seen = result.results[loss][0]  # smaller radii, second opinion, further draws, --transfer-adv: the first seed's
        row += [percent(one.robust_accuracy) for one in seen.radii[:-1]]
        row += [percent(seen.second_robust_accuracy)] if second else []
        row += [percent(sum(seen.repeated) / len(seen.repeated))] if first.repeated else []
        row += [percent(seen.transferred.united_robust_accuracy)] if seen.transferred else []
        table.add_row(*row, style=bold)
    return table


def _asked(result: Comparison) -> str:
    """The question that all columns answer: threat, examples, steps, targets."""
    from tmifpe.core.options import parse

    runs = [run for column in result.results.values() for run in column]
    spec = runs[0].spec
    options = [parse(attack)[1] for run in runs for attack in run.spec.attacks]
    steps = {int(option["steps"]) for option in options if "steps" in option}
    words = [f"{spec.threat.norm} {spec.threat.eps:.6g}{spec.threat.within}", f"{runs[0].n} examples"]
    words += [f"{' or '.join(str(number) for number in sorted(steps))} step{'s' * (steps != {1})}"] if steps else []
    words += [f"targets {spec.targets}"] if spec.targets != "none" else []
    return ", ".join(words)


def _from_store(result: Comparison) -> str:
    """Which columns were not computed now, or only in part."""
    said: list[str] = []
    for loss, runs in result.results.items():
        resumed, asked = sum(run.resumed for run in runs), sum(len(run.outcomes) for run in runs)
        if resumed:
            said.append(loss if resumed == asked else f"{loss} ({resumed} of {asked} verdicts)")
    return f"From the store: {', '.join(said)}." if said else ""


def checks_held(result: Comparison) -> str:
    """Which columns had checks cut short to keep them cheap, and which checks."""
    cut = {
        loss: dict.fromkeys(text for run in runs for text in run.checks_cut) for loss, runs in result.results.items()
    }
    said = "; ".join(f"{loss}: {', '.join(texts)}" for loss, texts in cut.items() if texts)
    return f"Checks held to 5 % of the cost: {said}." if said else ""


def flags_raised(result: Comparison) -> str:
    """Which columns have reasons to be doubted; `evaluate` says more of each."""
    raised = {
        loss: dict.fromkeys(flag.name for run in runs for flag in run.flags) for loss, runs in result.results.items()
    }
    said = "; ".join(f"{loss}: {', '.join(names)}" for loss, names in raised.items() if names)
    return f"Flags (tmifpe list flags): {said}." if said else ""
