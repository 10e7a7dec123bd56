"""Pictures brought to one size, as the evaluations of common networks do it."""

from __future__ import annotations

__all__ = ["PRESETS", "Resize"]

import re
from dataclasses import dataclass
from typing import Any

from tmifpe.core.errors import InputError, shown
from tmifpe.core.numbers import whole_number

_LONGEST = 256  # times the shorter side: a thin line of a few bytes would be resized to gigabytes
_LARGEST = 1 << 14
_FORM = re.compile(r"(\d{1,5})(?:x(\d{1,5}))?(?::(bilinear|bicubic))?")


@dataclass(frozen=True)
class Resize:
    """The shorter side to `short` (or height and width to `exact`), then the centre of `crop`; None leaves it out.

    What torchvision's Resize and CenterCrop do to a picture, to the pixel.
    """

    short: int | None = None
    exact: tuple[int, int] | None = None
    crop: int | None = None
    bicubic: bool = False

    @classmethod
    def of(cls, resize: str | int | None, crop: int | None) -> Resize:
        """From words: `256`, `256:bicubic`, `224x224`, or a preset, which brings its own crop.

        >>> Resize.of("Res256Crop224", None) == Resize.of("256", 224)
        True
        """
        crop = None if crop is None else whole_number("crop", crop, most=_LARGEST)
        text = "" if resize is None else str(resize).strip().lower()
        if text in PRESETS:
            if crop is not None:
                raise InputError(f"{text} crops to {PRESETS[text].crop} itself; leave `crop` out, or give a number")
            return PRESETS[text]
        if not text:
            return cls(crop=crop)
        match = _FORM.fullmatch(text)
        sides = [int(side) for side in match.groups()[:2] if side] if match else []
        if match is None or not all(1 <= side <= _LARGEST for side in sides):
            raise InputError(
                f"resize must be a size such as 256, 256:bicubic or 224x224, or one of {', '.join(PRESETS)}, got "
                f"{shown(resize)}"
            )
        exact = (sides[0], sides[1]) if len(sides) == 2 else None
        return cls(None if exact else sides[0], exact, crop, match[3] == "bicubic")

    @property
    def spelled(self) -> str:
        """As the identity of the data keeps it; nothing where nothing is done."""
        size = f"{self.exact[0]}x{self.exact[1]}" if self.exact else str(self.short or "")
        words = [f"resize={size}:{'bicubic' if self.bicubic else 'bilinear'}"] if size else []
        return ",".join([*words, f"crop={self.crop}"] if self.crop else words)

    def __call__(self, picture: Any) -> Any:
        picture = self._resized(picture)
        if self.crop is None:
            return picture
        width, height = picture.size
        if min(width, height) < self.crop:
            raise InputError(f"it is {width}x{height}: too small to be cropped to {self.crop}; resize it first")
        left, top = round((width - self.crop) / 2), round((height - self.crop) / 2)
        return picture.crop((left, top, left + self.crop, top + self.crop))

    def _resized(self, picture: Any) -> Any:
        from PIL import Image

        width, height = picture.size
        if self.exact is not None:
            size = (self.exact[1], self.exact[0])
        elif self.short is not None:
            short = self.short
            size = (short, int(short * height / width)) if width <= height else (int(short * width / height), short)
            if max(size) > _LONGEST * short:
                raise InputError(f"it is {width}x{height}: too narrow to be resized")
        else:
            return picture
        return picture.resize(size, Image.Resampling.BICUBIC if self.bicubic else Image.Resampling.BILINEAR)


PRESETS = {
    "res256crop224": Resize(256, crop=224),
    "bicubicres256crop224": Resize(256, crop=224, bicubic=True),
    "crop288": Resize(crop=288),
}
"""As RobustBench names what its networks are evaluated with, in small letters."""
