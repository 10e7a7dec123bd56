"""Files of adversarial examples: tensors by name, in the format that the file's ending says."""

from __future__ import annotations

__all__ = ["ENDINGS", "adv_file", "check_ending", "read_adv", "threat_beside"]

import io
import json
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save
from torch import Tensor

from tmifpe.core.errors import InputError, shown
from tmifpe.core.types import Threat
from tmifpe.data.npz import read_arrays
from tmifpe.models import read_tensors
from tmifpe.run.result import Result


def adv_file(result: Result, ending: str = ".safetensors") -> bytes:
    """The adversarial examples as tensors `adv` (n, C, H, W), `labels`, `indices` and `fooled` (n,), and the threat
    that they were made under: in the header of safetensors, else as the bytes of its JSON, `threat`.

    `adv` is the clean image where the example withstood (in `strongest` mode: the strongest point found).
    """
    if result.adv is None:
        raise InputError("this result has no adversarial examples; ask for them with keep_adv=True")
    outcomes = result.outcomes
    tensors = {
        "adv": result.adv.contiguous(),
        "labels": torch.from_numpy(outcomes.label.astype("int64")),
        "indices": torch.from_numpy(outcomes.index),
        "fooled": torch.from_numpy(outcomes.fooled),
    }
    about = {
        "key": result.key or result.spec.key(),
        "model": result.spec.model,
        "box": "{:g},{:g}".format(*result.spec.threat.box),
        "threat": json.dumps(asdict(result.spec.threat)),
    }
    return _WRITERS[ending](tensors, about)


def check_ending(path: str) -> str:
    """The ending of a file to write, which says its format."""
    ending = Path(path).suffix.lower()
    if ending not in ENDINGS:
        raise InputError(
            f"adversarial examples are written as {', '.join(ENDINGS)}; {shown(path)} ends in none of them"
        )
    return ending


def read_adv(path: str) -> dict[str, Tensor]:
    """The adversarial examples of a file as `adv`, and where it has them `indices` and `labels`. Nothing in it is run.

    Read are the files that `adv_file` writes, those of AutoAttack (`adv_complete`), a bare tensor as RobustBench asks
    for it, and any other file of one tensor of images.
    """
    if not Path(path).is_file():
        raise InputError(f"no such file: {path} (adversarial examples)")
    if Path(path).suffix.lower() == ".npy":
        raise InputError(f"{path} is a bare array; save it with its name: numpy.savez('adv.npz', adv=array)")
    try:
        if Path(path).suffix.lower() == ".npz":
            arrays = read_arrays(Path(path), (), (*_NAMES, "arr_0", "indices", "labels", "threat"))
            tensors = {name: torch.from_numpy(array.copy()) for name, array in arrays.items()}
        else:
            tensors = {**read_tensors(path), **_header(path)}  # safetensors or torch's own, by their content
    except InputError as error:
        raise InputError(f"cannot read adversarial examples from {path}: {error}") from error
    images = [name for name in _NAMES if name in tensors] or [name for name in tensors if tensors[name].dim() > 1]
    if not images or (images[0] not in _NAMES and len(images) > 1):
        raise InputError(f"{path} holds no tensor 'adv'; give a file that `save_adv` wrote, or one of a single tensor")
    beside = {name: tensors[name].flatten() for name in ("indices", "labels", "threat") if name in tensors}
    return {"adv": tensors[images[0]], **beside}


def threat_beside(tensors: Mapping[str, Tensor]) -> Threat | None:
    """The threat that a file says its examples were made under; None if it says nothing that can be read."""
    told = tensors.get("threat")
    if told is None or told.dtype != torch.uint8 or told.numel() > 1000:
        return None
    try:
        plain = json.loads(bytes(told.flatten().tolist()))
        return Threat(str(plain["norm"]), *(float(plain[name]) for name in ("eps", "low", "high")))
    except (ValueError, TypeError, KeyError, RecursionError):
        return None


def _header(path: str) -> dict[str, Tensor]:
    """What the header of a safetensors file says of the threat."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, "pt") as file:
            told = (file.metadata() or {}).get("threat")
    except (SafetensorError, OSError):  # a file of torch
        return {}
    return {} if told is None else {"threat": _bytes(told)}


def _bytes(text: str) -> Tensor:
    return torch.tensor(list(text.encode()), dtype=torch.uint8)


def _npz(tensors: dict[str, Tensor], about: dict[str, str]) -> bytes:
    buffer = io.BytesIO()
    # numpy has no bfloat16, of which every number is one in float32
    plain = {name: t.float() if t.dtype == torch.bfloat16 else t for name, t in tensors.items()}
    arrays: dict[str, Any] = {name: tensor.numpy() for name, tensor in plain.items()}
    arrays.update((name, np.array(text)) for name, text in about.items())
    arrays["threat"] = _bytes(about["threat"]).numpy()
    np.savez(buffer, **arrays)
    return buffer.getvalue()


def _pt(tensors: dict[str, Tensor], about: dict[str, str]) -> bytes:
    buffer = io.BytesIO()
    torch.save({**tensors, "threat": _bytes(about["threat"])}, buffer)  # tensors only
    return buffer.getvalue()


_NAMES = ("adv", "adv_complete", "x_adv", "advs", "images")
_WRITERS: dict[str, Callable[[dict[str, Tensor], dict[str, str]], bytes]] = {
    ".safetensors": save,
    ".npz": _npz,
    ".pt": _pt,
}
ENDINGS = tuple(_WRITERS)
