"""`digits`: scikit-learn's bundled handwritten digits, which need no download."""

from __future__ import annotations

__all__ = ["digits"]

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
    from sklearn.datasets import load_digits

    pixels, labels = load_digits(return_X_y=True)
    part = slice(None, -_TEST) if where == "train" else slice(-_TEST, None)
    images = (np.asarray(pixels)[part].reshape(-1, 1, 8, 8) / 16).astype(np.float32)
    name = "digits:train" if where == "train" else "digits"
    return ArrayData(images, np.asarray(labels)[part], name=name, classes=10, unit=True)
