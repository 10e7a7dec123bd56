"""The options of an evaluation, checked before anything is computed."""

from __future__ import annotations

__all__ = [
    "EvaluateOptions",
    "Request",
    "SharedOptions",
    "as_targets",
    "require_model",
    "require_threat",
    "split_engine",
]

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypedDict

import numpy as np
import torch
from torch import Tensor, nn

from tmifpe.attacks.pgd import PGD
from tmifpe.core.errors import InputError, did_you_mean, shown
from tmifpe.core.numbers import MOST_SEED, read_number, real_number, whole_number
from tmifpe.core.types import Classifier, Model, Threat
from tmifpe.run.bar import AnyProgress
from tmifpe.run.cut.part import RunPart, parse_part
from tmifpe.run.evidence.spot_check import as_spot_check
from tmifpe.run.recorder import Keeper
from tmifpe.run.second_opinion import as_precision
from tmifpe.run.shown.progress import Progress
from tmifpe.run.tune.tuning import tune_mode

MOST_DRAWS = 1_000_000
"""Of a randomised model, per query (`eot`) or in all (`repeats`)."""
MOST_WORKERS = 1024
ENGINES = ("local", "processes", "ray")


class SharedOptions(TypedDict, total=False):
    """Keyword arguments of every function that evaluates."""

    targets: str | int | Sequence[int] | Tensor | None
    """Targeted: `second`, `least-likely`, `random`, a class, or one class per example."""
    mode: Literal["verdict", "strongest"]
    """`verdict` stops at the first success, `strongest` takes all steps and keeps the best point."""
    precision: Literal["fp64", "fp32", "bf16", "fp16"] | None
    """The precision the model runs in; its own by default."""
    eot: int
    """Draws to average per query of a randomised model."""
    limit: int | None
    """Only the first `limit` examples."""
    sample: int | None
    """A random sample of this many examples, always the same, stratified by class."""
    indices: Sequence[int] | None
    """Only these examples, by position in the data; or a mask, one truth value for every example."""
    batch_size: int | None
    early_exit: bool
    """Let examples stop early that the linear model predicts to be robust. Half of the examples are a check of that,
    and one of these that breaks switches it off for the run. False: every example takes every step."""
    tune: Literal["auto", "off", "full"] | None
    """Look for a faster way to run the model: `auto` for at most 2 % of the run, `full` whatever it takes; without it
    the environment variable `TMIFPE_TUNE`, or `auto`."""
    shard_size: int | None
    """Examples per shard, the unit of storing and resuming."""
    device: str | torch.device | None
    name: str | None
    """What the model is called in results and in the store."""
    checks: bool
    """Look for reasons to doubt the number, the result's flags: for at most 5 % of the run's cost from 500 examples on,
    and for more of smaller runs."""
    verify: Literal["fp64", "fp32", "bf16", "fp16"] | None
    """Evaluate every adversarial example in this precision too, and mark those on which the two disagree."""
    keep_adv: bool
    """Return the adversarial examples with the result."""
    repeats: int
    """Further draws of a randomised model, each of which evaluates the found points again."""
    transfer_adv: Tensor | None
    """Adversarial examples of another model, one per example: do they break what this attack did not?"""
    store: str | Path | Keeper | None
    """A folder from which the same request is resumed or returned."""
    fresh: bool
    """Repeat the run even if the store has it."""
    radii: Sequence[float | str]
    """Smaller radii at which to state the robust accuracy too: attacked before eps, in the same run."""
    straight_through: str | Sequence[str]
    """Modules, by name or pattern (`fnmatch`), that gradients pass as if they were the identity (BPDA)."""
    spot_check: int | str | None
    """A stronger attack on so many survivors, drawn at random: a number, or `number:attack` (default `autoattack`)."""
    from_model: Model | Classifier | None
    """Another model, whose gradients the attack follows as well, on the survivors: stated beside the number."""
    engine: str | None
    """Who computes the shards: `local`, `processes`, `ray` or `ray:HOST:PORT`; without it this process, or, with
    `workers`, processes."""
    workers: int | Literal["auto"] | None
    """Compute the shards in so many processes, or Ray actors; `auto`: one per GPU, or one per core."""
    shard: str | None
    """Only this part of the shards, such as `3/16`, for an array job; `auto`: as the scheduler says."""
    retries: int
    """How often a worker's shard is tried again before it counts as failed."""
    shard_timeout: float | None
    """Seconds that a worker may take for a shard; without it, any."""


class EvaluateOptions(SharedOptions, total=False):
    """Further keyword arguments of `evaluate`."""

    seed: int
    certify: bool
    """Prove, where bounds of the margin allow it, that no attack of this Linf threat breaks an example."""
    progress: bool | Callable[[Progress], None] | None
    """True for a bar on stderr, or a function that is told of every step."""


@dataclass(frozen=True)
class Request:
    """The options of an evaluation beside model, data, threat and attack, as `EvaluateOptions` documents them."""

    targets: str | int | Tensor | None = None
    mode: str = "verdict"
    seed: int = 0
    precision: str | None = None
    eot: int = 1
    limit: int | None = None
    sample: int | None = None
    indices: Sequence[int] | None = None
    batch_size: int | None = None
    early_exit: bool = True
    tune: str | None = None
    shard_size: int | None = None
    device: str | torch.device | None = None
    name: str | None = None
    keep_adv: bool = False
    certify: bool = False
    checks: bool = True
    verify: str | None = None
    repeats: int = 1
    transfer_adv: Tensor | None = None
    store: str | Path | Keeper | None = None
    fresh: bool = False
    radii: Sequence[float | str] = ()
    straight_through: str | Sequence[str] = ()
    spot_check: int | str | None = None
    from_model: Model | Classifier | None = None
    engine: str | None = None
    workers: int | str | None = None
    shard: str | RunPart | None = None
    retries: int = 2
    shard_timeout: float | None = None
    progress: AnyProgress = None

    def __post_init__(self) -> None:
        for option in ("limit", "sample", "batch_size", "shard_size"):
            if getattr(self, option) is not None:
                object.__setattr__(self, option, whole_number(option, getattr(self, option)))
        for option in ("eot", "repeats"):
            object.__setattr__(self, option, whole_number(option, getattr(self, option), most=MOST_DRAWS))
        object.__setattr__(self, "seed", whole_number("seed", self.seed, least=0, most=MOST_SEED))
        if self.limit is not None and self.sample is not None:
            raise InputError("limit takes the first examples and sample draws some; give one of them")
        if self.mode not in ("verdict", "strongest"):
            raise InputError(f"mode must be 'verdict' or 'strongest', got {shown(self.mode)}")
        for option in ("precision", "verify"):
            if getattr(self, option) is not None:
                object.__setattr__(self, option, as_precision(getattr(self, option)))
        object.__setattr__(self, "targets", as_targets(self.targets))
        _as_radii(self.radii)
        object.__setattr__(self, "straight_through", _as_patterns(self.straight_through))
        as_spot_check(self.spot_check)
        if self.certify and self.targets is not None:
            raise InputError("certificates are for untargeted evaluations; leave out the targets or `certify`")
        object.__setattr__(self, "tune", tune_mode(self.tune))
        if not isinstance(self.early_exit, bool):
            raise InputError(f"early_exit must be true or false, got {shown(self.early_exit)}")
        self._check_engine()

    def _check_engine(self) -> None:
        name, _ = split_engine(self.engine)
        if name == "local" and self.workers is not None:
            raise InputError("the engine local is this process and takes no workers; leave out `engine` or `workers`")
        if self.workers is not None and self.workers != "auto":
            object.__setattr__(self, "workers", whole_number("workers", self.workers, most=MOST_WORKERS))
        object.__setattr__(self, "retries", whole_number("retries", self.retries, least=0, most=1000))
        if self.shard_timeout is not None:
            object.__setattr__(self, "shard_timeout", real_number("shard_timeout", self.shard_timeout, above=0))
        if self.shard is not None:
            object.__setattr__(self, "shard", parse_part(self.shard))

    @property
    def smaller_radii(self) -> tuple[float, ...]:
        """As numbers, smallest first."""
        return _as_radii(self.radii)

    @classmethod
    def of(cls, options: dict[str, Any], verb: str = "evaluate", also: Iterable[str] = ()) -> Request:
        """From keyword arguments; an unknown one is an `InputError` that suggests the nearest, or one of the verb's
        own, `also`."""
        known = cls.__dataclass_fields__
        for name in (name for name in options if name not in known):
            if name in PGD.__dataclass_fields__:
                of_full = verb != "compare" and name in ("loss", "steps", "restarts", "schedule")
                made = f'attack="full({name}=...)"' if of_full else f"attack=PGD({name}=...)"
                raise InputError(f"{name} belongs to the attack, not to {verb}: {made}")
            if name in ("mean", "std"):
                raise InputError(f"{verb} takes no {name}; wrap the model: tmifpe.Normalize(model, mean, std)")
            raise did_you_mean(f"option of {verb}", name, {*known, "attack", *also})
        return cls(**options)


def split_engine(engine: str | None) -> tuple[str, str]:
    """The name of an engine, and the address after it: that of a Ray cluster.

    >>> split_engine("ray:10.0.0.1:6379"), split_engine("processes"), split_engine(None)
    (('ray', '10.0.0.1:6379'), ('processes', ''), ('', ''))
    """
    if engine is None:
        return "", ""
    name, colon, address = engine.partition(":") if isinstance(engine, str) else (engine, "", "")
    if name not in ENGINES:
        raise did_you_mean("engine", name, ENGINES)
    if colon and (name != "ray" or not address):
        raise InputError(f"only ray takes an address, as in ray:HOST:PORT, got {shown(engine)}")
    return name, address


def _as_radii(given: object) -> tuple[float, ...]:
    """Different radii, smallest first."""
    if isinstance(given, str) or not isinstance(given, Sequence):
        raise InputError(f"radii must be a list of numbers, such as [2/255, '4/255'], got {shown(given)}")
    return tuple(sorted({real_number("radii", read_number("radii", one), least=0) for one in given}))


def _as_patterns(given: object) -> tuple[str, ...]:
    """Patterns of module names: one text or several."""
    patterns = (given,) if isinstance(given, str) else tuple(given) if isinstance(given, Sequence) else None
    if patterns is None or not all(isinstance(pattern, str) and pattern for pattern in patterns):
        raise InputError(f"straight_through must be names or patterns of modules, got {shown(given)}")
    return patterns


def require_model(model: object) -> None:
    """A module or a function, with its parameters loaded."""
    if isinstance(model, str):
        raise InputError(f"the model must be callable; load {shown(model)} with tmifpe.load_model first")
    if isinstance(model, type):
        raise InputError(f"the model must be an object, not the class {model.__name__}; call it: {model.__name__}(...)")
    if not callable(model):
        raise InputError(f"the model must be an nn.Module or any callable to logits, got {type(model).__name__}")
    if isinstance(model, nn.Module) and any(tensor.is_meta for tensor in (*model.parameters(), *model.buffers())):
        raise InputError("the model has parameters on the meta device, which hold no values; load its weights first")


def require_threat(threat: object, verb: str = "evaluate", data: object = None) -> None:
    """`data` is what stands before it: labels in the place of the threat belong to images there."""
    if isinstance(threat, Threat):
        return
    call = f'{verb}(model, (x, y), Threat("linf", 8/255))'
    if isinstance(data, Tensor | np.ndarray):
        raise InputError(f"images and labels are given as a pair: {call}")
    raise InputError(f"the threat must be a Threat, as in {call}, got {shown(threat)}")


def as_targets(targets: Any) -> str | int | Tensor | None:
    """A rule's name, a class, or one class per example as an int64 tensor."""
    if targets is None or (isinstance(targets, str | int) and not isinstance(targets, bool)):
        return targets
    try:
        found = torch.as_tensor(targets)
        if not found.is_floating_point() and not found.is_complex() and found.dtype != torch.bool and not found.is_meta:
            return int(found) if found.dim() == 0 else found.to(torch.int64)
    except (TypeError, ValueError, RuntimeError, OverflowError):
        pass
    raise InputError(f"targets must be a rule's name, a class, or one class per example, got {shown(targets)}")
