"""One way to say "these are the same weights" or "these are the same images": a short content hash."""

from __future__ import annotations

__all__ = ["digest", "hash_file"]

import hashlib
from collections.abc import Iterable
from pathlib import Path

import torch
from torch import Tensor

_SHORT = 16
"""Hex digits kept: 64 bits, so that a clash among a million runs has probability below 1e-7."""


def digest(parts: Iterable[str | bytes | Tensor]) -> str:
    """The first 16 hex digits of sha256 over the parts, each with its kind and length, so that
    ("ab", "c") differs from ("a", "bc"). A tensor counts with dtype, shape and bytes, not with device or strides.

    >>> digest(["ab", "c"]) == digest(["a", "bc"])
    False
    """
    sha = hashlib.sha256()
    for part in parts:
        if isinstance(part, Tensor):
            head, body = f"{part.dtype}{tuple(part.shape)}", _raw(part)
        else:
            head, body = type(part).__name__, part.encode(errors="surrogatepass") if isinstance(part, str) else part
        sha.update(f"{head}:{len(body)}:".encode())
        sha.update(body)
    return sha.hexdigest()[:_SHORT]


def hash_file(path: Path) -> str:
    """The same, over the bytes of a file, read in pieces."""
    sha = hashlib.sha256()
    with path.open("rb") as file:
        while piece := file.read(1 << 20):
            sha.update(piece)
    return sha.hexdigest()[:_SHORT]


def _raw(tensor: Tensor) -> bytes | memoryview:
    """The bytes of a tensor, whatever its dtype: bfloat16 and float8 have no numpy twin, but all view as uint8."""
    flat = tensor.detach().cpu().contiguous().reshape(-1)
    return flat.view(torch.uint8).numpy().data
