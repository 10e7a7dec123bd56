"""Adversarial examples in files: tensors only, so that reading one runs nothing."""

from __future__ import annotations

__all__ = ["read_points", "to_type", "write_points"]

import sys
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Protocol

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from tmifpe.core.errors import InputError, first_line, shown

_TYPES = ("float", "int")


class _Saving(Protocol):
    """What saving asks of an attack."""

    normalization_used: dict[str, Tensor] | None
    device: torch.device

    def __call__(self, inputs: Tensor, labels: Tensor) -> Tensor: ...

    def inverse_normalize(self, inputs: Tensor) -> Tensor: ...

    def get_output_with_eval_nograd(self, inputs: Tensor) -> Tensor: ...


def to_type(inputs: Tensor, type: str) -> Tensor:  # noqa: A002 - torchattacks' own name
    """Images in [0, 1] as bytes (`int`), or bytes as images in [0, 1] (`float`)."""
    if type not in _TYPES:
        raise InputError(f"{shown(type)} is not a valid type; use 'float' or 'int'")
    if type == "int":
        return (inputs * 255).to(torch.uint8) if inputs.is_floating_point() else inputs
    return inputs if inputs.is_floating_point() else inputs.float() / 255


def write_points(
    attack: _Saving,
    loader: Iterable[Any],
    path: str | Path | None,
    verbose: bool,
    return_verbose: bool,
    predictions: bool,
    clean_inputs: bool,
    save_type: str,
) -> tuple[float, float, float] | None:
    """Attack batch by batch, tell how it goes, and write what was asked for once all is done."""
    if save_type not in _TYPES:
        raise InputError(f"save_type must be 'float' or 'int', got {shown(save_type)}")
    columns: dict[str, list[Tensor]] = {"adv_inputs": [], "labels": [], "preds": [], "clean_inputs": []}
    sizes: list[Tensor] = []
    correct, total, told = 0, 0, (0.0, 0.0, 0.0)
    for inputs, labels in loader:
        began = time.perf_counter()
        adv, x = attack(inputs, labels), inputs.to(attack.device)
        if attack.normalization_used is not None:
            adv, x = attack.inverse_normalize(adv), attack.inverse_normalize(x)
        preds = attack.get_output_with_eval_nograd(adv).argmax(dim=1)
        right = preds == labels.to(preds.device)
        sizes.append((adv - x).flatten(1).norm(dim=1)[~right])
        correct, total = correct + int(right.sum()), total + len(labels)
        mean = float(torch.cat(sizes).mean()) if len(torch.cat(sizes)) else 0.0
        told = 100 * correct / total, mean, time.perf_counter() - began
        if verbose:
            sys.stdout.write(f"- Save progress: {total} / Robust accuracy: {told[0]:.2f} % / L2: {told[1]:.5f}\n")
        for name, column in (("adv_inputs", adv), ("labels", labels), ("preds", preds), ("clean_inputs", x)):
            columns[name].append(column.detach().cpu())
    if path is not None:
        left_out = {name for name, kept in (("preds", predictions), ("clean_inputs", clean_inputs)) if not kept}
        _write(Path(path), {k: torch.cat(v) for k, v in columns.items() if k not in left_out}, save_type)
    return told if return_verbose else None


def read_points(
    path: str | Path, normalize: dict[str, Sequence[float]] | None, predictions: bool, clean_inputs: bool
) -> list[Tensor]:
    """The columns adv_inputs, labels and those asked for, images as floats."""
    saved = _read(Path(path))
    names = ["adv_inputs", "labels"] + ["preds"] * predictions + ["clean_inputs"] * clean_inputs
    if missing := [name for name in names if name not in saved]:
        raise InputError(f"{path} has no {', '.join(missing)}; save it with that")
    for name in {"adv_inputs", "clean_inputs"} & set(names):
        image = to_type(saved[name], "float")
        if normalize is not None:
            mean, std = (torch.tensor(list(normalize[k])).reshape(1, -1, 1, 1) for k in ("mean", "std"))
            image = (image - mean) / std
        saved[name] = image
    return [saved[name] for name in names]


def _write(path: Path, columns: dict[str, Tensor], save_type: str) -> None:
    images = {name: to_type(columns[name], save_type) for name in ("adv_inputs", "clean_inputs") if name in columns}
    columns = columns | images
    if path.suffix == ".safetensors":
        save_file({name: column.contiguous() for name, column in columns.items()}, str(path))
    else:
        torch.save({**columns, "save_type": save_type}, path)


def _read(path: Path) -> dict[str, Tensor]:
    if not path.is_file():
        raise InputError(f"there is no file {path}")
    try:
        found = load_file(str(path)) if path.suffix == ".safetensors" else torch.load(path, weights_only=True)
    except Exception as error:  # a damaged or hostile file fails in any way
        raise InputError(f"{path} does not hold tensors only: {first_line(error)}") from error
    return {name: value for name, value in dict(found).items() if isinstance(value, Tensor)}
