"""From a plan file to runs, all checked before anything is computed."""

from __future__ import annotations

__all__ = ["PlanFile", "PlannedRun", "read_plan"]

import dataclasses
import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_args, get_type_hints

from tmifpe.cli.options import AttackOptions, SourceOptions, TrustOptions
from tmifpe.cli.plans.toml import Document, read_document
from tmifpe.core.errors import InputError, did_you_mean, shown

GROUPS: tuple[type, ...] = (SourceOptions, AttackOptions, TrustOptions)
KINDS: dict[str, Any] = {
    entry.name: get_type_hints(group)[entry.name] for group in GROUPS for entry in dataclasses.fields(group)
}
GATES = ("fail_below", "fail_below_clean", "fail_below_lower")
KINDS |= {"name": str, "attack": str, "loss": str, "certify": bool, "save_adv": str, **dict.fromkeys(GATES, float)}
SWEPT = (
    "model",
    "data",
    "norm",
    "eps",
    "attack",
    "loss",
    "steps",
    "restarts",
    "schedule",
    "targets",
    "precision",
    "seed",
)
"""Keys that may be lists, which make a run of every combination."""
NUMBERS_AS_TEXT = {"eps", "norm", "targets", "batch_size"}
OUTPUTS = ("json", "markdown", "latex", "junit")
TOP = {"include": list, "store": str, "defaults": dict, "run": list, "outputs": dict}
MOST_RUNS = 100_000


@dataclass(frozen=True)
class PlannedRun:
    """One run of a plan, in the words of the command line."""

    name: str
    source: SourceOptions
    how: AttackOptions
    trust: TrustOptions
    attack: str | None
    loss: str | None
    where: str
    fail_below: float | None = None
    fail_below_clean: float | None = None
    fail_below_lower: float | None = None
    certify: bool = False
    save_adv: str | None = None
    """The file for its adversarial examples."""


@dataclass(frozen=True)
class PlanFile:
    runs: tuple[PlannedRun, ...]
    store: str | None = None
    outputs: dict[str, str] = field(default_factory=dict)


def read_plan(path: str | Path) -> PlanFile:
    """The runs of a plan file and of those that it includes; an `InputError` that names the line for any mistake."""
    _, plan = _read(Path(path).expanduser(), (), {})
    if not plan.runs:
        raise InputError(f"{path} plans no run; give it a table [[run]] with a model, or see tmifpe plan init")
    seen: dict[str, str] = {}
    files: set[str] = set()
    for run in plan.runs:
        if run.name in seen:
            raise InputError(f"{run.where}: a run called {shown(run.name)} is there already ({seen[run.name]})")
        seen[run.name] = run.where
        if run.save_adv in files:
            raise InputError(
                f"{run.where}: two runs would write {shown(run.save_adv)}; give every run that has save_adv a table of "
                "its own, without lists"
            )
        files |= {run.save_adv} if run.save_adv else set()
    for run in plan.runs:
        try:
            _check(run)
        except InputError as error:
            raise InputError(f"{run.where}: {error}") from error
    return plan


def _read(path: Path, within: tuple[Path, ...], inherited: dict[str, Any]) -> tuple[dict[str, Any], PlanFile]:
    """The defaults and the plan of one file, included files first."""
    document = read_document(path)
    _check_top(document)
    defaults, runs = dict(inherited), list[PlannedRun]()
    for name in document.content.get("include", ()):
        where = document.where(key="include")
        if not isinstance(name, str):
            raise InputError(f"{where}: include must be a list of files, got {shown(name)}")
        other = (path.parent / name).resolve()
        if other in (*within, path.resolve()):
            raise InputError(f"{where}: {name} includes itself, by way of {path.name}")
        if not other.is_file():
            raise InputError(f"{where}: no such file: {name}")
        defaults, included = _read(other, (*within, path.resolve()), defaults)
        runs += included.runs
    defaults |= _values(document, "defaults", 0, document.content.get("defaults", {}))
    for nth, table in enumerate(document.content.get("run", ())):
        if not isinstance(table, dict):
            raise InputError(f"{document.where(key='run')}: a run is a table: write [[run]] and its keys below")
        runs += _expand(document, nth, defaults | _values(document, "run", nth, table), table)
        if len(runs) > MOST_RUNS:
            raise InputError(f"{document.where('run', nth)}: more than {MOST_RUNS} runs; split the plan")
    outputs = document.content.get("outputs", {})
    for key, value in outputs.items():
        if key not in OUTPUTS:
            raise _at(document.where("outputs", 0, key), did_you_mean("output", key, OUTPUTS))
        if not isinstance(value, str):
            raise InputError(
                f"{document.where('outputs', 0, key)}: {key} must be the name of a file, got {shown(value)}"
            )
    return defaults, PlanFile(tuple(runs), document.content.get("store"), outputs)


def _check_top(document: Document) -> None:
    for key, value in document.content.items():
        if key not in TOP:
            raise _at(_place(document, key), did_you_mean("key of a plan", key, TOP))
        if not isinstance(value, TOP[key]):
            words = {list: "a list", str: "text", dict: "a table"}
            raise InputError(f"{_place(document, key)}: {key} must be {words[TOP[key]]}, got {shown(value)}")


def _place(document: Document, key: str) -> str:
    return document.where(key, 0) if (key, 0, "") in document.lines else document.where(key=key)


def _at(where: str, error: InputError) -> InputError:
    return InputError(f"{where}: {error}")


def _values(document: Document, table: str, nth: int, content: dict[str, Any]) -> dict[str, Any]:
    """The keys of one table as the command line would have them, lists kept as lists."""
    found: dict[str, Any] = {}
    for key, value in content.items():
        where = document.where(table, nth, key)
        name = key.replace("-", "_")
        if name not in KINDS:
            raise _at(where, did_you_mean("option of a run", key, KINDS))
        if name in ("mean", "std") and isinstance(value, list):
            value = ",".join(map(str, value))  # noqa: PLW2901
        if name == "straight_through":  # patterns of modules, which all count at once
            patterns = value if isinstance(value, list) else [value]
            found[name] = tuple(_value(where, name, one) for one in patterns)
        elif isinstance(value, list):
            if name not in SWEPT:
                raise InputError(f"{where}: {key} must be one value, not a list; lists are for {', '.join(SWEPT)}")
            if not value:
                raise InputError(f"{where}: {key} is an empty list")
            found[name] = [_value(where, name, one) for one in value]
        else:
            found[name] = _value(where, name, value)
    return found


def _value(where: str, name: str, value: Any) -> Any:
    kinds = set(get_args(KINDS[name])) or {KINDS[name]}
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if str in kinds and (isinstance(value, str) or (number and name in NUMBERS_AS_TEXT)):
        return str(value)
    if bool in kinds and isinstance(value, bool):
        return value
    if int in kinds and isinstance(value, int) and not isinstance(value, bool):
        return value
    if float in kinds and number:
        if name in GATES and not 0 <= value <= 1:
            meant = f"; {value:g} % is {value / 100:g}" if 1 < value <= 100 else ""
            raise InputError(f"{where}: {name} is a fraction in [0, 1], got {value:g}{meant}")
        return float(value)
    words = {str: "text", bool: "true or false", int: "a whole number", float: "a number"}
    wanted = " or ".join(text for kind, text in words.items() if kind in kinds)
    raise InputError(f"{where}: {name} must be {wanted}, got {shown(value)}")


def _expand(document: Document, nth: int, values: dict[str, Any], own: dict[str, Any]) -> Iterator[PlannedRun]:
    """A run for every combination of what is listed, named after what tells it apart."""
    where = document.where("run", nth)
    if "model" not in values:
        raise InputError(f'{where}: a run needs a model, e.g. model = "digits-robust"')
    listed = {key: value if isinstance(value, list) else [value] for key, value in values.items()}
    first = values["model"] if isinstance(values["model"], str) else ""
    name = str(own.get("name", first))
    for chosen in itertools.product(*listed.values()):
        one = dict(zip(listed, chosen, strict=True))
        apart = [str(one[key]) if key == "model" else f"{key}={one[key]}" for key in listed if len(listed[key]) > 1]
        yield _planned("/".join([*([name] if name else []), *apart]), one, where)


def _planned(name: str, values: dict[str, Any], where: str) -> PlannedRun:
    try:
        source, how, trust = (
            group(**{entry.name: values[entry.name] for entry in dataclasses.fields(group) if entry.name in values})
            for group in GROUPS
        )
    except InputError as error:
        raise _at(where, error) from error
    own = {key: values[key] for key in (*GATES, "certify", "save_adv") if key in values}
    return PlannedRun(name, source, how, trust, values.get("attack"), values.get("loss"), where, **own)


def _check(run: PlannedRun) -> None:
    """What the options say, as far as it can be checked without loading a model or data."""
    from tmifpe.attacks.sequence import fitting
    from tmifpe.cli import parse
    from tmifpe.cli.attack import attack_from
    from tmifpe.run.request import Request
    from tmifpe.store.adversarial import check_ending

    if run.save_adv is not None:
        check_ending(run.save_adv)
        parse.check_output(run.save_adv)
    source, asked, trust = run.source, run.how, run.trust
    attack = attack_from(asked, run.attack, run.loss)
    fitting(attack, parse.threat_from(asked, source.box), targeted=asked.targets is not None, eot=asked.eot)
    Request(
        mode=asked.mode,
        seed=asked.seed,
        precision=asked.precision,
        eot=asked.eot,
        limit=source.limit,
        sample=source.sample,
        shard_size=asked.shard_size,
        verify=trust.verify,
        repeats=trust.repeats,
        straight_through=asked.straight_through,
        spot_check=trust.spot_check,
        certify=run.certify,
        targets=asked.targets if run.certify else None,  # else a file of classes, perhaps, which is read later
    )
    for name in _files(run):
        if not Path(name).expanduser().exists():
            raise InputError(f"no such file: {name}")


def _files(run: PlannedRun) -> Iterator[str]:
    """The files and folders that a run names."""
    source = run.source
    composed = source.model.partition(":")[0] in ("ensemble", "ensemble-probabilities", "probe")
    weights = (source.weights or "").split("+") if composed else [source.weights]
    yield from (name for name in (*weights, source.classes, source.indices, run.trust.transfer_adv) if name)
    model, _, _ = source.model.rpartition(":")
    if composed:
        pass  # its members are looked for when they are loaded
    elif model.endswith(".py"):
        yield model
    elif ":" not in source.model and Path(source.model).suffix in (".onnx", ".pt", ".pt2", ".ts"):
        yield source.model
    kind, _, place = (source.data or "").partition(":")
    if place and kind in ("npz", "mnist", "fashion-mnist", "cifar10", "cifar100", "imagenet", "imagefolder"):
        yield place
