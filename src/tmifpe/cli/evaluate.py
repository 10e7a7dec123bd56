"""tmifpe evaluate: one model, one attack, one number."""

from __future__ import annotations

__all__ = ["evaluate"]

from typing import TYPE_CHECKING, Annotated, Any

import typer

from tmifpe.cli.options import AttackOptions, SourceOptions

if TYPE_CHECKING:
    from tmifpe.evaluation.result import Result


def evaluate(
    source: SourceOptions,
    attack: AttackOptions,
    loss: Annotated[str, typer.Option(help="The loss, e.g. tmifpe, ce, 'mifpe(T=10)'.")] = "tmifpe",
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout.")] = False,
    save_adv: Annotated[
        str | None, typer.Option(help="Write the adversarial examples to this safetensors file.")
    ] = None,
    fail_below: Annotated[
        float | None, typer.Option(help="Exit with 1 if the robust accuracy (a fraction) is below this.")
    ] = None,
) -> None:
    """Measure the robust accuracy of MODEL on DATA."""
    from rich.console import Console

    import tmifpe
    from tmifpe.cli import console, sources
    from tmifpe.core.errors import InputError

    if fail_below is not None and not 0 <= fail_below <= 1:
        raise InputError(f"--fail-below is a fraction in [0, 1], got {fail_below}")
    threat, chosen = sources.threat_from(attack), sources.attack_from(attack, loss)
    classifier, data, device = sources.load_sources(source)
    options: dict[str, Any] = sources.request_from(attack, data)
    options |= {"device": device, "keep_adv": save_adv is not None}
    with console.progress_on_stderr(classifier.name) as progress:
        result = tmifpe.evaluate(classifier, data, threat, chosen, progress=progress, **options)
    if save_adv is not None:
        _save(save_adv, result)
    if json:
        console.print_json(result.to_json())
    else:
        Console().print(console.result_table(result))
    if fail_below is not None and result.robust_accuracy < fail_below:
        Console(stderr=True).print(f"robust accuracy {result.robust_accuracy:.4f} is below {fail_below}", style="red")
        raise typer.Exit(1)


def _save(path: str, result: Result) -> None:
    import torch
    from safetensors.torch import save_file

    from tmifpe.core.errors import InputError

    outcomes, adv = result.outcomes, result.adv
    assert adv is not None  # noqa: S101 - asked for by keep_adv
    tensors = {
        "adv": adv.contiguous(),
        "labels": torch.from_numpy(outcomes.label.astype("int64")),
        "indices": torch.from_numpy(outcomes.index),
        "fooled": torch.from_numpy(outcomes.fooled),
    }
    try:
        save_file(tensors, path, metadata={"key": result.spec.key(), "model": result.spec.model})
    except OSError as error:
        raise InputError(f"cannot write {path}: {error}") from error
