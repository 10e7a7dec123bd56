"""What a model source is: a function from the user's request to a network and what is known about it."""

from __future__ import annotations

__all__ = ["Asked", "Loaded", "Source", "existing", "nothing_after", "own_weights_only"]

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from tmifpe.core.errors import InputError, shown
from tmifpe.core.types import Box, Model
from tmifpe.models.processor import Resizing


@dataclass(frozen=True)
class Asked:
    """`source` is the registered name, `where` what names the model within it, `weights` the user's file or folder."""

    source: str
    where: str
    weights: Path | None = None
    classes: tuple[str, ...] = ()
    """Names of classes, for models that are told them in words."""
    template: str = ""
    """A sentence with {} in the place of a name."""
    features: bool = False
    """Whether the network is wanted without its head, as the backbone of a probe."""


@dataclass(frozen=True)
class Loaded:
    """A network as its source made it. `stamp` is what identifies it beside its weights: a name, a file's hash."""

    module: Model
    stamp: str
    classes: int | None = None
    input_shape: tuple[int, ...] | None = None
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None
    notes: tuple[str, ...] = ()
    box: Box | None = None
    """The images it was made for, where its source knows."""
    takes_bytes: bool = False
    """Whether it rounds images to bytes first, so that no normalisation may come before it."""
    class_names: tuple[str, ...] = ()
    resizing: Resizing | None = None
    """How images of another size are brought to that of `input_shape`."""
    normalises: bool = False
    """Whether parts of it normalise by themselves, so that no further normalisation may come before it."""
    resizes: bool = False
    """Whether it brings images of any size to that of `input_shape` by itself."""


Source: TypeAlias = Callable[[Asked], Loaded]


def existing(where: str, what: str) -> Path:
    """The file a user named, if it is there."""
    try:
        path = Path(where).expanduser()
        if path.is_file():
            return path
    except (OSError, ValueError, RuntimeError):  # a name too long, with a null byte, or of a user who is not there
        pass
    raise InputError(f"no such file: {where} ({what})")


def nothing_after(asked: Asked) -> None:
    """For names that stand alone: what is written after a colon would not be looked at."""
    if asked.where:
        raise InputError(
            f"{asked.source} takes nothing after a colon, got {shown(asked.where)}; weights go to `weights`"
        )


def own_weights_only(asked: Asked) -> None:
    """For files that hold architecture and weights together: a second set of weights is a mistake."""
    if asked.weights is not None:
        raise InputError(f"{asked.where} carries its own weights; leave out `weights={asked.weights}`")
