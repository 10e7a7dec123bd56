"""From the text of MODEL to a classifier."""

from __future__ import annotations

__all__ = ["load_model"]

import difflib
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch
from torch import nn

from tmifpe.core.errors import InputError, did_you_mean, first_line
from tmifpe.core.types import Classifier
from tmifpe.models.catalogue import MODELS, SUFFIXES
from tmifpe.models.check import count_classes
from tmifpe.models.identity import held_parts, model_identity
from tmifpe.models.normalize import Normalize, mean_and_std
from tmifpe.models.source import Asked, Loaded


def load_model(
    text: str | Path,
    *,
    weights: str | Path | None = None,
    mean: Sequence[float] | None = None,
    std: Sequence[float] | None = None,
    device: str = "cpu",
) -> Classifier:
    """The classifier that `text` names: in eval mode, frozen, normalisation inside.

    `mean` and `std`, in the units of the images, replace what the source states itself. Nothing but a factory, which is
    the user's own code, runs anything from a file; see docs/models-and-data.md for what each source trusts.
    """
    text = str(text)
    source, where = _resolve(text.strip())
    asked = Asked(source, where, None if weights is None else _path(weights))
    with torch.random.fork_rng(devices=[]):  # new layers draw initial weights; this leaves the caller's RNG untouched
        loaded = MODELS.get(source)(asked)
    if mean is not None or std is not None:
        if loaded.takes_bytes:
            raise InputError(f"{text} takes bytes and normalises them by itself; leave out mean and std")
        loaded = replace(loaded, mean=mean, std=std, box=None)  # in the units of whatever box is given
    again = partial(load_model, text, weights=weights, mean=mean, std=std)
    return replace(_finish(text.strip(), loaded, device), source=again)


def _path(weights: str | Path) -> Path:
    try:
        return Path(weights).expanduser()
    except RuntimeError:  # the home of a user who is not there
        raise InputError(f"no such file: {weights} (weights)") from None


def _resolve(text: str) -> tuple[str, str]:
    """The registered source and what it is to load."""
    head, colon, rest = text.partition(":")
    if head in MODELS:
        return head, rest if colon else ""
    suffix = Path(text).suffix.lower()
    if suffix in SUFFIXES:
        return SUFFIXES[suffix], text
    if suffix in (".safetensors", ".bin", ".ckpt"):
        raise InputError(f"{text} holds weights only; name an architecture and give them with `weights={text}`")
    if suffix == ".py":
        raise InputError(f"{text} is a Python file; name the function in it that makes the model: {text}:FUNCTION")
    is_file = head.lower().endswith(".py")  # whatever its name: factory.py is no misspelt `factory`
    if colon and (is_file or not difflib.get_close_matches(head, MODELS, n=1, cutoff=0.75)):
        return "factory", text
    raise did_you_mean("model", head if colon else text, MODELS)


def _finish(name: str, loaded: Loaded, device: str) -> Classifier:
    channels = None if loaded.input_shape is None else loaded.input_shape[0]
    normalisation = mean_and_std(loaded.mean, loaded.std, channels)
    module = loaded.module
    if normalisation is not None:
        module = Normalize(module, *normalisation)
    identity = model_identity(module, [loaded.stamp, *held_parts(loaded.module)]) or loaded.stamp
    if isinstance(module, nn.Module):
        for parameter in module.parameters():
            parameter.requires_grad_(False)
        module = _move(module.eval(), device)
    classes = loaded.classes
    if loaded.input_shape is not None:
        seen = count_classes(module, loaded.input_shape, name)
        if classes is not None and seen != classes:
            raise InputError(f"{name} states {classes} classes but gives {seen} logits")
        classes = seen
    mean, std = normalisation or (None, None)
    return Classifier(
        module,
        name,
        identity,
        classes,
        loaded.input_shape,
        mean,
        std,
        loaded.notes,
        class_names=loaded.class_names,
        box=loaded.box,
        takes_bytes=loaded.takes_bytes,
    )


def _move(module: nn.Module, device: str) -> nn.Module:
    try:
        return module.to(torch.device(device))
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        first = first_line(error)
        raise InputError(f"cannot use device {device!r}: {first}") from error
