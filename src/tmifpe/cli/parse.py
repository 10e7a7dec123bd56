"""From the words of the command line to a model, data, threat and attack."""

from __future__ import annotations

__all__ = [
    "batch_size_from",
    "box_from",
    "check_output",
    "checks_from",
    "engine_from",
    "folder_from",
    "load_sources",
    "radii_from",
    "request_from",
    "rows_from",
    "seeds_from",
    "threat_from",
    "write_file",
]

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tmifpe.cli.console import notice, prints_on_stderr
from tmifpe.cli.options import (
    DIGITS,
    AttackOptions,
    EngineOptions,
    RowOptions,
    SourceOptions,
    ThreatOptions,
    TrustOptions,
)
from tmifpe.core.errors import InputError, shown
from tmifpe.core.numbers import parse_whole, read_number

if TYPE_CHECKING:
    from tmifpe.core.types import Box, Classifier, Data, Threat

EPS = 8 / 255
"""The radius of the ball if --eps gives none, as a share of the box."""


@prints_on_stderr()
def load_sources(options: SourceOptions) -> tuple[Classifier, Data, str]:
    """The model on its device, the data, and the device's name."""
    from tmifpe.data import load_data, read_indices
    from tmifpe.models import load_model
    from tmifpe.run.prepared_model import pick_device

    device = pick_device(options.device)
    indices = read_indices(options.indices) if options.indices else None
    box = box_from(options.box)
    words = options.classes if options.model.strip().startswith("clip:") else None
    folder = (options.data or "").startswith("imagefolder:")
    data = load_data(
        options.data or DIGITS,
        indices=indices,
        limit=options.limit,
        sample=options.sample,
        sample_seed=options.sample_seed,
        classes=options.classes if words is None or folder else None,
        resize=options.resize,
        crop=options.crop,
        box=box,
    )
    classifier = load_model(
        options.model,
        weights=options.weights,
        mean=_numbers("mean", options.mean),
        std=_numbers("std", options.std),
        classes=words,
        template=options.template,
        device=str(device),
    )
    return classifier, data, str(device)


def box_from(text: str | None) -> Box:
    """LOW and HIGH of --box."""
    from tmifpe.core.types import UNIT

    edges = UNIT if text is None else _numbers("box", text) or ()
    if len(edges) != 2 or edges[0] >= edges[1]:
        raise InputError(f"--box must be two numbers, LOW,HIGH, as in 0,255 or -1,1, got {shown(text)}")
    return edges[0], edges[1]


def threat_from(options: ThreatOptions, box: str | None = None) -> Threat:
    """Its eps is the largest of --eps."""
    from tmifpe.core.types import Threat
    from tmifpe.norms import get_norm

    low, high = box_from(box)
    eps = max(radii_from(options.eps)) if options.eps is not None else EPS * (high - low)
    threat = Threat(options.norm, eps, low, high)
    get_norm(threat.norm)
    return threat


def radii_from(text: str, option: str = "eps") -> tuple[float, ...]:
    """Of --eps 2/255,4/255: one radius or several."""
    return tuple(read_number(option, part) for part in text.split(","))


def _remark_on_comma(text: str) -> None:
    """0,3 is 0.3 in many languages, and here the radii 0 and 3."""
    first, _, second = text.replace(" ", "").partition(",")
    if first == "0" and second.isdecimal():
        notice(f"--eps {text} names the radii 0 and {int(second)}; a fraction has a point: --eps 0.{second}")


def rows_from(options: RowOptions) -> dict[str, Any]:
    """The keyword options of `tmifpe.evaluate` that every verb has."""
    return {
        "seed": options.seed,
        "precision": options.precision,
        "eot": options.eot,
        "batch_size": batch_size_from(options.batch_size),
        "early_exit": options.early_exit,
        "tune": options.tune,
        "shard_size": options.shard_size,
        "straight_through": options.straight_through,
    }


def request_from(options: AttackOptions, data: Data) -> dict[str, Any]:
    """And those that say how the attack goes about it."""
    _remark_on_comma(options.eps or "")
    return rows_from(options) | {
        "targets": _targets(options.targets, data),
        "mode": options.mode,
        "radii": radii_from(options.eps) if options.eps is not None and "," in options.eps else (),
    }


def checks_from(options: TrustOptions, data: Data, device: str) -> dict[str, Any]:
    """The keyword options of `tmifpe.evaluate` that check whether its number can be trusted."""
    return {
        "checks": options.checks,
        "verify": options.verify,
        "repeats": options.repeats,
        "transfer_adv": _transferred(options.transfer_adv, data),
        "spot_check": options.spot_check,
        "from_model": None if options.from_model is None else _source(options.from_model, device),
    }


@prints_on_stderr()
def _source(name: str, device: str) -> Classifier:
    from tmifpe.models import load_model

    return load_model(name, device=device)


def engine_from(options: EngineOptions) -> dict[str, Any]:
    """The keyword options of `tmifpe.evaluate` that say who computes the shards."""
    workers: int | str | None = options.workers
    if workers is not None and workers != "auto":
        workers = parse_whole(options.workers or "")
        if not workers:
            raise InputError(f"--workers must be auto or a whole number of at least 1, got {shown(options.workers)}")
    if workers is None and options.engine in (None, "local") and options.shard_timeout is not None:
        raise InputError("--shard-timeout ends a worker that hangs; it needs --workers N or --engine")
    return {
        "engine": options.engine,
        "workers": workers,
        "shard": options.shard,
        "retries": options.retries,
        "shard_timeout": options.shard_timeout,
    }


def _transferred(path: str | None, data: Data) -> Any:
    from tmifpe.evaluation.verification import matched_rows
    from tmifpe.store.adversarial import read_adv

    if path is None:
        return None
    adv, rows = matched_rows(read_adv(path), data)
    if len(rows) < len(data):
        raise InputError(
            f"{path} holds adversarial examples for different images: {len(data) - len(rows)} of the {len(data)} of "
            "this run are not among them; choose others with --limit, --sample or --indices"
        )
    return adv[[row for _, row in rows]]


def _numbers(name: str, text: str | None) -> tuple[float, ...] | None:
    if text is None:
        return None
    try:
        return tuple(read_number(name, part) for part in text.split(","))
    except InputError:
        raise InputError(
            f"--{name} must be numbers separated by commas, such as 0.5 or 1/255, got {shown(text)}"
        ) from None


def batch_size_from(text: str) -> int | None:
    if text == "auto":
        return None
    number = parse_whole(text)
    if not number:
        raise InputError(f"--batch-size must be auto or a whole number of at least 1, got {shown(text)}")
    return number


def _targets(text: str | None, data: Data) -> Any:
    import torch

    from tmifpe.data import read_numbers
    from tmifpe.run.targets import TARGET_RULES

    if text is None or text in TARGET_RULES:
        return text
    if (number := parse_whole(text)) is not None:
        return number
    try:
        is_file = Path(text).is_file()
    except (OSError, ValueError):  # a name too long, or with a null byte
        is_file = False
    if not is_file:
        raise InputError(
            f"--targets must be {', '.join(TARGET_RULES)}, a class number or a file of classes, got {shown(text)}"
        )
    targets = torch.tensor(read_numbers(text))
    if len(targets) != len(data):
        raise InputError(f"{text} holds {len(targets)} targets for {len(data)} examples")
    return targets


def seeds_from(text: str | None, single: int) -> tuple[int, ...]:
    """The seeds of `--seeds 0,1,2`, or the one of `--seed`."""
    if text is None:
        return (single,)
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise InputError(f"--seeds must be whole numbers separated by commas, got {shown(text)}") from None


def folder_from(text: str) -> Path:
    """A folder that the user named; whether it exists is checked when it is needed."""
    try:
        folder = Path(text).expanduser()
        folder.is_dir()
    except (OSError, ValueError, RuntimeError) as error:  # a name too long, with a null byte, or of no user
        raise InputError(f"{shown(text)} cannot be a folder: {error}") from None
    if "\0" in text:
        raise InputError(f"{shown(text)} cannot be a folder")
    return folder


def write_file(path: str, content: bytes | Iterable[bytes]) -> None:
    """A file that the user named: complete, or not there at all."""
    from tmifpe.core.files import write_durably

    check_output(path)
    target = Path(path).expanduser()
    try:
        if target.exists() and not target.is_file():  # a pipe or a device is written to, never replaced
            with target.open("wb") as file:
                file.writelines([content] if isinstance(content, bytes) else content)
        else:
            write_durably(target, content)
    except OSError as error:
        raise InputError(f"cannot write {path}: {error.strerror or error}") from error


def check_output(path: str | None) -> None:
    """`InputError` if a file that is to be written at the end cannot be: reported before the work, not after it."""
    if path is None:
        return
    try:
        target = Path(path).expanduser()
        problem = "it is a folder" if target.is_dir() else "" if target.parent.is_dir() else "there is no such folder"
        problem = problem or ("a name has no null bytes" if "\0" in path else "")
    except (OSError, ValueError, RuntimeError) as error:  # a name too long, with a null byte, or of no user
        problem = str(error)
    if problem:
        raise InputError(f"cannot write {shown(path)}: {problem}")
