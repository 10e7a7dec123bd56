"""`timm:NAME`: a network of timm with its own normalisation and input size, to which images are resized inside."""

from __future__ import annotations

__all__ = ["timm_model"]

from typing import Any

from tmifpe.core.errors import InputError, did_you_mean, first_line
from tmifpe.core.extras import import_extra
from tmifpe.core.options import parse, spell
from tmifpe.core.types import UNIT
from tmifpe.models.processor import Resizing
from tmifpe.models.source import Asked, Loaded
from tmifpe.models.weights import load_weights

_OPTIONS = frozenset({"img_size", "in_chans", "num_classes"})


def timm_model(asked: Asked) -> Loaded:
    """With pretrained weights (from timm's cache, or downloaded), or offline with the user's own.

    `timm:resnet18(num_classes=10)` gives a network of another head or input to the user's weights.
    """
    if not asked.where:
        raise InputError("timm needs a name: write timm:NAME, e.g. timm:resnet18")
    timm = import_extra("timm", "timm models", "timm", uses_torchvision=True)
    name, options = parse(asked.where) if "/" not in asked.where and ":" not in asked.where else (asked.where, {})
    for option in options:
        if option not in _OPTIONS:
            raise InputError(f"timm:{name} has no option {option!r}; it takes {', '.join(sorted(_OPTIONS))}")
    hub = "/" in name or ":" in name
    if not hub and not timm.is_model(name):
        raise did_you_mean("timm model", name, timm.list_models())
    if asked.weights is None and options:
        raise InputError(
            f"timm:{asked.where} changes the network, so pretrained weights do not fit; give `weights=FILE`"
        )
    module = _create(timm, name, asked.weights is None, options)
    if asked.weights is not None:
        load_weights(module, asked.weights, f"timm:{name}")
    settings: dict[str, Any] = getattr(module, "pretrained_cfg", None) or {}
    shape = tuple(settings.get("input_size") or ())
    if options.get("img_size"):
        shape = (*shape[:1], options["img_size"], options["img_size"])
    if options.get("in_chans"):
        shape = (options["in_chans"], *shape[1:])
    mean, std = _normalisation(settings, shape)
    how = None if options else _resizing(settings, shape)  # timm's sizes are those of its own weights
    if asked.features:
        module.reset_classifier(0)
    return Loaded(
        module,
        stamp=f"timm:{spell(name, options)}",
        input_shape=shape if len(shape) == 3 else None,
        mean=mean,
        std=std,
        box=UNIT,
        resizing=how,
    )


def _resizing(settings: dict[str, Any], shape: tuple[int, ...]) -> Resizing | None:
    """As timm evaluates the network: the shorter side to the input size divided by `crop_pct`, then the centre."""
    if len(shape) != 3 or settings.get("crop_mode", "center") != "center" or shape[1] != shape[2]:
        return None
    mode = settings.get("interpolation", "bicubic")
    short = int(shape[1] / (settings.get("crop_pct") or 0.875))
    return Resizing((shape[1], shape[2]), short, mode if mode in ("bilinear", "bicubic") else "bicubic")


def _normalisation(
    settings: dict[str, Any], shape: tuple[int, ...]
) -> tuple[tuple[float, ...] | None, tuple[float, ...] | None]:
    mean, std = settings.get("mean"), settings.get("std")
    if not mean or not std or (shape and len(mean) != shape[0]):  # timm states RGB; with other channels it says nothing
        return None, None
    return tuple(mean), tuple(std)


def _create(timm: Any, name: str, pretrained: bool, options: dict[str, Any]) -> Any:
    try:
        try:
            return timm.create_model(name, pretrained=pretrained, **options)
        except TypeError as error:
            if "img_size" not in options or "img_size" not in str(error):
                raise
            # A network without a size of its own, such as a ResNet, takes any; the option then only states it.
            fixed = {option: value for option, value in options.items() if option != "img_size"}
            return timm.create_model(name, pretrained=pretrained, **fixed)
    except Exception as error:  # no network, no such weights, an option the network does not know
        first = first_line(error)
        if pretrained:
            raise InputError(
                f"the pretrained weights of timm:{name} are not in the cache and could not be fetched; download them "
                f"where there is a network, or give `weights=FILE` ({first})"
            ) from error
        raise InputError(f"timm cannot make {name} with {options or 'its defaults'}: {first}") from error
