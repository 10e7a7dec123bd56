"""`npz:FILE`: arrays `images` and `labels` in a numpy archive, read without pickle and without trusting its sizes."""

from __future__ import annotations

__all__ = ["npz", "read_arrays", "read_header", "read_npz"]

import warnings
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import IO

import numpy as np
from numpy.lib import format as npy

from tmifpe.core.errors import InputError
from tmifpe.core.types import Data
from tmifpe.data.arrays import ArrayData
from tmifpe.data.checks import check_size, existing, read_bytes

_MAX_RATIO = 200
_BOMB_BYTES = 1 << 30


def npz(where: str) -> Data:
    """`images` (n, C, H, W), uint8 or floating in [0, 1], and `labels` (n,) of an npz file."""
    return read_npz(existing(where, "npz", folder=False), name=f"npz:{where}")


def read_npz(path: Path, *, name: str, classes: int | None = None, unit: bool = False) -> ArrayData:
    """The arrays of an npz file, each checked against what its zip entry can hold before it is allocated."""
    arrays = read_arrays(path, ("images", "labels"))
    return ArrayData(arrays["images"], arrays["labels"], name=name, classes=classes, unit=unit)


def read_arrays(path: Path, wanted: Sequence[str], optional: Sequence[str] = ()) -> dict[str, np.ndarray]:
    """Arrays of an npz file by name, those that are `optional` only if they are there."""
    try:
        with zipfile.ZipFile(path) as archive:
            there = [key for key in optional if f"{key}.npy" in archive.namelist()]
            return {key: _read(archive, key, path) for key in (*wanted, *there)}
    except InputError:
        raise
    except Exception as error:  # a damaged zip can fail in any way
        raise InputError(f"{path} is not a readable npz file: {error}") from error


def _read(archive: zipfile.ZipFile, key: str, path: Path) -> np.ndarray:
    what = f"array {key!r} of {path}"
    try:
        entry = archive.getinfo(f"{key}.npy")
    except KeyError:
        found = ", ".join(sorted(n.removesuffix(".npy") for n in archive.namelist())[:8]) or "nothing"
        raise InputError(f"{path} has no array {key!r} (it holds {found}); save it under that name") from None
    with archive.open(entry) as file:
        try:
            shape, fortran, dtype = read_header(file)
        except (ValueError, TypeError, RecursionError, MemoryError) as error:
            raise InputError(f"{what} has a damaged header: {error}") from error
        if dtype.hasobject or dtype.kind not in "biuf":
            raise InputError(f"{what} holds {dtype}, not numbers; object arrays are never unpickled")
        size = check_size(what, shape, dtype.itemsize)
        if file.tell() + size != entry.file_size:
            raise InputError(f"{what} declares {size} bytes but its entry has {entry.file_size - file.tell()}")
        if size > _BOMB_BYTES and size > _MAX_RATIO * max(1, entry.compress_size):
            raise InputError(f"{what} would unpack to {size / 2**30:.1f} GiB from {entry.compress_size} bytes; refused")
        content = read_bytes(file, size)
    if len(content) != size:
        raise InputError(f"{what} ends after {len(content)} of {size} bytes; the file is damaged")
    return np.frombuffer(content, dtype).reshape(shape, order="F" if fortran else "C")


def read_header(file: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype]:
    """Shape, Fortran order and dtype that an npy file states; it may be anything."""
    version = npy.read_magic(file)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # on how the header is spelt
        if version == (1, 0):
            return npy.read_array_header_1_0(file)
        if version == (2, 0):
            return npy.read_array_header_2_0(file)
    raise ValueError(f"npy format {version[0]}.{version[1]} is not one of plain numbers")
