"""From the text of MODEL to a classifier."""

from __future__ import annotations

__all__ = ["load_model", "read_source"]

import difflib
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch
from torch import nn

from tmifpe.core.errors import InputError, did_you_mean, first_line
from tmifpe.core.files import as_class_names
from tmifpe.core.rng import preserved_rng
from tmifpe.core.types import Classifier
from tmifpe.models.catalogue import MODELS, SUFFIXES
from tmifpe.models.check import count_classes
from tmifpe.models.identity import held_parts, model_identity
from tmifpe.models.normalize import Normalize, mean_and_std
from tmifpe.models.processor import Resized
from tmifpe.models.source import Asked, Loaded


@preserved_rng()
def load_model(
    text: str | Path,
    *,
    weights: str | Path | None = None,
    mean: Sequence[float] | None = None,
    std: Sequence[float] | None = None,
    classes: Sequence[str] | str | Path | None = None,
    template: str | None = None,
    device: str = "cpu",
) -> Classifier:
    """The classifier that `text` names: in eval mode, frozen, normalisation inside.

    `mean` and `std`, in the units of the images, replace what the source states itself. `classes` (names, or a file of
    one per line) and `template` say in words what a zero-shot model, `clip:NAME`, is to tell apart. Nothing but a
    factory, which is the user's own code, runs anything from a file; see docs/models-and-data.md for what each source
    trusts.
    """
    if not isinstance(text, str | Path):
        raise InputError(
            f"load_model takes the name of a model, got {type(text).__name__}; pass the model itself to evaluate: "
            "tmifpe.evaluate(model, data, threat)"
        )
    text = str(text)
    named = () if classes is None else as_class_names(classes)
    loaded = read_source(text, weights=weights, classes=named, template=template or "")
    if mean is not None or std is not None:
        if loaded.takes_bytes:
            raise InputError(f"{text} takes bytes and normalises them by itself; leave out mean and std")
        if loaded.normalises:
            raise InputError(f"members of {text} have a normalisation of their own; leave out mean and std")
        loaded = replace(loaded, mean=mean, std=std, box=None)  # in the units of whatever box is given
    again = partial(load_model, text, weights=weights, mean=mean, std=std, classes=classes, template=template)
    made = _finish(text.strip(), loaded, device)
    return replace(made, source=again, options=_options(weights, mean, std, classes, template))


def read_source(
    text: str,
    *,
    weights: str | Path | None = None,
    classes: tuple[str, ...] = (),
    template: str = "",
    features: bool = False,
) -> Loaded:
    """The network that `text` names, as its source made it; with `features`, without its head where that is known."""
    source, where = _resolve(text.strip())
    if (classes or template) and source != "clip":
        raise InputError(f"classes and template are told to zero-shot models, clip:NAME; {text} has classes of its own")
    asked = Asked(source, where, None if weights is None else _path(weights), classes, template, features)
    with preserved_rng():  # new layers draw initial weights; this leaves the caller's RNG untouched
        return MODELS.get(source)(asked)


def _options(
    weights: str | Path | None,
    mean: Sequence[float] | None,
    std: Sequence[float] | None,
    classes: Sequence[str] | str | Path | None,
    template: str | None,
) -> tuple[str, ...]:
    """As text, for the record of a run: what the name of the model does not say."""
    numbers = {"mean": mean, "std": std}
    told = [f"{name}={','.join(map(repr, map(float, given)))}" for name, given in numbers.items() if given is not None]
    file = classes if isinstance(classes, str | Path) else "FILE"
    words = {"weights": weights, "classes": None if classes is None else file, "template": template}
    return (*(f"{name}={given}" for name, given in words.items() if given is not None), *told)


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
    if loaded.resizing is not None:
        module = Resized(module, loaded.resizing)
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
        resizes=loaded.resizes or loaded.resizing is not None,
    )


def _move(module: nn.Module, device: str) -> nn.Module:
    try:
        return module.to(torch.device(device))
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        first = first_line(error)
        raise InputError(f"cannot use device {device!r}: {first}") from error
