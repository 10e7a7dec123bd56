"""`hf:NAME[:split]`: an image classification dataset of Hugging Face, from the hub, the cache or a folder."""

from __future__ import annotations

__all__ = ["hf"]

from pathlib import Path
from typing import Any

from torch import Tensor

from tmifpe.core.errors import InputError, first_line
from tmifpe.core.extras import import_extra
from tmifpe.core.types import Data
from tmifpe.data.arrays import LazyData
from tmifpe.data.wrap import as_image, as_label

_SPLITS = ("test", "validation")
_LABELS = ("label", "labels", "fine_label", "target")


def hf(where: str) -> Data:
    """Its test split, or else its validation split; images are decoded when fetched, code of the hub is never run."""
    name, _, split = where.partition(":")
    if not name:
        raise InputError("hf needs a name: write hf:NAME[:split], e.g. hf:ylecun/mnist:test")
    datasets = import_extra("datasets", "Hugging Face datasets", "hf")
    table = _load(datasets, name, split)
    image, label = _columns(datasets, table, where)
    names = getattr(table.features[label], "names", None)

    def item(position: int) -> tuple[Tensor, int]:
        row = table[position]
        return as_image(_plain(row[image])), as_label(row[label])

    return LazyData(item, len(table), f"hf:{where}", classes=len(names) if names else None)


def _load(datasets: Any, name: str, split: str) -> Any:
    try:
        folder = Path(name).expanduser()
        saved = (folder / "dataset_info.json").is_file() or (folder / "dataset_dict.json").is_file()
        loaded = datasets.load_from_disk(str(folder)) if saved else datasets.load_dataset(name)
    except Exception as error:  # no network, no such name, a damaged cache
        first = first_line(error)
        raise InputError(
            f"cannot load the dataset hf:{name} (a folder, in the cache or on the hub): {first}"
        ) from error
    if not isinstance(loaded, dict):
        if split and split != str(getattr(loaded, "split", None)):
            raise InputError(f"hf:{name} holds one set without a split {split!r}; leave out :{split}")
        return loaded
    wanted = [split] if split else [known for known in _SPLITS if known in loaded]
    if not wanted or wanted[0] not in loaded:
        raise InputError(f"hf:{name} has the splits {', '.join(loaded)}; name one as hf:{name}:SPLIT")
    return loaded[wanted[0]]


def _columns(datasets: Any, table: Any, where: str) -> tuple[str, str]:
    images = [name for name, kind in table.features.items() if isinstance(kind, datasets.Image)]
    labels = [name for name, kind in table.features.items() if isinstance(kind, datasets.ClassLabel)]
    labels = [name for name in _LABELS if name in table.features] or labels
    if not images or not labels:
        raise InputError(f"hf:{where} has the columns {', '.join(table.features)}; an image and a label are needed")
    return images[0], labels[0]


def _plain(picture: Any) -> Any:
    """Palettes, alpha and the like become RGB; grey stays grey."""
    return picture if picture.mode in ("L", "RGB") else picture.convert("RGB")
