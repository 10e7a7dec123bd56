"""`x.pt`, `x.ts`: a TorchScript archive. Its program runs in torch's interpreter, not in Python."""

from __future__ import annotations

__all__ = ["torchscript"]

import warnings
import zipfile
from pathlib import Path

import torch

from tmifpe.core.errors import InputError
from tmifpe.core.hashing import hash_file
from tmifpe.models.source import Asked, Loaded, existing, own_weights_only


def torchscript(asked: Asked) -> Loaded:
    """The scripted or traced module of an archive; a plain state dict under the same ending is told apart."""
    own_weights_only(asked)
    path = existing(asked.where, "a TorchScript model")
    names = _entries(path)
    if not any("/code/" in name for name in names) or not any(name.endswith("constants.pkl") for name in names):
        raise InputError(
            f"{path} holds weights or a pickled model, not a TorchScript program; name an architecture (say, "
            f"mnist-fast or file.py:factory) and give the file with --weights {path}"
        )
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".*torch.jit.load.*", category=DeprecationWarning)
            module = torch.jit.load(str(path), map_location="cpu")
    except Exception as error:  # a damaged archive can fail anywhere inside torch
        first = (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
        raise InputError(f"{path} is a damaged TorchScript file: {first}") from error
    return Loaded(module, hash_file(path))


def _entries(path: Path) -> list[str]:
    try:
        with zipfile.ZipFile(path) as archive:
            return archive.namelist()
    except zipfile.BadZipFile:
        with path.open("rb") as file:
            if file.read(1) == b"\x80":  # torch's format before 1.6: a bare pickle, so weights if anything
                return []
        raise InputError(f"{path} is not a torch file (no zip archive); it may be truncated") from None
