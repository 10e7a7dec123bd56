"""From the text of `--data` to data."""

from __future__ import annotations

__all__ = ["load_data"]

import difflib
from collections.abc import Sequence
from pathlib import Path

from tmifpe.core.errors import InputError, shown
from tmifpe.core.files import as_class_names
from tmifpe.core.rng import preserved_rng
from tmifpe.core.types import UNIT, Box, Data
from tmifpe.data.catalogue import DATA
from tmifpe.data.folder import imagefolder
from tmifpe.data.resize import Resize
from tmifpe.data.stratified import stratified
from tmifpe.data.subset import in_box, subset


@preserved_rng()
def load_data(
    text: str,
    *,
    indices: Sequence[int | str] | None = None,
    limit: int | None = None,
    sample: int | None = None,
    sample_seed: int = 0,
    classes: Sequence[str] | str | Path | None = None,
    resize: str | int | None = None,
    crop: int | None = None,
    box: Box = UNIT,
) -> Data:
    """The data that `text` names, e.g. `mnist:DIR` or `my_data.py:load`, which is run; of it the given indices; of
    those the first `limit`, or `sample` drawn at random, for a `sample_seed` always the same ones, each class by its
    share.

    For image folders: `classes`, the names of the folders in the model's order (or a file of them, one per line);
    `resize` (256, 256:bicubic, 224x224, Res256Crop224, BicubicRes256Crop224, Crop288) and `crop`.

    box: the lowest and highest value of a pixel. Bytes and the data sets that have a name fill it; floating images of
    your own must lie in it. `evaluate` and `compare` set it to that of their threat.

    >>> data = load_data("digits", limit=3)
    >>> data
    <3 of the 500 examples of digits, 1x8x8>
    >>> x, y = data.fetch(range(len(data)))  # as tensors
    >>> x.shape, data.indices
    (torch.Size([3, 1, 8, 8]), [0, 1, 2])
    """
    if isinstance(text, Path):
        raise InputError(f"{text} may be data of any kind: say which, as in 'npz:{text}'")
    data = in_box(_open_folder(text.strip(), classes, resize, crop) or _open(text.strip()), box)
    if indices is not None:
        data = subset(data, indices)
    if limit is not None and sample is not None:
        raise InputError("limit takes the first examples and sample draws some; give one of them")
    if sample is not None:
        data = stratified(data, sample, sample_seed)
    if limit is not None:
        if limit < 1:
            raise InputError(f"the limit must be at least 1, got {limit}")
        if limit < len(data):
            data = subset(data, range(limit))
    return data


def _open_folder(
    text: str, classes: Sequence[str] | str | Path | None, resize: str | int | None, crop: int | None
) -> Data | None:
    """An image folder with what only such a folder takes; None where nothing of that is asked for."""
    if classes is None and resize is None and crop is None:
        return None
    scheme, _, where = text.partition(":")
    if scheme != "imagefolder":
        _check_path(text)
        raise InputError(f"classes, resize and crop are for image folders: write imagefolder:DIR, got {shown(text)}")
    names = as_class_names(classes) if classes is not None else ()
    return imagefolder(where, names, Resize.of(resize, crop))


def _open(text: str) -> Data:
    scheme, colon, where = text.partition(":")
    if not colon and text not in DATA:
        _check_path(text)
    own_code = colon and scheme not in DATA and not difflib.get_close_matches(scheme, DATA, n=1)
    return DATA.get(text)("") if own_code else DATA.get(scheme)(where)


def _check_path(text: str) -> None:
    """`InputError` for a bare path of something that is there: it needs to be said what it holds."""
    try:
        folder, file = Path(text).expanduser().is_dir(), Path(text).expanduser().is_file()
    except (OSError, ValueError, RuntimeError):  # a name too long, with a null byte, or of a user who is not there
        return
    if folder and text:  # no name at all is no folder either
        raise InputError(
            f"{text} is a folder: say what it holds, as in imagefolder:{text} (a folder per class), mnist:{text} or "
            f"cifar10:{text}"
        )
    if file:
        raise InputError(f"{text} is a file: say what it holds, as in npz:{text}")
