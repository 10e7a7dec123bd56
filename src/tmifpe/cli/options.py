"""Options that several verbs share, written once.

A verb takes one parameter of a dataclass type; its fields become options of the verb, by `with_options`.
"""

from __future__ import annotations

__all__ = [
    "DIGITS",
    "STORE",
    "AttackOptions",
    "EngineOptions",
    "SourceOptions",
    "StoreOptions",
    "TrustOptions",
    "with_options",
]

import dataclasses
import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, get_type_hints

import typer

from tmifpe.core.errors import InputError, MisfitError

DIGITS = "digits"
"""The data if --data names none: what the bundled models were made for."""


@dataclass(frozen=True)
class SourceOptions:
    """Which model on which data, and where it runs."""

    model: Annotated[
        str, typer.Argument(help="A bundled name, file.py:factory, module:factory, x.onnx, timm:NAME, ...")
    ]
    data: Annotated[
        str | None, typer.Option(help="A data source, e.g. npz:FILE, mnist:DIR, cifar10:DIR.  [default: digits]")
    ] = None
    weights: Annotated[str | None, typer.Option(help="Weights for the architecture: safetensors or a state dict.")] = (
        None
    )
    mean: Annotated[str | None, typer.Option(help="Normalisation the model expects, e.g. 0.49,0.48,0.45.")] = None
    std: Annotated[str | None, typer.Option(help="Standard deviations that go with --mean.")] = None
    limit: Annotated[int | None, typer.Option(min=1, help="Only the first N examples.")] = None
    indices: Annotated[str | None, typer.Option(help="A file of example indices to evaluate.")] = None
    sample: Annotated[
        int | None, typer.Option(min=1, help="Only N examples, drawn at random, always the same, from all classes.")
    ] = None
    device: Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:1, mps.")] = "auto"


@dataclass(frozen=True)
class AttackOptions:
    """What the attacker may do, and how it goes about it."""

    norm: Annotated[str, typer.Option(help="linf (or inf), l2 (or 2).")] = "linf"
    eps: Annotated[str, typer.Option(help="The radius of the ball, e.g. 0.3 or 8/255.")] = "8/255"
    steps: Annotated[int, typer.Option(min=1, help="Gradient steps per restart.")] = 100
    restarts: Annotated[int, typer.Option(min=1, help="Random starts per example.")] = 1
    schedule: Annotated[str, typer.Option(help="Step sizes of PGD on a loss: cosine, linear, constant or drops.")] = (
        "cosine"
    )
    momentum: Annotated[
        float,
        typer.Option(help="Momentum of PGD on a loss, 0 for none. Other attacks take theirs in parentheses."),
    ] = 0.75
    targets: Annotated[
        str | None, typer.Option(help="Targeted: second, least-likely, random, a class, or a file of classes.")
    ] = None
    mode: Annotated[str, typer.Option(help="verdict (stop at the first success) or strongest (take all steps).")] = (
        "verdict"
    )
    precision: Annotated[str | None, typer.Option(help="fp64, fp32, bf16 or fp16; default: the model's own.")] = None
    seed: Annotated[int, typer.Option(min=0, help="Seed of the random starts.")] = 0
    eot: Annotated[int, typer.Option(min=1, help="Draws to average per query of a randomised model (EOT).")] = 1
    batch_size: Annotated[str, typer.Option(help="Examples per batch, or auto.")] = "auto"
    shard_size: Annotated[
        int | None,
        typer.Option(min=1, help="Examples per stored shard; by default chosen from the image size and the attack."),
    ] = None


@dataclass(frozen=True)
class TrustOptions:
    """What is done around the attack so that its number can be trusted."""

    checks: Annotated[
        bool, typer.Option(help="Look for reasons to doubt the number, on at most 64 examples; see docs/flags.md.")
    ] = True
    strict: Annotated[bool, typer.Option("--strict", help="Exit with code 3 if any flag is raised.")] = False
    verify: Annotated[
        str | None, typer.Option(help="A second precision, e.g. fp64, in which to verify every adversarial example.")
    ] = None
    repeats: Annotated[
        int, typer.Option(min=1, help="Read the result on a randomised model this many times: mean and interval.")
    ] = 1
    transfer_adv: Annotated[
        str | None, typer.Option(help="Adversarial examples of another model (a --save-adv file) to try as well.")
    ] = None

    def __post_init__(self) -> None:
        if self.strict and not self.checks:
            raise InputError("--strict looks at flags, and --no-checks raises none; leave one of them out")


@dataclass(frozen=True)
class EngineOptions:
    """Who computes the shards, and which of them."""

    workers: Annotated[
        str | None, typer.Option(help="Compute in N processes on this machine, or auto: one per GPU, or per core.")
    ] = None
    shard: Annotated[
        str | None, typer.Option(help="Only part I/N of the shards, for an array job; auto: as the scheduler says.")
    ] = None
    retries: Annotated[int, typer.Option(min=0, help="How often a worker's failed shard is tried again.")] = 2
    shard_timeout: Annotated[
        float | None, typer.Option(help="Seconds that a worker may take for one shard.  [default: any]")
    ] = None


STORE = "tmifpe-runs"
"""The folder of the run store, if neither --store nor TMIFPE_STORE names another."""


@dataclass(frozen=True)
class StoreOptions:
    """Where results are kept, so that the same request resumes or returns them."""

    store: Annotated[str, typer.Option(envvar="TMIFPE_STORE", help="The folder of the run store.")] = STORE
    no_store: Annotated[bool, typer.Option("--no-store", help="Keep nothing on disk.")] = False
    fresh: Annotated[bool, typer.Option("--fresh", help="Repeat the run even if the store has it.")] = False

    @property
    def folder(self) -> str | None:
        return None if self.no_store else self.store


def with_options(verb: Callable[..., Any]) -> Callable[..., Any]:
    """Replace every parameter of a dataclass type by that dataclass's fields, for Typer to see."""
    hints = get_type_hints(verb, include_extras=True)
    plain: list[inspect.Parameter] = []
    groups: dict[str, tuple[type, list[str]]] = {}
    for name, parameter in inspect.signature(verb).parameters.items():
        kind = hints[name]
        if not dataclasses.is_dataclass(kind):
            plain.append(parameter.replace(annotation=kind))
            continue
        of_field = get_type_hints(kind, include_extras=True)
        groups[name] = (kind, [field.name for field in dataclasses.fields(kind)])  # pyright: ignore[reportArgumentType]
        for field in dataclasses.fields(kind):
            default = inspect.Parameter.empty if field.default is dataclasses.MISSING else field.default
            plain.append(
                inspect.Parameter(
                    field.name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=of_field[field.name]
                )
            )

    @functools.wraps(verb)
    def called(**values: Any) -> Any:
        forgotten = values.get("data", "") is None
        grouped = {
            name: kind(**{field: values.pop(field) for field in fields}) for name, (kind, fields) in groups.items()
        }
        try:
            return verb(**grouped, **values)
        except MisfitError as error:
            if not forgotten:
                raise
            raise InputError(f"--data is missing, and {DIGITS}, used without it, does not fit: {error}") from error

    keyword = [parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in plain]
    called.__signature__ = inspect.Signature(keyword)  # pyright: ignore[reportAttributeAccessIssue]
    called.__annotations__ = {parameter.name: parameter.annotation for parameter in keyword}
    return called
