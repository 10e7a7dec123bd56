"""Weights from a file: safetensors, or a state dict that torch can read without running anything."""

from __future__ import annotations

__all__ = ["check_torch", "check_weights_only", "load_weights", "read_tensors", "read_weights"]

import pickle
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from tmifpe.core.errors import InputError
from tmifpe.models.archive import check_unpacked
from tmifpe.models.source import existing

_SAVE_TENSORS = "save tensors by name: torch.save({'adv': adv, 'labels': labels}, 'adv.pt')"
_WRAPPERS = ("state_dict", "model_state_dict", "model", "net")
_PREFIXES = ("module.", "_orig_mod.")
_SAFE_TORCH = "2.6"  # torch.__version__ compares as versions do


def load_weights(module: nn.Module, path: str | Path, name: str) -> None:
    """Put the weights of a file into `module`; every name and shape must fit."""
    state = read_weights(path)
    wanted = module.state_dict()
    # An evaluation in eval mode never reads this counter, and old checkpoints lack it.
    missing = [key for key in wanted if key not in state and not key.endswith("num_batches_tracked")]
    unexpected = [key for key in state if key not in wanted]
    shapes = [
        f"{key} is {tuple(state[key].shape)} but {tuple(value.shape)} is needed"
        for key, value in wanted.items()
        if key in state and state[key].shape != value.shape
    ]
    problems = [
        f"{word} {_some(found)}"
        for word, found in (("missing", missing), ("unexpected", unexpected), ("wrong shape:", shapes))
        if found
    ]
    if problems:
        raise InputError(f"the weights {path} do not fit {name}: {'; '.join(problems)}")
    try:
        module.load_state_dict(state, strict=False)
    except Exception as error:  # say, sparse, quantised or meta tensors of the right shape
        raise InputError(f"the weights {path} do not fit {name}: {_reason(error)}") from error


def read_weights(path: str | Path) -> dict[str, Tensor]:
    """The tensors of a file by name, unwrapped from `state_dict` and the like, without the prefix `module.`"""
    file = existing(str(path), "weights")
    content = _read_safetensors(file) if _is_safetensors(file) else _read_torch(file)
    for wrapper in _WRAPPERS:
        if isinstance(content, Mapping) and isinstance(content.get(wrapper), Mapping):
            content = content[wrapper]
            break
    if not isinstance(content, Mapping) or not content or not all(isinstance(v, Tensor) for v in content.values()):
        raise InputError(f"{path} holds no state dict (names to tensors) but {_kind(content)}")
    state = {str(key): value for key, value in content.items()}
    for prefix in _PREFIXES:
        if all(key.startswith(prefix) for key in state):
            state = {key.removeprefix(prefix): value for key, value in state.items()}
    return state


def read_tensors(path: str | Path) -> dict[str, Tensor]:
    """The tensors of a file by name; a file of one bare tensor, such as RobustBench asks for, gives it the name ""."""
    file = existing(str(path), "tensors")
    content = _read_safetensors(file) if _is_safetensors(file) else _read_torch(file, "file of tensors", _SAVE_TENSORS)
    content = {"": content} if isinstance(content, Tensor) else content
    if not isinstance(content, Mapping) or not all(isinstance(value, Tensor) for value in content.values()):
        raise InputError(f"{path} holds no tensors by name but {_kind(content)}; {_SAVE_TENSORS}")
    return {str(name): value for name, value in content.items()}


def check_torch(file: str) -> None:
    """`InputError` if this torch could be made to run code by a file, even if told to read tensors only."""
    if torch.__version__ < _SAFE_TORCH:
        raise InputError(
            f"{file} is not read: before torch {_SAFE_TORCH} even weights_only could run code out of such a file "
            "(CVE-2025-32434); upgrade torch or use safetensors"
        )


def check_weights_only(path: Path) -> None:
    """`InputError` unless torch can read the file without running anything, whatever tensors it holds."""
    _read_torch(path)


def _is_safetensors(file: Path) -> bool:
    """By content: eight bytes of length, then a JSON object. Names lie."""
    with file.open("rb") as opened:
        head = opened.read(9)
    return len(head) == 9 and head[8:] == b"{" and int.from_bytes(head[:8], "little") < file.stat().st_size


def _read_safetensors(file: Path) -> dict[str, Tensor]:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        return load_file(file)
    except (SafetensorError, OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise InputError(f"{file} is a damaged safetensors file: {error}") from error


def _read_torch(
    file: Path, what: str = "state dict", remedy: str = "save model.state_dict() or use safetensors"
) -> Any:
    check_torch(str(file))
    check_unpacked(file, file.stat().st_size, str(file))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch remarks on pickles that it then refuses
            return torch.load(file, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        raise InputError(
            f"{file} is not a weights-only {what} and was not unpickled, since that could run code; "
            f"{remedy} ({_reason(error)})"
        ) from error
    except Exception as error:  # a damaged file can fail anywhere inside torch
        raise InputError(f"{file} is not a readable weights file: {_reason(error)}") from error


def _reason(error: Exception) -> str:
    """The telling line of torch's long explanations."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if isinstance(error, LookupError | EOFError):  # whose text, say "101", speaks of the inside of torch
        return "it is neither a safetensors file nor one of torch.save, or it is damaged"
    telling = [line for line in lines if "Unsupported" in line or "GLOBAL" in line or "TorchScript" in line]
    return (telling or lines or [type(error).__name__])[0][:200]


def _some(names: list[str]) -> str:
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return ", ".join(names[:3]) + more


def _kind(content: object) -> str:
    if isinstance(content, Mapping):
        return f"a dictionary with {_some([str(key) for key in content]) or 'nothing'}"
    return type(content).__name__
