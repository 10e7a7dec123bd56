"""What every data source promises: images in [0, 1], labels that are class numbers, sizes that can be held."""

from __future__ import annotations

__all__ = ["MAX_BYTES", "as_images", "check_images", "check_labels", "check_size", "existing", "read_bytes"]

from math import isfinite, prod
from pathlib import Path
from typing import IO, Any

import numpy as np
import torch
from torch import Tensor

from tmifpe.core.errors import InputError
from tmifpe.core.numbers import extent
from tmifpe.core.numerics import box_slack
from tmifpe.core.types import UNIT, Box

MAX_BYTES = 8 << 30
"""The most that one array of a file may declare: 8 GiB. Larger sets belong in a folder, which is read lazily."""


_PIXELS = (torch.uint8, torch.float16, torch.bfloat16, torch.float32, torch.float64)


def check_size(what: str, shape: tuple[int, ...], itemsize: int) -> int:
    """The bytes an array of that shape takes; refused before anything is allocated when a header claims too much."""
    if any(side < 0 for side in shape):
        raise InputError(f"{what} declares a negative size {shape}; the file is damaged")
    size = prod(shape) * itemsize
    if size > MAX_BYTES:
        raise InputError(f"{what} declares {size / 2**30:.1f} GiB; at most {MAX_BYTES >> 30} GiB are read into memory")
    return size


def read_bytes(file: IO[bytes], size: int) -> bytearray:
    """At most `size` bytes, in pieces: Python allocates what it is asked to read before it finds that there is less."""
    content = bytearray()
    while len(content) < size and (piece := file.read(min(size - len(content), 1 << 20))):
        content += piece
    return content


def as_images(images: Any, what: str) -> Tensor:
    """Any array of images as a tensor (n, ...), detached: uint8 (0 … 255) or floating, at least 2-D, not empty."""
    tensor = _tensor(images, f"the images of {what}")
    if tensor.ndim < 2:
        raise InputError(f"the images of {what} must have shape (n, C, H, W) or (n, ...), got {tuple(tensor.shape)}")
    if tensor.numel() == 0:
        raise InputError(f"{what} is empty (images of shape {tuple(tensor.shape)}); nothing to evaluate")
    if tensor.dtype not in _PIXELS:
        raise InputError(
            f"the images of {what} are {_word(tensor.dtype)}; give uint8 in 0 … 255 or floating numbers in [0, 1]"
        )
    if tensor.ndim == 4 and tensor.shape[1] > 4 and tensor.shape[3] in (1, 3, 4):
        raise InputError(
            f"the images of {what} have shape {tuple(tensor.shape)}, which looks like channels last; "
            "store them as (n, C, H, W)"
        )
    return tensor


def check_images(images: Tensor, what: str, box: Box = UNIT, *, unit: bool = False) -> Tensor:
    """Images as a model gets them. Bytes fill the box, in float32, and so do floating ones of a source that gives them
    in [0, 1] (`unit`); others must lie in the box, up to rounding, and are left as they are."""
    if images.dtype == torch.uint8:
        return _fill(images.to(torch.float32).div_(255), box)  # in [0, 1] the very floats of torchvision's ToTensor
    if unit:
        return _fill(check_images(images, what), box)
    if images.numel() == 0:
        return images
    low, high = (float(edge) for edge in torch.aminmax(images.detach()))
    if not (isfinite(low) and isfinite(high)):
        raise InputError(f"the images of {what} hold NaN or infinite values")
    slack = box_slack(*box)
    if low < box[0] - slack or high > box[1] + slack:
        raise InputError(
            f"the images of {what} must lie in [{box[0]:g}, {box[1]:g}] but reach {extent(low, high, box)}; scale "
            "them and normalise inside the model, `tmifpe.Normalize(model, mean, std)`, or give the box that they are "
            "in, `Threat(norm, eps, low, high)`"
        )
    return images


def _fill(images: Tensor, box: Box) -> Tensor:
    """From [0, 1] to the box; rounding does not lead out of it."""
    if box == UNIT:
        return images
    low, high = box
    return images.mul(high - low).add_(low).clamp_(low, high)


def check_labels(labels: Any, n: int, what: str) -> Tensor:
    """Labels as int64 (n,): whole numbers from 0."""
    tensor = _tensor(labels, f"the labels of {what}")
    if tensor.ndim != 1:
        raise InputError(
            f"the labels of {what} must be class numbers of shape (n,), got shape {tuple(tensor.shape)}{_other(tensor)}"
        )
    if tensor.dtype == torch.bool or tensor.dtype.is_floating_point or tensor.dtype.is_complex:
        raise InputError(f"the labels of {what} must be integers, got {_word(tensor.dtype)}")
    if len(tensor) != n:
        raise InputError(f"{what} has {n} images but {len(tensor)} labels")
    tensor = tensor.to(torch.int64)
    if n and int(tensor.min()) < 0:
        raise InputError(f"the labels of {what} must not be negative, got {int(tensor.min())}")
    return tensor


def _other(labels: Tensor) -> str:
    """What labels of another shape may be, and what they would need."""
    if labels.ndim == 2 and labels.shape[1] == 1:
        return "; from a column take `labels.squeeze(1)`"
    if labels.ndim == 2:
        return (
            "; from one-hot rows take `labels.argmax(1)`; several labels per image (multi-label) would need a loss and "
            "a rule of success over sets of labels, which there is not"
        )
    if labels.ndim > 2:
        return (
            "; labels per pixel (segmentation) would need a loss and a rule of success over pixels, which there is not"
        )
    return ""


def existing(where: str, source: str, *, folder: bool) -> Path:
    """The path a user named, as a file or folder that is there. source: what stands before its colon, or `argument`."""
    kind = "folder" if folder else "file"
    option = source.startswith("`")
    if not where:
        write = "" if option else f": write {source}:{'DIR' if folder else 'FILE'}"
        raise InputError(f"{source} needs a {kind}{write}")
    try:
        path = Path(where).expanduser()
        if path.is_dir() if folder else path.is_file():
            return path
    except (OSError, ValueError, RuntimeError):  # a name too long, with a null byte, or of a user who is not there
        pass
    raise InputError(f"no such {kind}: {where} ({source if option else f'from {source}:{where}'})")


def _tensor(array: Any, what: str) -> Tensor:
    if isinstance(array, Tensor):
        if array.layout is not torch.strided or array.is_meta or array.is_quantized or array.is_nested:
            raise InputError(f"{what} must be an ordinary tensor that holds its values: dense, not meta or quantised")
        return array.detach()
    try:
        values = np.asarray(array)
        # A copy where torch could not share the memory: read-only, byte-swapped or negatively strided arrays.
        values = np.require(values, values.dtype.newbyteorder("="), ["C", "W"])
        return torch.from_numpy(values)
    except (TypeError, ValueError):
        raise InputError(f"{what} must be a tensor or an array of numbers, got {type(array).__name__}") from None


def _word(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
