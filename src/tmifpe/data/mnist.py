"""`mnist:DIR` and `fashion-mnist:DIR`: the test sets as idx files, plain or gz, also in torchvision's layout."""

from __future__ import annotations

__all__ = ["fashion_mnist", "mnist", "read_idx"]

import gzip
import struct
from pathlib import Path
from typing import IO, cast

import numpy as np

from tmifpe.core.errors import InputError
from tmifpe.core.types import Data
from tmifpe.data.arrays import ArrayData
from tmifpe.data.checks import check_size, existing, read_bytes

_UINT8 = 0x08


def mnist(where: str) -> Data:
    """The 10,000 test images of MNIST, 1x28x28, 10 classes."""
    return _idx_pair(where, "mnist", "MNIST")


def fashion_mnist(where: str) -> Data:
    """The 10,000 test images of Fashion-MNIST, 1x28x28, 10 classes."""
    return _idx_pair(where, "fashion-mnist", "FashionMNIST")


def read_idx(path: Path, ndim: int) -> np.ndarray:
    """The uint8 array of an idx file: magic 00 00 08 ndim, the sizes as big-endian uint32, then the bytes."""
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            return _read_stream(cast("IO[bytes]", file), path, ndim)
    except InputError:
        raise
    except Exception as error:  # a damaged gz can fail in any way
        raise InputError(f"cannot read {path}: {error}") from error


def _read_stream(file: IO[bytes], path: Path, ndim: int) -> np.ndarray:
    head = file.read(4 + 4 * ndim)
    if len(head) < 4 + 4 * ndim or head[:4] != bytes((0, 0, _UINT8, ndim)):
        raise InputError(f"{path} is not an idx file of {ndim}-dimensional bytes (magic {head[:4].hex() or 'missing'})")
    shape = struct.unpack(f">{ndim}I", head[4:])
    size = check_size(str(path), shape, 1)
    content = read_bytes(file, size + 1)  # never more than declared, whatever a gz would expand to
    if len(content) != size:
        relation = "more than" if len(content) > size else f"{len(content)} of"
        raise InputError(f"{path} has {relation} the {size} bytes it declares; the file is damaged")
    return np.frombuffer(content, np.uint8).reshape(shape)


def _idx_pair(where: str, source: str, torchvision_name: str) -> Data:
    folder = existing(where, source, folder=True)
    places = [folder, folder / torchvision_name / "raw", folder / "raw"]
    images = read_idx(_find(places, "t10k-images-idx3-ubyte", source), 3)
    labels = read_idx(_find(places, "t10k-labels-idx1-ubyte", source), 1)
    return ArrayData(images[:, None], labels, name=f"{source}:{where}", classes=10)


def _find(places: list[Path], stem: str, source: str) -> Path:
    dotted = stem.replace("-idx", ".idx")  # as some mirrors spell it
    names = [stem, f"{stem}.gz", dotted, f"{dotted}.gz"]
    for path in (place / name for place in places for name in names):
        if path.is_file():
            return path
    raise InputError(f"{source} needs {stem} or {stem}.gz in {places[0]} (or in {places[1]}); it is not there")
