"""What an image processor does to pictures before a network sees them, inside the model, so that eps is in pixels."""

from __future__ import annotations

__all__ = ["Resized", "Resizing", "as_sides", "normalisation", "processor_settings", "resizing"]

import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn
from torch.nn.functional import interpolate

from tmifpe.core.types import Model

_SETTINGS = (
    *("do_resize", "size", "resample", "crop_pct", "do_center_crop", "crop_size", "do_rescale", "rescale_factor"),
    *("rescale_offset", "do_normalize", "image_mean", "image_std", "include_top"),
)
_MODES = {2: "bilinear", 3: "bicubic"}
"""Pillow's numbers of its filters. Torch has no gradient for the others; bicubic is the nearest to them."""


@dataclass(frozen=True)
class Resizing:
    """Pictures to `size`: straight, or the shorter side to `short` and then the centre."""

    size: tuple[int, int]
    short: int | None = None
    mode: str = "bilinear"


class Resized(nn.Module):
    """`network` on images brought to the size it takes; those that have it already are left as they are.

    A linear map with antialiasing, without the rounding and clipping to bytes that storing a resized picture would do.
    """

    def __init__(self, network: Model, how: Resizing) -> None:
        super().__init__()
        self.network = network
        self.size, self.short, self.mode = how.size, how.short, how.mode  # plain, so that the identity covers them

    def alone(self) -> Resized:
        """The resizing without the network."""
        return Resized(nn.Identity(), Resizing(self.size, self.short, self.mode))

    def forward(self, x: Tensor) -> Tensor:
        height, width = x.shape[-2:]
        if (height, width) != self.size:
            size = self.size if self.short is None else _shorter_to(self.short, height, width)
            x = interpolate(x, size=size, mode=self.mode, antialias=True, align_corners=False)
            top, left = ((whole - part) // 2 for whole, part in zip(size, self.size, strict=True))
            x = x[..., top : top + self.size[0], left : left + self.size[1]]
        return self.network(x)


def _shorter_to(short: int, height: int, width: int) -> tuple[int, int]:
    if height <= width:
        return short, int(short * width / height)
    return int(short * height / width), short


def processor_settings(transformers: Any, where: str) -> dict[str, Any]:
    """The settings of the image processor saved beside a model, without making one: that needs more packages."""
    try:
        stated = dict(transformers.ImageProcessingMixin.get_image_processor_dict(where)[0])
    except (OSError, ValueError, TypeError):
        return {}
    return _defaults(transformers, stated) | stated


def _defaults(transformers: Any, stated: Mapping[str, Any]) -> dict[str, Any]:
    """What the class of the processor does unless it is told otherwise; older processors state only what differs."""
    kind = str(stated.get("image_processor_type") or stated.get("feature_extractor_type") or "")
    found = getattr(transformers, kind.replace("FeatureExtractor", "ImageProcessor").removesuffix("Fast"), None)
    if not isinstance(found, type):
        return {}
    told = inspect.signature(found.__init__).parameters  # before transformers 5 they are defaults of the arguments
    values = {name: getattr(found, name, getattr(told.get(name), "default", None)) for name in _SETTINGS}
    return {name: value for name, value in values.items() if value not in (None, inspect.Parameter.empty)}


def normalisation(
    settings: Mapping[str, Any], channels: int
) -> tuple[tuple[float, ...] | None, tuple[float, ...] | None]:
    """Mean and std on images in [0, 1] that do what the processor does to bytes: rescale, shift, normalise.

    A processor multiplies bytes 255 x by `rescale_factor`, most often 1/255, subtracts 1 if it has an offset, and
    normalises the outcome: (s x - o - m) / d = (x - (m + o) / s) / (d / s).

    >>> normalisation({"rescale_factor": 2 / 255, "rescale_offset": True, "do_normalize": False}, 1)
    ((0.5,), (0.5,))
    """
    scale = 255 * float(settings.get("rescale_factor") or 1 / 255) if settings.get("do_rescale", True) else 255.0
    offset = 1.0 if settings.get("do_rescale", True) and settings.get("rescale_offset") else 0.0
    mean, std = settings.get("image_mean"), settings.get("image_std")
    if not settings.get("do_normalize", True) or not mean or not std:
        if not settings or (scale == 1 and not offset):
            return None, None
        mean, std = (0.0,) * channels, (1.0,) * channels
    elif settings.get("include_top"):  # EfficientNet divides by std twice
        std = [d * d for d in std]
    return tuple((m + offset) / scale for m in mean), tuple(d / scale for d in std)


def resizing(settings: Mapping[str, Any]) -> Resizing | None:
    """How the processor brings pictures to one size; None where it does not."""
    if not settings.get("do_resize"):
        return None
    mode = _MODES.get(settings.get("resample", 2), "bicubic")
    short, size = _asked_size(settings)
    crop = as_sides(settings.get("crop_size")) if settings.get("do_center_crop") else None
    if short is not None and settings.get("crop_pct"):  # ConvNeXt: larger by that share, then the centre
        size, short = (short, short), int(short / settings["crop_pct"]) if short < 384 else None
    elif crop is not None:
        size = crop
    if size is None or (short is not None and short < max(size)):
        return None
    return Resizing(size, short, mode)


def _asked_size(settings: Mapping[str, Any]) -> tuple[int | None, tuple[int, int] | None]:
    """The shorter side, or both. A bare number, as older processors have it, is the former where a crop follows."""
    size = settings.get("size")
    if isinstance(size, Mapping) and set(size) == {"shortest_edge"}:
        return int(size["shortest_edge"]), None
    if isinstance(size, int) and (settings.get("do_center_crop") or settings.get("crop_pct")):
        return size, None
    return None, as_sides(size)


def as_sides(size: Any) -> tuple[int, int] | None:
    """Height and width, in whichever way a configuration writes them."""
    if isinstance(size, int):
        return size, size
    if isinstance(size, Mapping) and {"height", "width"} <= set(size):
        return int(size["height"]), int(size["width"])
    if isinstance(size, list | tuple) and len(size) == 2:
        return int(size[0]), int(size[1])
    return None
