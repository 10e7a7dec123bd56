"""From the words of the command line to a model, data, threat and attack."""

from __future__ import annotations

__all__ = ["attack_from", "doubts_from", "load_sources", "request_from", "seeds_from", "threat_from", "write_file"]

from pathlib import Path
from typing import TYPE_CHECKING, Any

from tmifpe.cli.options import AttackOptions, SourceOptions, TrustOptions
from tmifpe.core.errors import InputError

if TYPE_CHECKING:
    from tmifpe.attacks import PGD
    from tmifpe.core.types import Classifier, Data, Threat


def load_sources(options: SourceOptions) -> tuple[Classifier, Data, str]:
    """The model on its device, the data, and the device's name."""
    from tmifpe.data import load_data, read_indices
    from tmifpe.evaluation.lend import pick_device
    from tmifpe.models import load_model

    device = pick_device(options.device)
    indices = read_indices(options.indices) if options.indices else None
    data = load_data(options.data, indices=indices, limit=options.limit)
    classifier = load_model(
        options.model,
        weights=options.weights,
        mean=_numbers("mean", options.mean),
        std=_numbers("std", options.std),
        device=str(device),
    )
    return classifier, data, str(device)


def threat_from(options: AttackOptions) -> Threat:
    from tmifpe.core.types import Threat
    from tmifpe.norms import get_norm

    get_norm(options.norm)
    return Threat(options.norm, options.eps)  # pyright: ignore[reportArgumentType]


def attack_from(options: AttackOptions, loss: str) -> PGD:
    from tmifpe.attacks import PGD

    return PGD(
        loss=loss,
        steps=options.steps,
        restarts=options.restarts,
        schedule=options.schedule,
        momentum=options.momentum,
    )


def request_from(options: AttackOptions, data: Data) -> dict[str, Any]:
    """The keyword options of `tmifpe.evaluate`."""
    return {
        "targets": _targets(options.targets, data),
        "mode": options.mode,
        "seed": options.seed,
        "precision": options.precision,
        "eot": options.eot,
        "batch_size": _batch_size(options.batch_size),
        "shard_size": options.shard_size,
    }


def doubts_from(options: TrustOptions) -> dict[str, Any]:
    """The keyword options of `tmifpe.evaluate` that ask whether its number can be trusted."""
    return {
        "checks": options.checks,
        "verify": options.verify,
        "repeats": options.repeats,
        "transfer_adv": _transferred(options.transfer_adv),
    }


def _transferred(path: str | None) -> Any:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    if path is None:
        return None
    try:
        tensors = load_file(path)
    except (OSError, SafetensorError) as error:
        raise InputError(f"cannot read adversarial examples from {path}: {error}") from error
    if "adv" not in tensors:
        raise InputError(f"{path} holds no tensor 'adv'; give a file that --save-adv wrote")
    return tensors["adv"]


def _numbers(name: str, text: str | None) -> tuple[float, ...] | None:
    if text is None:
        return None
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError:
        raise InputError(f"--{name} must be numbers separated by commas, got {text!r}") from None


def _batch_size(text: str) -> int | None:
    if text == "auto":
        return None
    if not text.isdecimal() or int(text) < 1:
        raise InputError(f"--batch-size must be auto or a whole number of at least 1, got {text!r}")
    return int(text)


def _targets(text: str | None, data: Data) -> Any:
    import torch

    from tmifpe.data import read_numbers
    from tmifpe.evaluation.targets import TARGET_RULES

    if text is None or text in TARGET_RULES:
        return text
    if text.isdecimal():
        return int(text)
    if not Path(text).is_file():
        raise InputError(
            f"--targets must be {', '.join(TARGET_RULES)}, a class number or a file of classes, got {text!r}"
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
        raise InputError(f"--seeds must be whole numbers separated by commas, got {text!r}") from None


def write_file(path: str, content: bytes) -> None:
    """A file that the user named: complete, or not there at all."""
    from tmifpe.evaluation.store.files import write_durably

    try:
        write_durably(Path(path).expanduser(), content)
    except OSError as error:
        raise InputError(f"cannot write {path}: {error.strerror or error}") from error
