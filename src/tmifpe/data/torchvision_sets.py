"""`torchvision:NAME[:DIR]`: the test split of a torchvision dataset, downloaded where it is missing."""

from __future__ import annotations

__all__ = ["torchvision_set"]

import contextlib
import inspect
import io
from pathlib import Path
from typing import Any

from tmifpe.core.errors import InputError, did_you_mean, first_line
from tmifpe.core.extras import import_extra
from tmifpe.core.types import Data
from tmifpe.data.arrays import LazyData
from tmifpe.data.wrap import dataset_item


def torchvision_set(where: str) -> Data:
    """torchvision checks the files it downloads against known sums, and then unpickles some of them: trust its host."""
    name, _, folder = where.partition(":")
    sets = import_extra("torchvision.datasets", "torchvision datasets", "torchvision", uses_torchvision=True)
    if name not in sets.__all__:
        raise did_you_mean("torchvision dataset", name, sets.__all__)
    try:
        root = Path(folder or "~/.cache/tmifpe/torchvision").expanduser()
    except RuntimeError:
        raise InputError(f"no such folder: {folder} (from torchvision:{where})") from None
    data = _make(getattr(sets, name), name, root)
    classes = getattr(data, "classes", None)
    return LazyData(dataset_item(data), len(data), f"torchvision:{where}", len(classes) if classes else None)


def _make(kind: Any, name: str, root: Path) -> Any:
    """The dataset as it lies there, else downloaded; the arguments are those of its kind that mean the test split."""
    takes = inspect.signature(kind.__init__).parameters
    fixed: dict[str, Any] = {}
    if "root" in takes:
        fixed["root"] = str(root)
    if "train" in takes:
        fixed["train"] = False
    attempts = [fixed]
    if "split" in takes and "train" not in takes:
        attempts = [{**fixed, "split": split} for split in ("test", "val", "valid")]
    if "download" in takes:
        attempts += [{**attempt, "download": True} for attempt in attempts]
    reasons: list[str] = []
    for attempt in attempts:
        made = _try(kind, attempt, reasons)
        if made is not None:
            return made
    raise InputError(f"torchvision:{name} is not in {root} and could not be downloaded: {reasons[-1]}")


def _try(kind: Any, arguments: dict[str, Any], reasons: list[str]) -> Any:
    try:
        with contextlib.redirect_stdout(io.StringIO()):  # progress of downloads is no output of ours
            return kind(**arguments)
    except Exception as error:  # not there, no network, another split
        reasons.append(first_line(error))
        return None
