"""tmifpe evaluate: one model, one attack, one number."""

from __future__ import annotations

__all__ = ["evaluate"]

from typing import Annotated, Any

import typer

from tmifpe.cli.options import AttackOptions, EngineOptions, SourceOptions, StoreOptions, TrustOptions


def evaluate(
    source: SourceOptions,
    attack: AttackOptions,
    keep: StoreOptions,
    trust: TrustOptions,
    engine: EngineOptions,
    loss: Annotated[
        str, typer.Option(help="The loss, e.g. tmifpe, ce, 'mifpe(T=10)'; or an attack: gama, autoattack.")
    ] = "tmifpe",
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout.")] = False,
    save_adv: Annotated[
        str | None, typer.Option(help="Write the adversarial examples to this .safetensors, .npz or .pt file.")
    ] = None,
    fail_below: Annotated[
        float | None, typer.Option(help="Exit with code 1 if the robust accuracy (a fraction) is below this.")
    ] = None,
    junit: Annotated[str | None, typer.Option(help="Write the verdict to this file as JUnit XML, for CI.")] = None,
) -> None:
    """Measure the robust accuracy of MODEL on DATA."""
    from rich.console import Console

    import tmifpe
    from tmifpe.cli import console, parse
    from tmifpe.cli.interrupt import interruptible
    from tmifpe.cli.provenance import provenance
    from tmifpe.core.errors import InputError
    from tmifpe.report.junit import junit_xml
    from tmifpe.run.resolve import resolve_attack
    from tmifpe.store.adversarial import adv_file, check_ending

    if fail_below is not None and not 0 <= fail_below <= 1:
        raise InputError(f"--fail-below is a fraction in [0, 1], got {fail_below}")
    parse.refuse_ignored_options(attack, loss)
    ending = check_ending(save_adv) if save_adv is not None else ""
    parse.check_output(save_adv)
    parse.check_output(junit)
    threat, chosen = parse.threat_from(attack), resolve_attack(loss, parse.attack_from(attack, "tmifpe"))
    classifier, data, device = parse.load_sources(source)
    options: dict[str, Any] = parse.request_from(attack, data)
    options |= {"device": device, "keep_adv": save_adv is not None, "store": keep.folder, "fresh": keep.fresh}
    options |= parse.checks_from(trust, data) | parse.engine_from(engine)
    with interruptible(keep.folder) as check, console.progress_on_stderr(classifier.name) as progress:
        options["progress"] = lambda step: (check(), progress(step))
        result = tmifpe.evaluate(classifier, data, threat, chosen, **options)
    result = console.in_cli_words(result)
    if save_adv is not None:
        parse.write_file(save_adv, adv_file(result, ending))
    if junit is not None:
        parse.write_file(junit, junit_xml(result, fail_below, trust.strict).encode())
    if json:
        console.print_json(provenance(device) | result.to_json())
    else:
        Console().print(console.result_table(result))
    console.exit_if_incomplete(result)
    if fail_below is not None and result.robust_accuracy < fail_below:
        Console(stderr=True).print(f"robust accuracy {result.robust_accuracy:.4f} is below {fail_below}", style="red")
        raise typer.Exit(1)
    if trust.strict:
        console.exit_if_flagged(result.flags)
