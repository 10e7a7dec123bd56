"""`digits`: scikit-learn's bundled handwritten digits, which need no download."""

from __future__ import annotations

__all__ = ["digits"]

import gzip
from importlib.util import find_spec
from pathlib import Path

import numpy as np

from tmifpe.core.errors import InputError
from tmifpe.core.types import Data
from tmifpe.data.arrays import ArrayData

_TEST = 500


def digits(where: str) -> Data:
    """1797 images of 1x8x8 in sixteenths. The last 500 are the test set, `digits:train` the 1297 before them.

    The order is that of the writers, so unlike a shuffled split the test set has other hands than the training set.
    """
    if where not in ("", "test", "train"):
        raise InputError(f"digits has the splits test and train, not {where!r}")
    rows = _rows()[slice(None, -_TEST) if where == "train" else slice(-_TEST, None)]
    images = (rows[:, :-1].reshape(-1, 1, 8, 8) / 16).astype(np.float32)
    name = "digits:train" if where == "train" else "digits"
    return ArrayData(images, rows[:, -1].astype(np.int64), name=name, classes=10, unit=True)


def _rows() -> np.ndarray:
    """64 pixels and the label of every image, from scikit-learn's file. Its loader is asked only where the file has
    moved: to import it, with pandas where that is installed, takes longer than most commands on these images."""
    package = find_spec("sklearn")
    for folder in (package.submodule_search_locations or []) if package else []:
        file = Path(folder) / "datasets" / "data" / "digits.csv.gz"
        if file.is_file():
            with gzip.open(file) as table:
                return np.loadtxt(table, delimiter=",")
    from sklearn.datasets import load_digits

    pixels, labels = load_digits(return_X_y=True)
    return np.column_stack([pixels, labels])
