"""What a worker is sent: the model once, then the question, then shards. Plain values, arrays and bytes.

Only what this process made itself is ever unpickled, and only in the workers that it started.
"""

from __future__ import annotations

__all__ = ["Order", "Parcel", "Task", "fingerprint", "pack_result", "unpack_model", "unpack_result"]

import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tmifpe.attacks import Attack, as_attack, attack_spelling, get_attack
from tmifpe.core.errors import InputError, first_line
from tmifpe.core.types import Classifier, Model, Threat
from tmifpe.models import model_identity
from tmifpe.models.identity import held_parts
from tmifpe.run.prepared_model import PreparedModel
from tmifpe.run.shard import Job, ShardResult
from tmifpe.run.spec import Plan
from tmifpe.run.tune.tuning import Tuning


@dataclass(frozen=True)
class Parcel:
    """The model, in both ways in which it can travel, and how it is to be asked."""

    pickled: bytes | None
    """By `torch.save`; None where that fails, as it does for TorchScript and for functions within functions."""
    source: Callable[[], Classifier] | None
    """What loads it again, where its source is known."""
    identity: str | None
    """Its fingerprint: what was loaded again must be the same."""
    precision: str
    device: str
    verify: str | None = None
    straight_through: tuple[str, ...] = ()

    @classmethod
    def of(cls, network: Model, classifier: Classifier | None, prepared: PreparedModel, verify: str | None) -> Parcel:
        source = classifier.source if classifier is not None else None
        pickled = _pickled(network)
        if pickled is None and source is None:
            raise InputError(_unsendable("it cannot be pickled"))
        return cls(
            pickled,
            source,
            fingerprint(network),
            prepared.precision,
            str(prepared.device),
            verify,
            prepared.straight_through,
        )


@dataclass(frozen=True)
class Order:
    """What is asked of the model in every shard of a run."""

    threat: Threat
    attacks: tuple[str, ...]
    """By their canonical spellings, which for code from outside end in its hash: never other code by that name."""
    targets: str | int | None
    mode: str
    seed: int
    batch_size: int
    eot: int
    keeps_batches: bool
    certify: bool
    radii: tuple[float, ...]
    tuning: Tuning | None
    stops_early: bool

    @classmethod
    def of(cls, job: Job) -> Order:
        spelled = tuple(attack_spelling(stage) for stage in job.attack.stages)
        targets = None if isinstance(job.targets, Tensor) else job.targets  # one per example: they go with the shards
        return cls(
            job.threat,
            spelled,
            targets,
            job.mode,
            job.seed,
            job.batch_size,
            job.eot,
            keeps_batches=job.keeps_batches,
            certify=job.certify,
            radii=job.radii,
            tuning=job.tuning,
            stops_early=job.stops_early,
        )

    def attack(self) -> Attack:
        return as_attack(get_attack(text) for text in self.attacks)


@dataclass(frozen=True)
class Task:
    """One shard with its examples, which the driver has read: a worker needs neither files nor the user's Dataset."""

    shard: int
    images: NDArray[Any]
    labels: NDArray[np.int64]
    indices: tuple[int, ...]
    """In the full source."""
    targets: NDArray[np.int64] | None = None

    @classmethod
    def fetch(cls, job: Job, plan: Plan, shard: int) -> Task:
        positions = plan.positions(shard)
        images, labels = job.data.fetch(positions)
        given = job.targets[list(positions)].cpu().numpy() if isinstance(job.targets, Tensor) else None
        images = images.cpu().to(job.prepared.image_dtype).contiguous()
        indices = tuple(int(job.data.indices[p]) for p in positions)
        return cls(shard, images.numpy(), labels.cpu().numpy(), indices, given)

    def job(self, prepared: PreparedModel, second: PreparedModel | None, order: Order, attack: Attack) -> Job:
        """For `run_shard`, with positions that count from 0 in this shard."""
        return Job(
            prepared,
            _TaskData(self),
            order.threat,
            attack,
            order.targets if self.targets is None else torch.from_numpy(self.targets),
            order.mode,
            order.seed,
            order.batch_size,
            order.eot,
            second,
            keeps_batches=order.keeps_batches,
            certify=order.certify,
            radii=order.radii,
            tuning=order.tuning,
            stops_early=order.stops_early,
        )


@dataclass(frozen=True)
class _TaskData:
    """The examples of a task, as `Data`."""

    task: Task
    name: str = "shard"
    identity: str = ""
    classes: int | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        return self.task.images.shape[1:]

    @property
    def indices(self) -> Sequence[int]:
        return self.task.indices

    def __len__(self) -> int:
        return len(self.task.indices)

    def fetch(self, positions: Sequence[int]) -> tuple[Tensor, Tensor]:
        rows = list(positions)
        return torch.from_numpy(self.task.images[rows]), torch.from_numpy(self.task.labels[rows])


def pack_result(result: ShardResult) -> tuple[ShardResult, NDArray[Any] | None]:
    """With the points as an array: torch would pass tensors between processes as open files."""
    adv = None if result.adv is None else result.adv.detach().cpu().contiguous().numpy()
    return replace(result, adv=None), adv


def unpack_result(packed: tuple[ShardResult, NDArray[Any] | None]) -> ShardResult:
    result, adv = packed
    return replace(result, adv=None if adv is None else torch.from_numpy(adv))


def unpack_model(parcel: Parcel) -> Model:
    """The network: as it was sent; where its classes cannot be imported here, from its source."""
    reason = "it cannot be pickled"
    if parcel.pickled is not None:
        try:
            # Made by the process that started this one, and sent through its pipe.
            return torch.load(io.BytesIO(parcel.pickled), map_location="cpu", weights_only=False)
        except Exception as error:  # whatever the classes of the user raise
            reason = f"{type(error).__name__}: {first_line(error)}"
    if parcel.source is None:
        raise InputError(_unsendable(reason))
    network = parcel.source().module
    if fingerprint(network) != parcel.identity:
        raise InputError(
            "the workers loaded another model than this process has: its weights were changed after it was loaded, or "
            "its factory draws them at random; save them to a file and name it as weights, or leave out the workers"
        )
    return network


def fingerprint(network: Model) -> str | None:
    """What two copies of a network have in common; None for a function of which nothing is known."""
    return model_identity(network, held_parts(network))


def _pickled(network: Model) -> bytes | None:
    buffer = io.BytesIO()
    try:
        torch.save(network, buffer)
    except Exception:  # every kind of object fails in its own way
        return None
    return buffer.getvalue()


def _unsendable(reason: str) -> str:
    return (
        f"this model cannot be sent to worker processes ({reason}); define its class in a file that can be imported, "
        "or load it by name: tmifpe.load_model('file.py:factory')"
    )
