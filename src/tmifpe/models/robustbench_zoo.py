"""`robustbench:DATASET/THREAT/ID`: a model of RobustBench's zoo, from its folder `models/` or downloaded into it."""

from __future__ import annotations

__all__ = ["import_zoo", "robustbench"]

import contextlib
import importlib
import importlib.util
import io
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

from torch import nn

from tmifpe.core.errors import InputError, did_you_mean, first_line
from tmifpe.core.extras import import_extra
from tmifpe.core.types import UNIT
from tmifpe.models.source import Asked, Loaded
from tmifpe.models.weights import check_weights_only

_SHAPES = {"cifar10": (3, 32, 32), "cifar100": (3, 32, 32), "imagenet": (3, 224, 224)}
_CLASSES = {"cifar10": 10, "cifar100": 100, "imagenet": 1000}


def robustbench(asked: Asked) -> Loaded:
    """The zoo's own loader builds the network, normalisation included; `--weights DIR` is the zoo's folder.

    Every checkpoint is first read as weights only, so that a pickle with code never reaches the zoo's loader.
    """
    dataset, threat, name = _split(asked.where)
    folder = asked.weights or Path("models")
    if asked.weights is not None and not folder.is_dir():
        raise InputError(f"`weights={folder}` must be the zoo's folder (it holds {dataset}/{threat}/{name}.pt)")
    utils = import_zoo()
    models = _zoo(utils, dataset, threat)
    if name not in models:
        raise did_you_mean(f"RobustBench model of {dataset}/{threat}", name, models)
    for path, drive in _files(models[name], folder / dataset / threat / name):
        _ensure(utils, path, drive, asked.where)
        check_weights_only(path)
    module = _load(utils, name, folder, dataset, threat)
    shape = _SHAPES[dataset] if dataset != "imagenet" else None  # some of ImageNet's take other sizes
    return Loaded(
        module, stamp=f"robustbench:{dataset}/{threat}/{name}", classes=_CLASSES[dataset], input_shape=shape, box=UNIT
    )


def _split(where: str) -> tuple[str, str, str]:
    dataset, _, rest = where.partition("/")
    threat, _, name = rest.partition("/")
    if not name or "/" in name:
        raise InputError(
            f"write robustbench:DATASET/THREAT/ID, e.g. robustbench:cifar10/Linf/Wong2020Fast, not {where!r}"
        )
    if dataset not in _SHAPES:
        raise did_you_mean("RobustBench dataset", dataset, _SHAPES)
    return dataset, threat, name


def import_zoo() -> ModuleType:
    """`robustbench.utils`, which holds the zoo and its loader."""
    with _lent_autoattack():
        return import_extra("robustbench.utils", "RobustBench models", "robustbench", uses_torchvision=True)


@contextlib.contextmanager
def _lent_autoattack() -> Iterator[None]:
    """RobustBench's package depends on pyautoattack but imports it by its name on GitHub, `autoattack`; while
    RobustBench is imported, pyautoattack answers to that name too."""
    if importlib.util.find_spec("autoattack") is not None or importlib.util.find_spec("pyautoattack") is None:
        yield
        return
    names = {"autoattack": "pyautoattack", "autoattack.state": "pyautoattack.state"}
    sys.modules.update({alias: importlib.import_module(real) for alias, real in names.items()})
    try:
        yield
    finally:
        for alias in names:
            sys.modules.pop(alias, None)


def _zoo(utils: Any, dataset: str, threat: str) -> dict[str, Any]:
    threats = {kind.value: kind for kind in utils.ThreatModel}
    if threat not in threats:
        raise did_you_mean("RobustBench threat", threat, threats)
    try:
        return utils.all_models[utils.BenchmarkDataset(dataset)][threats[threat]]
    except (KeyError, ValueError):
        raise InputError(f"RobustBench has no models for {dataset}/{threat}") from None


def _files(entry: dict[str, Any], stem: Path) -> list[tuple[Path, str]]:
    """The checkpoints of an entry, where the zoo looks for them, with their ids on Google Drive; several for an
    ensemble, none where the zoo leaves it to timm or torchvision."""
    drive = entry.get("gdrive_id")
    base = stem.parent / f"{stem.name}.pt"  # an id may contain dots
    if drive is None:
        return []
    if isinstance(drive, list):
        return [(base.parent / f"{base.name}_m{number}.pt", part) for number, part in enumerate(drive)]
    return [(base, drive)]


def _ensure(utils: Any, path: Path, drive: str, where: str) -> None:
    if path.is_file():
        return
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            utils.download_gdrive_new(drive, path)
    except Exception as error:
        raise _needs(path, drive, where) from error
    if not path.is_file():
        raise _needs(path, drive, where)


def _needs(path: Path, drive: str, where: str) -> InputError:
    return InputError(
        f"robustbench:{where} needs {path}, which is not there and could not be downloaded; fetch it from "
        f"https://drive.google.com/uc?id={drive} and put it there"
    )


def _load(utils: Any, name: str, folder: Path, dataset: str, threat: str) -> nn.Module:
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            return utils.load_model(name, model_dir=folder, dataset=dataset, threat_model=threat)
    except Exception as error:
        first = first_line(error)
        raise InputError(f"RobustBench cannot load {dataset}/{threat}/{name}: {first}") from error
