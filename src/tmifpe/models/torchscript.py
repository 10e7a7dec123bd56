"""`x.pt`, `x.ts`: a TorchScript archive. Its program runs in torch's interpreter, not in Python; what that interpreter
could do beyond tensors (write files, call other machines) is refused."""

from __future__ import annotations

__all__ = ["torchscript"]

import re
import warnings
from pathlib import Path

import torch

from tmifpe.core.errors import InputError, first_line
from tmifpe.core.hashing import hash_file
from tmifpe.models.archive import packed, read_archive
from tmifpe.models.source import Asked, Loaded, existing, own_weights_only

# aten::save and aten::from_file(shared=True) write any file, prim::rpc_* talk to other processes, and so do classes
# such as c10d's stores; a program begins to run when it is loaded (__setstate__), so its text is read first.
_BEYOND_TENSORS = re.compile(rb"\b(?:save|from_file|load_tensor|rpc_\w+|classes\s*\.\s*(?!quantized\b|xnnpack\b)\w+)\b")


def torchscript(asked: Asked) -> Loaded:
    """The scripted or traced module of an archive; a plain state dict under the same ending is told apart."""
    own_weights_only(asked)
    path = existing(asked.where, "a TorchScript model")
    entries = {} if _is_bare_pickle(path) else read_archive(path, "a torch file (no zip archive); it may be truncated")
    if not any("/code/" in name for name in entries) or not any(name.endswith("constants.pkl") for name in entries):
        raise InputError(
            f"{path} holds weights or a pickled model, not a TorchScript program; name an architecture (say, "
            f"mnist-fast or file.py:factory) and give the file with `weights={path}`"
        )
    for name, content in entries.items():
        if "/code/" in name and (word := _BEYOND_TENSORS.search(content)):
            raise InputError(
                f"{path} calls {word[0].decode()!r}, which is not an operation of a network, and is not run"
            )
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".*torch.jit.load.*", category=DeprecationWarning)
            module = torch.jit.load(packed(entries), map_location="cpu")
    except Exception as error:  # a damaged archive can fail anywhere inside torch
        first = first_line(error)
        raise InputError(f"{path} is a damaged TorchScript file: {first}") from error
    if not all(_in_bounds(tensor) for tensor in (*module.parameters(), *module.buffers())):
        raise InputError(f"{path} is a damaged TorchScript file: a tensor is larger than its data")
    return Loaded(module, hash_file(path))


def _in_bounds(tensor: torch.Tensor) -> bool:
    """Torch's reader does not check, and would read memory that is not the tensor's."""
    if tensor.layout is not torch.strided or not tensor.numel():
        return True
    steps = [(size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True)]
    first, last = (tensor.storage_offset() + sum(kind(step, 0) for step in steps) for kind in (min, max))
    return first >= 0 and (last + 1) * tensor.element_size() <= tensor.untyped_storage().nbytes()


def _is_bare_pickle(path: Path) -> bool:
    """torch's format before 1.6: weights, if anything."""
    with path.open("rb") as file:
        return file.read(1) == b"\x80"
