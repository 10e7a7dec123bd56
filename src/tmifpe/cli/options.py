"""Options that several verbs share, written once.

A verb takes one parameter of a dataclass type; its fields become options of the verb, by `with_options`, which --help
shows under the dataclass's title.
"""

from __future__ import annotations

__all__ = [
    "DIGITS",
    "STORE",
    "AttackOptions",
    "BallOptions",
    "EngineOptions",
    "GateOptions",
    "ModelOptions",
    "OutputOptions",
    "RowOptions",
    "SourceOptions",
    "StepOptions",
    "StoreOptions",
    "ThreatOptions",
    "Track",
    "TrustOptions",
    "with_options",
]

import dataclasses
import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, get_type_hints

import typer

from tmifpe.cli.command import ENGINE, GATES, OUTPUT, TRUST, WHAT, WITH
from tmifpe.cli.listing import complete_attacks, complete_data, complete_losses, complete_models, complete_norms
from tmifpe.core.errors import InputError, MisfitError

_OWN = {
    WHAT: "data weights mean std limit sample sample_seed device rows weights_dir data_dir",
    WITH: "attack loss losses seeds steps precision precisions batch_size with_autoattack",
    TRUST: "run",
}
_TITLES = {name: title for title, names in _OWN.items() for name in names.split()}
"""Where --help shows the options that a verb has for itself; any other says what to print or write."""

_COMPLETED = {
    "model": complete_models,
    "from_model": complete_models,
    "data": complete_data,
    "norm": complete_norms,
    "loss": complete_losses,
    "losses": complete_attacks,
    "attack": complete_attacks,
}
"""What the shell completes, by the name of the option, in every verb."""

DIGITS = "digits"
"""The data if --data names none: what the bundled models were made for."""


@dataclass(frozen=True)
class SourceOptions:
    """Which model on which data, and where it runs."""

    title: ClassVar[str] = WHAT

    model: Annotated[
        str, typer.Argument(help="A bundled name, file.py:factory, x.onnx, timm:NAME, clip:NAME, ensemble:A+B, ...")
    ]
    data: Annotated[
        str | None, typer.Option(help="A data source, e.g. npz:FILE, mnist:DIR, cifar10:DIR.  [default: digits]")
    ] = None
    limit: Annotated[int | None, typer.Option(min=1, help="Only the first N examples.")] = None
    sample: Annotated[
        int | None, typer.Option(min=1, help="Only N examples, drawn at random from all classes by their share.")
    ] = None
    sample_seed: Annotated[
        int, typer.Option(min=0, help="Another draw of --sample; --seed leaves the examples as they are.")
    ] = 0
    weights: Annotated[
        str | None, typer.Option(help="Weights for the architecture: safetensors or a state dict; A+B for an ensemble.")
    ] = None
    mean: Annotated[str | None, typer.Option(help="Normalisation the model expects, e.g. 0.49,0.48,0.45.")] = None
    std: Annotated[str | None, typer.Option(help="Standard deviations that go with --mean.")] = None
    classes: Annotated[
        str | None,
        typer.Option(help="Image folders and clip:NAME: a file of class names in the model's order, one per line."),
    ] = None
    template: Annotated[
        str | None, typer.Option(help="clip:NAME: the sentence about a class.  [default: 'a photo of a {}.']")
    ] = None
    resize: Annotated[str | None, typer.Option(help="Image folders: 256, 256:bicubic, 224x224, Res256Crop224, ...")] = (
        None
    )
    crop: Annotated[int | None, typer.Option(min=1, help="Image folders: the centre of this size.")] = None
    indices: Annotated[str | None, typer.Option(help="A file of example indices to evaluate.")] = None
    device: Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:1, mps.")] = "auto"
    box: Annotated[
        str | None,
        typer.Option(help="LOW,HIGH of the numbers the model takes, e.g. 0,255 or -1,1.  [default: 0,1]"),
    ] = None


@dataclass(frozen=True)
class ModelOptions(SourceOptions):
    """The same for a verb whose argument is something else: the model is an option."""

    model: Annotated[
        str,
        typer.Option(
            "--model", help="A bundled name, file.py:factory, x.onnx, timm:NAME, clip:NAME, ensemble:A+B, ..."
        ),
    ]


@dataclass(frozen=True)
class BallOptions:
    """How far is measured."""

    title: ClassVar[str] = WITH

    norm: Annotated[str, typer.Option(help="linf (or inf), l2 (or 2), l1 (or 1).")] = "linf"


@dataclass(frozen=True)
class ThreatOptions(BallOptions):
    """What the attacker may do."""

    eps: Annotated[
        str | None,
        typer.Option(
            help="The radius of the ball in the units of the box: 0.3, 8/255, or several: 2/255,8/255.  "
            "[default: 8/255 of the box]"
        ),
    ] = None


@dataclass(frozen=True)
class StepOptions(ThreatOptions):
    """And how it goes about it. None: what the attack itself has."""

    steps: Annotated[
        int | None,
        typer.Option(min=1, help="Gradient steps per restart; full takes more beside its own.  [default: 100]"),
    ] = None
    restarts: Annotated[
        int | None, typer.Option(min=1, help="Random starts per example; full takes more beside its own.  [default: 1]")
    ] = None
    schedule: Annotated[
        str | None, typer.Option(help="Step sizes: cosine, linear, constant or drops.  [default: cosine]")
    ] = None
    momentum: Annotated[
        float | None, typer.Option(help="Momentum of the steps, 0 for none; of paper.  [default: 0.75]")
    ] = None
    targets: Annotated[
        str | None, typer.Option(help="Targeted: second, least-likely, random, a class, or a file of classes.")
    ] = None
    mode: Annotated[str, typer.Option(help="verdict (stop at the first success) or strongest (take all steps).")] = (
        "verdict"
    )


@dataclass(frozen=True)
class RowOptions:
    """How examples are computed, whatever the attack."""

    title: ClassVar[str] = WITH

    precision: Annotated[str | None, typer.Option(help="fp64, fp32, bf16 or fp16; default: the model's own.")] = None
    seed: Annotated[int, typer.Option(min=0, help="Seed of the random starts.")] = 0
    eot: Annotated[int, typer.Option(min=1, help="Draws to average per query of a randomised model (EOT).")] = 1
    batch_size: Annotated[str, typer.Option(help="Examples per batch, or auto.")] = "auto"
    tune: Annotated[
        str,
        typer.Option(
            envvar="TMIFPE_TUNE",
            help="Look for a faster way to run the model (auto: for 2 % of the run; full: whatever it takes) and let "
            "examples leave that are out of reach; off: every step of every example, on the model as it is.",
        ),
    ] = "auto"
    shard_size: Annotated[
        int | None,
        typer.Option(min=1, help="Examples per stored shard; by default chosen from the image size and the attack."),
    ] = None
    straight_through: Annotated[
        list[str],
        typer.Option(
            metavar="PATTERN",
            help="Modules, by name or pattern, that gradients pass as the identity (BPDA). May be repeated.",
        ),
    ] = dataclasses.field(default_factory=list)


@dataclass(frozen=True)
class AttackOptions(RowOptions, StepOptions):
    """All that an attack is told."""


@dataclass(frozen=True)
class TrustOptions:
    """What is done around the attack so that its number can be trusted."""

    title: ClassVar[str] = TRUST

    checks: Annotated[
        bool,
        typer.Option(
            help="Look for reasons to doubt the number: at most 5 % of the cost from 500 examples on, more below; "
            "see docs/flags.md."
        ),
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

    spot_check: Annotated[
        str | None,
        typer.Option(
            metavar="N[:ATTACK]",
            help="Try a stronger attack (autoattack) on N random survivors, and say how many it would break.",
        ),
    ] = None
    from_model: Annotated[
        str | None,
        typer.Option(metavar="SOURCE", help="Another model, whose gradients to follow as well; named like MODEL."),
    ] = None

    def __post_init__(self) -> None:
        if self.strict and not self.checks:
            raise InputError("--strict looks at flags, and --no-checks raises none; leave one of them out")


@dataclass(frozen=True)
class GateOptions:
    """What a result must reach for a CI to go on, and the files that tell it."""

    title: ClassVar[str] = GATES

    fail_below: Annotated[
        float | None, typer.Option(help="Exit with code 1 if the robust accuracy (a fraction) is below this.")
    ] = None
    fail_below_clean: Annotated[float | None, typer.Option(help="The same for the clean accuracy.")] = None
    fail_below_lower: Annotated[
        float | None, typer.Option(help="The same for the lower end of the 95 % interval of the robust accuracy.")
    ] = None
    junit: Annotated[
        str | None, typer.Option(help="Write the verdicts to this file as JUnit XML, also if the run fails.")
    ] = None
    summary: Annotated[
        str | None, typer.Option(help="Write a summary in Markdown to this file, also if the run fails.")
    ] = None


@dataclass(frozen=True)
class EngineOptions:
    """Who computes the shards, and which of them."""

    title: ClassVar[str] = ENGINE

    engine: Annotated[
        str | None,
        typer.Option(
            help="local, processes, ray (on this machine) or ray:HOST:PORT.  [default: local; processes with --workers]"
        ),
    ] = None
    workers: Annotated[
        str | None, typer.Option(help="Compute in N processes or Ray actors, or auto: one per GPU, or per core.")
    ] = None
    shard: Annotated[
        str | None, typer.Option(help="Only part I/N of the shards, for an array job; auto: as the scheduler says.")
    ] = None
    retries: Annotated[int, typer.Option(min=0, help="How often a worker's failed shard is tried again.")] = 2
    shard_timeout: Annotated[
        float | None, typer.Option(help="Seconds that a worker may take for one shard.  [default: any]")
    ] = None


@dataclass(frozen=True)
class OutputOptions:
    """How a table is printed; for a terminal by default."""

    title: ClassVar[str] = OUTPUT

    json: Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout.")] = False
    markdown: Annotated[bool, typer.Option("--markdown", help="Print Markdown.")] = False
    latex: Annotated[bool, typer.Option("--latex", help="Print a LaTeX tabular.")] = False

    def __post_init__(self) -> None:
        if self.json + self.markdown + self.latex > 1:
            raise InputError("choose one of --json, --markdown and --latex")


STORE = "tmifpe-runs"
"""The folder of the run store, if neither --store nor TMIFPE_STORE names another."""


@dataclass(frozen=True)
class StoreOptions:
    """Where results are kept, so that the same request resumes or returns them."""

    title: ClassVar[str] = OUTPUT

    store: Annotated[str, typer.Option(envvar="TMIFPE_STORE", help="The folder of the run store.")] = STORE
    no_store: Annotated[bool, typer.Option("--no-store", help="Keep nothing on disk.")] = False
    fresh: Annotated[bool, typer.Option("--fresh", help="Repeat the run even if the store has it.")] = False

    @property
    def folder(self) -> str | None:
        return None if self.no_store else self.store


Quiet = Annotated[
    bool, typer.Option("--quiet", "-q", help="No progress and no remarks on stderr; results and errors stay.")
]


Verbose = Annotated[
    bool, typer.Option("--verbose", "-v", help="Say on stderr how the model was run, and what that gained.")
]


Track = Annotated[
    list[str] | None,
    typer.Option(
        metavar="TRACKER[:WHERE]",
        help="Log the numbers to mlflow[:URI], wandb[:PROJECT] or tensorboard[:DIR]. May be repeated.",
    ),
]


def with_options(verb: Callable[..., Any]) -> Callable[..., Any]:
    """Replace every parameter of a dataclass type by that dataclass's fields, for Typer to see, and add --quiet: a verb
    with so many options computes."""
    hints = get_type_hints(verb, include_extras=True)
    plain: list[inspect.Parameter] = []
    groups: dict[str, tuple[type, list[str]]] = {}
    for name, parameter in inspect.signature(verb).parameters.items():
        kind = hints[name]
        if not dataclasses.is_dataclass(kind):
            plain.append(parameter.replace(annotation=_titled(kind, _TITLES.get(name, OUTPUT), name)))
            continue
        of_field = get_type_hints(kind, include_extras=True)
        groups[name] = (kind, [field.name for field in dataclasses.fields(kind)])  # pyright: ignore[reportArgumentType]
        for field in dataclasses.fields(kind):
            default = inspect.Parameter.empty if field.default is dataclasses.MISSING else field.default
            default = field.default_factory() if field.default_factory is not dataclasses.MISSING else default
            plain.append(
                inspect.Parameter(
                    field.name,
                    inspect.Parameter.KEYWORD_ONLY,
                    default=default,
                    annotation=_titled(of_field[field.name], getattr(kind, "title", OUTPUT), field.name),
                )
            )

    quiet = inspect.Parameter("quiet", inspect.Parameter.KEYWORD_ONLY, default=False, annotation=_titled(Quiet, OUTPUT))
    plain.append(quiet)

    @functools.wraps(verb)
    def called(**values: Any) -> Any:
        from tmifpe.cli.console import hushed

        hush = hushed(values.pop("quiet"))
        forgotten = values.get("data", "") is None
        grouped = {
            name: kind(**{field: values.pop(field) for field in fields}) for name, (kind, fields) in groups.items()
        }
        try:
            with hush:
                return verb(**grouped, **values)
        except MisfitError as error:
            if not forgotten:
                raise
            raise InputError(f"--data is missing, and {DIGITS}, used without it, does not fit: {error}") from error

    keyword = [parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in plain]
    called.__signature__ = inspect.Signature(keyword)  # pyright: ignore[reportAttributeAccessIssue]
    called.__annotations__ = {parameter.name: parameter.annotation for parameter in keyword}
    return called


def _titled(annotation: Any, title: str, name: str = "") -> Any:
    """The annotation of an option that --help shows under `title`, and that the shell completes if it can."""
    for info in getattr(annotation, "__metadata__", ()):
        if isinstance(info, typer.models.ParameterInfo):
            info.autocompletion = _COMPLETED.get(name)
        if isinstance(info, typer.models.OptionInfo):
            info.rich_help_panel = title
    return annotation
