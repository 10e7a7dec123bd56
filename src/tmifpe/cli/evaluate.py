"""tmifpe evaluate: one model, one attack, one number."""

from __future__ import annotations

__all__ = ["evaluate"]

import shlex
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tmifpe.cli.options import (
    STORE,
    AttackOptions,
    EngineOptions,
    GateOptions,
    SourceOptions,
    StoreOptions,
    Track,
    TrustOptions,
    Verbose,
)

if TYPE_CHECKING:
    from tmifpe.run.result import Result


def evaluate(
    *,
    source: SourceOptions,
    attack: Annotated[
        str | None,
        typer.Option(
            help="full, quick, paper, autoattack, 'pgd(loss=cw,steps=50)', ... or several in turn: ce,gama.  "
            "[default: full]",
        ),
    ] = None,
    loss: Annotated[
        str | None,
        typer.Option(
            help="The loss to climb, e.g. tmifpe, ce, 'mifpe(T=10)'; by full, beside its own.  [default: tmifpe]"
        ),
    ] = None,
    how: AttackOptions,
    trust: TrustOptions,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout.")] = False,
    save_adv: Annotated[
        str | None, typer.Option(help="Write the adversarial examples to this .safetensors, .npz or .pt file.")
    ] = None,
    certify: Annotated[
        bool, typer.Option("--certify", help="Prove what no Linf attack can break; see docs/certify.md.")
    ] = False,
    track: Track = None,
    verbose: Verbose = False,
    gate: GateOptions,
    keep: StoreOptions,
    engine: EngineOptions,
) -> None:
    """Measure the robust accuracy of MODEL on DATA."""
    from rich.console import Console

    from tmifpe.cli import console, parse
    from tmifpe.cli.provenance import provenance
    from tmifpe.cli.reports import Reports, check_trackers, tell_trackers
    from tmifpe.report.gates import Gates
    from tmifpe.store.adversarial import adv_file, check_ending

    gates = Gates(gate.fail_below, gate.fail_below_clean, gate.fail_below_lower, trust.strict)
    reports = Reports(gate.junit, gate.summary)
    ending = check_ending(save_adv) if save_adv is not None else ""
    parse.check_output(save_adv)
    reports.check()
    check_trackers(track, engine)
    more = {"keep_adv": save_adv is not None, "certify": certify, **parse.engine_from(engine)}
    with reports.also_on_failure(source.model):
        result, device = _measured(source, how, attack, loss, trust, keep, more)
    if save_adv is not None:
        parse.write_file(save_adv, adv_file(result, ending))
        console.wrote(save_adv)
    reports.write(result, gates)
    if json:
        console.print_json(provenance(device) | result.to_json())
    else:
        Console().print(console.result_table(result))
        if any(layer.dies for layer in result.layers):
            Console().print(console.layers_table(result.layers))
    if verbose:
        console.remark(f"tuning: {result.plan.tuning or 'off'}")
    if result.key and keep.folder is not None:
        short = result.key[:8]
        where = f" --store {shlex.quote(keep.folder)}" if keep.folder != STORE else ""
        console.remark(f"stored as {short} in {keep.folder}; tmifpe report {short}{where}")
    console.exit_if_incomplete(result)
    tell_trackers(track, [result])
    if missed := [case for case in gates.missed(result) if case.name != "no flags"]:
        for case in missed:
            Console(stderr=True).print(console.harmless(case.said), style="red", markup=False, highlight=False)
        raise typer.Exit(1)
    if trust.strict:
        console.exit_if_flagged(result.flags)
    for case in gates.required(result):
        console.remark(f"passed: {case.said}")


def _measured(
    source: SourceOptions,
    how: AttackOptions,
    attack: str | None,
    loss: str | None,
    trust: TrustOptions,
    keep: StoreOptions,
    more: dict[str, Any],
) -> tuple[Result, str]:
    """The result in the words of the command line, and the device that it was computed on."""
    import tmifpe
    from tmifpe.cli import console, parse
    from tmifpe.cli.attack import attack_from, weaker
    from tmifpe.cli.interrupt import interruptible

    threat, chosen = parse.threat_from(how, source.box), attack_from(how, attack, loss)
    if said := weaker(how, attack, loss):
        console.notice(said)
    classifier, data, device = parse.load_sources(source)
    options: dict[str, Any] = parse.request_from(how, data)
    options |= {"device": device, "store": keep.folder, "fresh": keep.fresh, **more}
    options |= parse.checks_from(trust, data, device)
    with interruptible(keep.folder) as check, console.progress_on_stderr(classifier.name) as progress:
        options["progress"] = lambda step: (check(), progress(step))
        result = tmifpe.evaluate(classifier, data, threat, chosen, **options)
    return console.in_cli_words(result), device
