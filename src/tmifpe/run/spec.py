"""What was asked for: everything that changes the answer, and nothing else."""

from __future__ import annotations

__all__ = ["PRECISIONS", "Plan", "RunSpec", "get_precision"]

import dataclasses
import hashlib
import json
from dataclasses import dataclass
from typing import Any

import torch

from tmifpe.core.errors import InputError, did_you_mean, shown
from tmifpe.core.types import Threat
from tmifpe.version import RESULTS_VERSION

PRECISIONS: dict[str, torch.dtype] = {
    "fp64": torch.float64,
    "fp32": torch.float32,
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
}


def get_precision(name: str) -> torch.dtype:
    """The dtype the model runs in."""
    if not isinstance(name, str) or name not in PRECISIONS:
        raise did_you_mean("precision", name, PRECISIONS)
    return PRECISIONS[name]


@dataclass(frozen=True)
class RunSpec:
    """One evaluation, as plain values. `key()` hashes what changes the answer; batch size, shard size, device and
    engine are recorded with the run, not hashed."""

    model: str
    model_identity: str
    data: str
    data_identity: str
    threat: Threat
    attacks: tuple[str, ...]
    targets: str
    mode: str
    seed: int
    precision: str
    eot: int
    subset: str
    """Hash of the indices evaluated, in order."""
    n: int
    total: int
    """Examples in the full source, of which these are some."""
    results_version: int = RESULTS_VERSION
    verify: str = "none"
    """The precision of the second opinion on every adversarial example, which marks the fragile ones."""

    cut: str = ""

    def __post_init__(self) -> None:
        if not isinstance(self.seed, int) or not 0 <= self.seed < 2**63:
            raise InputError(f"seed must be a whole number in [0, 2^63), got {shown(self.seed)}")
        if not self.attacks:
            raise InputError("an evaluation needs at least one attack")

    def as_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, plain: dict[str, Any]) -> RunSpec:
        values: dict[str, Any] = {**plain, "threat": Threat(**plain["threat"]), "attacks": tuple(plain["attacks"])}
        return cls(**values)

    def key(self) -> str:
        """16 hexadecimal digits. Names are left out: the identities say what a model and data are."""
        plain = self.as_dict()
        del plain["model"], plain["data"], plain["total"]
        return hashlib.sha256(json.dumps(plain, sort_keys=True).encode()).hexdigest()[:16]


@dataclass(frozen=True)
class Plan:
    """How the work is cut. A shard is a fixed run of positions, and batches refill only within it, so that its
    outcomes are a function of spec and plan alone: that is what makes resuming exact."""

    n: int
    batch_size: int
    shard_size: int

    def __post_init__(self) -> None:
        if min(self.n, self.batch_size, self.shard_size) < 1:
            raise InputError("examples, batch size and shard size must be at least 1")

    def __len__(self) -> int:
        return (self.n + self.shard_size - 1) // self.shard_size

    def positions(self, shard: int) -> range:
        return range(shard * self.shard_size, min((shard + 1) * self.shard_size, self.n))
