"""`cifar10:DIR` and `cifar100:DIR`: the python test batches, unpickled by a reader that knows only numbers and text."""

from __future__ import annotations

__all__ = ["cifar10", "cifar100", "read_batch"]

import io
import pickle
from pathlib import Path
from typing import Any

import numpy as np

from tmifpe.core.errors import InputError
from tmifpe.core.types import Data
from tmifpe.data.arrays import ArrayData
from tmifpe.data.checks import existing
from tmifpe.data.npz import read_npz

_MAX_FILE = 1 << 30


def cifar10(where: str) -> Data:
    """The 10,000 test images of CIFAR-10, 3x32x32; or those of the one npz file in the folder."""
    return _load(where, "cifar10", ("cifar-10-batches-py", "test_batch"), "labels", 10)


def cifar100(where: str) -> Data:
    """The 10,000 test images of CIFAR-100 with its fine labels; or those of the one npz file in the folder."""
    return _load(where, "cifar100", ("cifar-100-python", "test"), "fine_labels", 100)


def read_batch(path: Path, labels: str) -> tuple[np.ndarray, Any]:
    """Images (n, 3, 32, 32) uint8 and the list of labels in a CIFAR batch; nothing in it can run code."""
    if path.stat().st_size > _MAX_FILE:
        raise InputError(f"{path} has more than {_MAX_FILE >> 30} GiB and is no CIFAR batch")
    try:
        batch = _Reader(io.BytesIO(path.read_bytes()), encoding="latin1").load()
    except Exception as error:  # a damaged pickle can fail in any way; a hostile one fails in find_class
        raise InputError(f"{path} is not a CIFAR batch: {error}") from error
    named = {_text(key): value for key, value in batch.items()} if isinstance(batch, dict) else {}
    images = _array(named.get("data"))
    if images is None or images.dtype != np.uint8 or images.ndim != 2 or images.shape[1] != 3072:
        raise InputError(f"{path} is not a CIFAR batch: it has no array 'data' of shape (n, 3072) in uint8")
    if labels not in named:
        raise InputError(f"{path} has no {labels!r}; is it a batch of the other CIFAR?")
    numbers = named[labels]
    return images.reshape(-1, 3, 32, 32), _array(numbers) if isinstance(numbers, _Array) else numbers


def _load(where: str, source: str, usual: tuple[str, str], labels: str, classes: int) -> Data:
    folder = existing(where, source, folder=True)
    name = f"{source}:{where}"
    for path in (folder / usual[0] / usual[1], folder / usual[1]):
        if path.is_file():
            images, numbers = read_batch(path, labels)
            return ArrayData(images, numbers, name=name, classes=classes)
    archives = sorted(folder.glob("*.npz"))
    if len(archives) == 1:
        return read_npz(archives[0], name=name, classes=classes, unit=True)
    raise InputError(
        f"{source} needs {usual[0]}/{usual[1]} (or {usual[1]}, or one npz file) in {folder}; "
        + (f"there are {len(archives)} npz files" if archives else "it is not there")
    )


class _Reader(pickle._Unpickler):  # pyright: ignore[reportPrivateUsage]
    """Numbers, text, bytes, lists, dicts and arrays; every other name in the pickle is refused, unimported.

    Python's own unpickler, not the C one, which allocates whatever size a file states. And no object of numpy is made
    while reading: the state of a dtype is taken at its word, and a false one makes numpy follow pointers that are
    bytes of the file.
    """

    def find_class(self, module: str, name: str) -> Any:
        known = _KNOWN.get((module.replace("numpy._core", "numpy.core"), name))
        if known is None:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}, which is refused")
        return known


class _Dtype:
    """What a file says of a dtype: its name, and from its state the byte order."""

    def __init__(self, name: str = "", *_: Any) -> None:
        self.name: Any = name
        self.order: Any = "<"

    def __setstate__(self, state: Any) -> None:
        self.order = state[1]


class _Array:
    """What a file says of an array."""

    def __init__(self, *_: Any) -> None:
        self.shape: Any = ()
        self.dtype: Any = _Dtype()
        self.order: Any = "C"
        self.content: Any = b""

    def __setstate__(self, state: Any) -> None:
        _, self.shape, self.dtype, fortran, self.content = state
        self.order = "F" if fortran else "C"


def _from_buffer(content: Any, dtype: Any, shape: Any, order: Any = "C") -> _Array:
    """How numpy writes arrays in protocol 5."""
    made = _Array()
    made.content, made.dtype, made.shape, made.order = content, dtype, shape, order
    return made


def _array(found: Any) -> np.ndarray | None:
    """The array that was described, if it is one of whole numbers and its bytes are all there."""
    if not isinstance(found, _Array) or not isinstance(found.content, str | bytes | bytearray):
        return None
    try:
        # Python 2 wrote bytes as text.
        content = found.content.encode("latin1") if isinstance(found.content, str) else found.content
        dtype = _WHOLE[found.dtype.name].newbyteorder(">" if found.dtype.order == ">" else "<")
        return np.frombuffer(content, dtype).reshape(found.shape, order="F" if found.order == "F" else "C")
    except Exception:  # every part of the description may be anything
        return None


def _encode(text: str, encoding: str = "latin1") -> bytes:
    """How Python 3 writes bytes in protocol 2; no other codec is needed."""
    if encoding not in ("latin1", "latin-1"):
        raise pickle.UnpicklingError(f"codec {encoding!r} is refused")
    return text.encode("latin1")


_WHOLE = {
    f"{order}{kind}{size}": np.dtype(f"{kind}{size}")
    for order in ("", "|", "<")
    for kind in "iu"
    for size in (1, 2, 4, 8)
}
_KNOWN: dict[tuple[str, str], Any] = {
    ("numpy.core.multiarray", "_reconstruct"): _Array,
    ("numpy.core.numeric", "_frombuffer"): _from_buffer,
    ("numpy", "ndarray"): "ndarray",  # only ever named as _reconstruct's argument; a text cannot be called
    ("numpy", "dtype"): _Dtype,
    ("_codecs", "encode"): _encode,
}


def _text(key: Any) -> str:
    return key.decode("latin1") if isinstance(key, bytes) else str(key)
