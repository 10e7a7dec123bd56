"""`imagefolder:DIR` and `imagenet:DIR`: a folder per class, images decoded when they are fetched."""

from __future__ import annotations

__all__ = ["FolderData", "imagefolder", "imagenet", "imagenet_bicubic"]

import importlib.util
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tmifpe.core.errors import InputError, MissingExtra, shown
from tmifpe.core.hashing import digest
from tmifpe.core.types import Data
from tmifpe.data.arrays import LazyData
from tmifpe.data.checks import existing
from tmifpe.data.resize import PRESETS, Resize
from tmifpe.data.wrap import as_image

_SUFFIXES = frozenset({".bmp", ".gif", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp"})


@dataclass(frozen=True)
class FolderData(LazyData):
    """Lazy data that also knows the file of each example, so that errors name it and `--indices` may."""

    positions: dict[str, int] = field(default_factory=dict)
    labels: Tensor = field(default_factory=lambda: torch.empty(0, dtype=torch.int64), compare=False)
    class_names: tuple[str, ...] = ()

    @property
    def files(self) -> list[str]:
        """The name of each example, below the folder."""
        return list(self.positions)

    def example(self, position: int) -> str:
        return list(self.positions)[position]

    def locate(self, name: str) -> int:
        """The position of `class/file`, or of a file whose bare name is unique."""
        if name in self.positions:
            return self.positions[name]
        matches = [place for file, place in self.positions.items() if file.endswith(f"/{name}")]
        if len(matches) != 1:
            raise InputError(f"{self.name} has {'no' if not matches else len(matches)} files named {name!r}")
        return matches[0]


def imagefolder(where: str, class_names: Sequence[str] = (), resize: Resize = Resize()) -> Data:  # noqa: B008 - frozen
    """DIR/class/image, files in sorted order; classes likewise, or as `class_names` counts them, of which folders may
    be missing. Images must have one size, unless they are resized."""
    return _folder(where, "imagefolder", lambda image: resize(_as_it_is(image)), names=class_names, how=resize.spelled)


def imagenet(where: str) -> Data:
    """ImageNet's validation set, shorter side to 256 (bilinear), centre 224: RobustBench's Res256Crop224."""
    return _folder(where, "imagenet", lambda image: PRESETS["res256crop224"](_rgb(image)), 1000)


def imagenet_bicubic(where: str) -> Data:
    """The same resized bicubically: RobustBench's BicubicRes256Crop224."""
    return _folder(where, "imagenet-bicubic", lambda image: PRESETS["bicubicres256crop224"](_rgb(image)), 1000)


def _folder(
    where: str,
    source: str,
    transform: Callable[[Any], Any],
    classes: int | None = None,
    names: Sequence[str] = (),
    how: str = "",
) -> Data:
    root = existing(where, source, folder=True)
    if importlib.util.find_spec("PIL") is None:  # checked now, so that a missing extra shows before any work
        raise MissingExtra("image folders", "images")
    if classes is not None and (root / "val").is_dir():
        root = root / "val"
    folders = sorted(path for path in root.iterdir() if path.is_dir() and not path.name.startswith("."))
    if classes is not None and len(folders) != classes:
        raise InputError(
            f"{source} needs {classes} class folders in {root} for labels to be ImageNet's, found {len(folders)}; "
            "for classes of your own use imagefolder:DIR"
        )
    order = tuple(names) or tuple(folder.name for folder in folders)
    _check_folders([folder.name for folder in folders], order, str(root))
    found = [_images(folder) for folder in folders]
    place = {name: label for label, name in enumerate(order)}
    files = [(path, place[folder.name]) for folder, paths in zip(folders, found, strict=True) for path in paths]
    if not files:
        raise InputError(f"{root} has no images in class folders (DIR/class/image.png)")
    empty = [folder.name for folder, paths in zip(folders, found, strict=True) if not paths]
    if empty and classes is None:  # it would count as a class, and shift the labels of those after it
        raise InputError(f"the class folder {shown(empty[0])} of {root} has no images; remove it, or fill it")
    named = [path.relative_to(root).as_posix() for path, _ in files]
    sizes = [f"{name}:{path.stat().st_size}" for name, (path, _) in zip(named, files, strict=True)]
    stamp = digest([source, *order, *sizes, *([how] if how else [])])
    return FolderData(
        item=lambda position: (_read(files[position][0], transform), files[position][1]),
        length=len(files),
        name=f"{source}:{where}",
        classes=len(order),
        stamp=stamp,
        positions={name: position for position, name in enumerate(named)},
        labels=torch.tensor([label for _, label in files]),
        class_names=order,
    )


def _check_folders(folders: Sequence[str], names: Sequence[str], where: str) -> None:
    """`InputError` unless every folder is one of the classes."""
    known = set(names)
    if unknown := [folder for folder in folders if folder not in known]:
        raise InputError(
            f"the class folder {shown(unknown[0])} of {where} is none of the {len(names)} classes that were named "
            f"({shown(names[0])}, ...); add it there in its place, or move the folder away"
        )


def _images(folder: Path) -> list[Path]:
    found = (
        path
        for path in folder.rglob("*")
        if path.suffix.lower() in _SUFFIXES and path.is_file() and path.name[0] != "."
    )
    return sorted(found, key=lambda path: path.relative_to(folder).as_posix())


def _read(path: Path, transform: Callable[[Any], Any]) -> Tensor:
    from PIL import Image

    try:
        with Image.open(path) as image:
            return as_image(transform(image))
    except Exception as error:  # a damaged picture can fail anywhere inside Pillow
        raise InputError(f"cannot read the image {path}: {error}") from error


def _as_it_is(image: Any) -> Any:
    """Grey pictures keep their one channel, everything else becomes RGB."""
    return image.convert("L") if image.mode in ("1", "L", "LA") else _rgb(image)


def _rgb(image: Any) -> Any:
    if image.mode[:1] in ("I", "F"):  # Pillow would clip them to white
        raise InputError(f"it has more than 8 bits per channel (mode {image.mode}); convert it to 8 bits first")
    return image.convert("RGB")
