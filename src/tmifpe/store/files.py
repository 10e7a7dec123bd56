"""The files beside the database: one per finished shard, complete or not there at all.

A shard file holds the adversarial examples, the outcomes, and what run they belong to, so that a damaged database
can be rebuilt from these files alone.
"""

from __future__ import annotations

__all__ = [
    "About",
    "ShardFile",
    "attempts_on_disk",
    "clean",
    "read_adv",
    "read_shard",
    "run_folder",
    "shard_files",
    "write_shard",
]

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import torch
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from tmifpe.attacks.loop.queries import Tally
from tmifpe.core.files import write_durably
from tmifpe.core.hashing import digest
from tmifpe.run.outcomes import Outcomes
from tmifpe.run.shard import ShardResult
from tmifpe.store.columns import columns_digest, list_columns, listed_columns
from tmifpe.store.errors import StoreError
from tmifpe.store.stages import plain_stages, read_stages

FOLDER = "adv"
_RUN = re.compile(r"([0-9a-f]{16})-([1-9][0-9]{0,8})")
_POINTS = "repaired.safetensors"
_SHARD = re.compile(r"([0-9]{6,12})\.safetensors")


@dataclass(frozen=True)
class About:
    """The run and the session that a shard belongs to, as plain values."""

    key: str
    attempt: int
    spec: dict[str, Any]
    plan: dict[str, Any]
    started: str
    versions: dict[str, str]
    machine: dict[str, str]


@dataclass(frozen=True)
class ShardFile:
    """A shard, the run it belongs to, and its outcomes as they were stored."""

    result: ShardResult
    about: About
    columns: dict[str, NDArray[Any]]
    digest: str
    hashed: bool
    """Whether a hash protects `about` too: not yet in 0.1.0."""


def run_folder(store: Path, key: str, attempt: int) -> Path:
    """Where the shards of a run are. Built from checked parts only: a key out of a database is not trusted."""
    name = f"{key}-{attempt}"
    if not _RUN.fullmatch(name):
        raise StoreError(f"{name!r} is not the name of a run; the run store {store} is damaged")
    folder = store / FOLDER / name
    if folder.is_symlink() or folder.parent.is_symlink():
        raise StoreError(f"{folder} is a symbolic link; a run store keeps its files in itself")
    return folder


def attempts_on_disk(store: Path) -> Iterator[tuple[str, int]]:
    """(key, attempt) of every run that has a folder."""
    for folder in sorted((store / FOLDER).glob("*")):
        if (match := _RUN.fullmatch(folder.name)) and folder.is_dir() and not folder.is_symlink():
            yield match[1], int(match[2])


def shard_files(folder: Path) -> dict[int, Path]:
    """The shards that a run's folder holds."""
    named = ((path, _SHARD.fullmatch(path.name)) for path in sorted(folder.glob("*.safetensors")))
    return {int(match[1]): path for path, match in named if match}


def clean(folder: Path, shards: int) -> None:
    """Remove what a killed process left behind: unfinished files, and what is none of the run's shards.

    A shard that the database does not know is left: the recorder adopts it, or writes it anew in its turn.
    """
    for path in folder.glob(".*.tmp"):
        path.unlink()
    for shard, path in shard_files(folder).items():
        if shard >= shards:
            path.unlink()


def write_shard(folder: Path, about: About, result: ShardResult) -> None:
    """Write a shard durably."""
    if result.adv is None:
        raise StoreError(f"shard {result.shard} has no adversarial examples to store")
    folder.mkdir(parents=True, exist_ok=True)
    adv = result.adv.detach().cpu().contiguous()
    columns = result.outcomes.arrays
    head = {
        "run": json.dumps(asdict(about)),
        "shard": json.dumps(_cost(result)),
        "columns": list_columns(columns),
        "outcomes": columns_digest(columns),
        "adv": digest([adv]),
    }
    head["head"] = _head_digest(head)
    tensors = {name: torch.from_numpy(values) for name, values in columns.items()}
    write_durably(folder / f"{result.shard:06d}.safetensors", save({"adv": adv, **tensors}, head))


def read_shard(path: Path) -> ShardFile:
    """A shard written by any version; all its hashes are checked."""
    if path.is_symlink():
        raise StoreError(f"{path} is a symbolic link; a run store keeps its files in itself")
    try:
        return _read_shard(path)
    except FileNotFoundError as error:
        raise StoreError(
            f"{path} is missing; repeat the run with `fresh=True` to have its adversarial examples"
        ) from error
    except (SafetensorError, ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        raise StoreError(f"{path} is damaged ({error}); repeat the run with `fresh=True`") from error


def _read_shard(path: Path) -> ShardFile:
    with safe_open(path, framework="pt") as file:
        head = file.metadata() or {}
        listed = listed_columns(head.get("columns"))
        adv = file.get_tensor("adv")
        columns = {name: file.get_tensor(name).numpy() for name in listed}
    hashed = "columns" in head
    if hashed and _head_digest(head) != head["head"]:
        raise ValueError("its header does not match its hash")
    outcomes = Outcomes.of_columns(columns)
    shapes = {values.shape for values in columns.values()}
    if not outcomes.is_table() or listed_columns(list_columns(columns)) != listed or shapes != {(len(adv),)}:
        raise ValueError("its columns are not those of outcomes")
    if digest([adv]) != head["adv"] or columns_digest(columns) != head["outcomes"]:
        raise ValueError("its hash does not match")
    told, cost = json.loads(head["run"]), json.loads(head["shard"])
    about = About(**{field.name: told[field.name] for field in fields(About)})
    tally = Tally(int(cost["forwards"]), int(cost["backwards"]))
    stages = read_stages(cost.get("stages"))
    result = ShardResult(int(cost["shard"]), outcomes, adv, tally, float(cost["seconds"]), stages)
    return ShardFile(result, about, columns, head["outcomes"], hashed)


def _cost(result: ShardResult) -> dict[str, Any]:
    cost = {"shard": result.shard, "seconds": result.seconds, **asdict(result.tally)}
    return cost | {"stages": plain_stages(result.stages)}


def _head_digest(head: dict[str, str]) -> str:
    return digest(head[name] for name in ("run", "shard", "columns"))


def read_adv(folder: Path, shard: int, expected: str) -> Tensor:
    """The adversarial examples of a shard whose outcomes have the hash that the database expects."""
    path = folder / f"{shard:06d}.safetensors"
    file = read_shard(path)
    if file.digest != expected or file.result.adv is None:
        raise StoreError(f"{path} does not belong to the outcomes in the database; repeat the run with `fresh=True`")
    return file.result.adv


def write_points(folder: Path, points: Mapping[int, Tensor]) -> None:
    """The adversarial examples that repairs found, by position: they stand in for those in the shards."""
    adv = torch.stack([point.detach().cpu() for point in points.values()])
    positions = torch.tensor(list(points), dtype=torch.int64)
    head = {"adv": digest([adv, positions])}
    write_durably(folder / _POINTS, save({"adv": adv, "positions": positions}, head))


def read_points(folder: Path) -> dict[int, Tensor]:
    path = folder / _POINTS
    if not path.exists():
        return {}
    if path.is_symlink():
        raise StoreError(f"{path} is a symbolic link; a run store keeps its files in itself")
    try:
        with safe_open(path, framework="pt") as file:
            adv, positions = file.get_tensor("adv"), file.get_tensor("positions")
            if digest([adv, positions]) != (file.metadata() or {})["adv"]:
                raise ValueError("its hash does not match")
            return dict(zip(positions.tolist(), adv, strict=True))
    except (SafetensorError, ValueError, KeyError, TypeError) as error:
        raise StoreError(f"{path} is damaged ({error}); repeat the run with `fresh=True`") from error
