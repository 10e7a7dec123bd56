"""`from tmifpe.compat.robustbench import benchmark`: RobustBench's calls, on local models and data."""

from __future__ import annotations

__all__ = ["benchmark", "clean_accuracy", "load_cifar10", "load_cifar100", "load_model"]

import sys
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from tmifpe import models
from tmifpe.attacks.loop.frozen import device_of, frozen
from tmifpe.compat.autoattack import AutoAttack
from tmifpe.compat.inputs import check_batch
from tmifpe.core.errors import InputError, did_you_mean, shown
from tmifpe.core.types import Data, Model
from tmifpe.data import as_data, load_data

_THREATS = ("Linf", "L2")
_DATASETS = ("cifar10", "cifar100", "imagenet")


def benchmark(
    model: nn.Module | Model,
    n_examples: int = 10000,
    dataset: str | Data | tuple[Tensor, Tensor] = "cifar10",
    threat_model: str = "Linf",
    to_disk: bool = False,
    model_name: str | None = None,
    data_dir: str = "./data",
    corruptions_data_dir: str | None = None,
    device: torch.device | str | None = None,
    batch_size: int = 32,
    eps: float | None = None,
    log_path: str | Path | None = None,
    preprocessing: str | None = None,
    aa_state_path: str | Path | None = None,
) -> tuple[float, float]:
    """(clean accuracy, robust accuracy) of the first `n_examples` under `full`, in place of AutoAttack.

    dataset: `cifar10`, `cifar100` or `imagenet` in `data_dir`, which is never downloaded; or, which RobustBench does
        not take, (images, labels) or what `load_data` returns.
    `to_disk`, corruptions and a state of AutoAttack are refused; so is `preprocessing` but for ImageNet, where it is
    `Res256Crop224` or `BicubicRes256Crop224`.

    >>> import tmifpe
    >>> model, data = tmifpe.load_model("digits-robust"), tmifpe.load_data("digits")
    >>> clean, robust = benchmark(model.module, n_examples=4, dataset=data, threat_model="Linf", eps=0.1)
    Clean accuracy: 100.00%
    >>> robust <= clean
    True
    """
    del corruptions_data_dir, model_name  # read with the options that are refused below
    threat = str(getattr(threat_model, "value", threat_model))
    if threat not in _THREATS:
        raise InputError(f"benchmark knows the threat models Linf and L2, got {shown(threat)}")
    if to_disk or aa_state_path is not None:
        raise InputError(
            "to_disk and aa_state_path are RobustBench's own; to keep a run use tmifpe.evaluate(store=DIR)"
        )
    if eps is None:
        raise InputError("the threat models Linf and L2 need eps, such as eps=8/255")
    x, y = _first(dataset, n_examples, data_dir, preprocessing)
    if device is not None and isinstance(model, nn.Module):
        model = model.to(device)
    place = device if device is not None else device_of(model) or torch.device("cpu")
    with frozen(model):
        clean = clean_accuracy(model, x, y, batch_size, place)
        sys.stdout.write(f"Clean accuracy: {clean:.2%}\n")
        adversary = AutoAttack(model, threat, eps, device=place, log_path=log_path, verbose=log_path is not None)
        adv = adversary.run_standard_evaluation(x, y, bs=batch_size)
        return clean, clean_accuracy(model, adv, y, batch_size, place)


def load_model(
    model_name: str,
    model_dir: str | Path = "./models",
    dataset: str = "cifar10",
    threat_model: str = "Linf",
) -> nn.Module:
    """A model of RobustBench's zoo from `model_dir` (extra `robustbench`), or any other that tmifpe loads by name.

    >>> type(load_model("digits-robust")).__name__
    'DigitsCNN'
    """
    known = ":" in model_name or model_name in models.MODELS
    if known:
        return _module(models.load_model(model_name))
    name = (
        f"robustbench:{getattr(dataset, 'value', dataset)}/{getattr(threat_model, 'value', threat_model)}/{model_name}"
    )
    return _module(models.load_model(name, weights=Path(model_dir)))


def load_cifar10(n_examples: int | None = None, data_dir: str = "./data") -> tuple[Tensor, Tensor]:
    """The first test images of CIFAR-10 in `data_dir`, in [0, 1], and their labels."""
    return _first("cifar10", n_examples, data_dir, None)


def load_cifar100(n_examples: int | None = None, data_dir: str = "./data") -> tuple[Tensor, Tensor]:
    """The same of CIFAR-100."""
    return _first("cifar100", n_examples, data_dir, None)


@torch.no_grad()
def clean_accuracy(
    model: nn.Module | Model,
    x: Tensor,
    y: Tensor,
    batch_size: int = 100,
    device: torch.device | str | None = None,
) -> float:
    """The share of the images that are classified as labelled, in [0, 1]."""
    check_batch(x, y)
    hits = 0
    for images, labels in zip(x.split(batch_size), y.split(batch_size), strict=True):
        logits = model(images.to(device) if device is not None else images)
        hits += int((logits.argmax(dim=1) == labels.to(logits.device)).sum())
    return hits / len(x)


def _first(dataset: Any, n: int | None, folder: str, preprocessing: str | None) -> tuple[Tensor, Tensor]:
    name = str(getattr(dataset, "value", dataset)) if isinstance(dataset, str) or hasattr(dataset, "value") else ""
    if name and name not in _DATASETS:
        raise did_you_mean("RobustBench dataset", name, _DATASETS)
    if preprocessing is not None and (name != "imagenet" or "Res256Crop224" not in str(preprocessing)):
        raise InputError("preprocessing is for ImageNet: Res256Crop224 or BicubicRes256Crop224")
    if name == "imagenet" and str(preprocessing).startswith("Bicubic"):
        name = "imagenet-bicubic"
    data = load_data(f"{name}:{folder}") if name else as_data(dataset)
    return data.fetch(range(len(data) if n is None else min(n, len(data))))


def _module(loaded: Any) -> nn.Module:
    return loaded.module
