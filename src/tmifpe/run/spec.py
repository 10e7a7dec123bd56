"""What was requested: everything that changes the result, and nothing else."""

from __future__ import annotations

__all__ = ["PRECISIONS", "FailedExits", "Plan", "RunSpec", "get_precision"]

import dataclasses
import hashlib
import json
from dataclasses import dataclass, field
from typing import Any

import torch

from tmifpe.attacks.catalogue import attack_title, is_named
from tmifpe.core.errors import InputError, did_you_mean
from tmifpe.core.numbers import MOST_SEED, whole_number
from tmifpe.core.options import parse, split_list
from tmifpe.core.types import Threat
from tmifpe.run import frozen_defaults
from tmifpe.run.tune.tuning import Tuning
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
    """One evaluation, as plain values. `key()` hashes what changes the answer; device and engine are recorded with
    the run, not hashed. A field added here needs an entry in `frozen_defaults.SPEC_FIELDS`."""

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
    """`Plan.cut` for a randomised model, whose draws depend on it; otherwise empty, since the cut changes nothing."""
    straight_through: tuple[str, ...] = ()
    """Modules that the attack passed as if they were the identity."""
    certify: str = "none"
    """How certificates are computed, or `none`: they are part of the outcomes."""
    radii: tuple[float, ...] = ()
    """The radii that were attacked one after another, smallest first, eps last; empty if eps was the only one."""
    early_exit: bool = True
    """Whether examples may stop early, predicted robust; a share of them is checked (`EarlyExit`)."""
    tune: str = "auto"
    """How a faster way to run the model was looked for."""
    model_options: tuple[str, ...] = ()
    """`weights=FILE` and the like, as `Classifier.options` has them: a name, like that of the model."""

    def __post_init__(self) -> None:
        whole_number("seed", self.seed, least=0, most=MOST_SEED)
        if not self.attacks:
            raise InputError("an evaluation needs at least one attack")

    @property
    def attack_title(self) -> str:
        """`full`, with its options, or `quick` if its attacks are that, else their text."""
        return attack_title(self.attacks, targeted=self.targets != "none")

    @property
    def is_named(self) -> bool:
        """Whether the title is such a name."""
        return is_named(self.attack_title)

    def as_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, plain: dict[str, Any]) -> RunSpec:
        """A spec as any version stored it. Fields unknown here are ignored; a missing one has its frozen default."""
        told = {**frozen_defaults.SPEC_FIELDS, **plain}
        values = {one.name: told[one.name] for one in dataclasses.fields(cls)}
        values["threat"] = Threat(**{one.name: told["threat"][one.name] for one in dataclasses.fields(Threat)})
        for name in ("attacks", "straight_through", "radii", "model_options"):
            values[name] = tuple(told[name])
        for name, words in frozen_defaults.OLD_WORDS.items():
            today = {old: new for new, old in words.items()}
            values[name] = today.get(values[name], values[name])
        return cls(**values)

    def key(self) -> str:
        """16 hexadecimal digits; for every request that 0.1.0 knew, the same as its own.

        Names are left out: the identities say what a model and data are. So is whatever has its frozen default.
        """
        plain = self.as_dict()
        del plain["model"], plain["model_options"], plain["data"], plain["total"]
        for name, default in frozen_defaults.SPEC_FIELDS.items():
            if name in plain and plain[name] == default:
                del plain[name]
        for name, words in frozen_defaults.OLD_WORDS.items():
            plain[name] = words.get(plain[name], plain[name])
        plain["attacks"] = [_without_frozen_defaults(attack) for attack in self.attacks]
        return hashlib.sha256(json.dumps(plain, sort_keys=True).encode()).hexdigest()[:16]

    def keys(self) -> tuple[str, ...]:
        """The keys under which this run may be stored: its own, then that of 0.1.0, which left out the cut."""
        return tuple(dict.fromkeys([self.key(), dataclasses.replace(self, cut="").key()]))


def _without_frozen_defaults(attack: str) -> str:
    """The spelling of an attack less the options that 0.1.0 did not have and that have their frozen default."""
    try:
        name, options = parse(attack)
    except InputError:  # a spelling of another version
        return attack
    later = frozen_defaults.ATTACK_OPTIONS.get(name, {})
    left_out = {option for option, value in options.items() if option in later and value == later[option]}
    if not left_out and "attack" not in options:
        return attack
    # From the text, not from the values: a version such as 1.10 must not come back as the number 1.1.
    inside = attack.partition("(")[2].rpartition(")")[0]
    kept = []
    for part in split_list(inside):
        option, _, value = part.partition("=")
        if option.strip() not in left_out:
            nested = option.strip() == "attack"  # an attack that runs another one
            kept.append(f"attack={_without_frozen_defaults(value)}" if nested else part)
    return f"{name}({','.join(kept)})" if kept else name


@dataclass(frozen=True)
class FailedExits:
    """Early exit was wrong for some of the examples that were checked, so that no example stops early in this run; and
    what the shards cost that were computed before that was known, and computed anew."""

    checked: int
    wrong: int
    forwards: int
    backwards: int

    def __post_init__(self) -> None:
        if not all(type(number) is int and number >= 0 for number in vars(self).values()):
            raise ValueError("counts are expected")


@dataclass(frozen=True)
class Plan:
    """How the work is cut. A shard is a fixed run of positions, and batches refill only within it, so that its
    outcomes are a function of spec and plan alone: that is what makes resuming exact."""

    n: int
    batch_size: int
    shard_size: int
    tuning: Tuning | None = field(default=None, compare=False)
    """How the model is run, once that has been chosen; a resumed run goes on in the same way."""
    failed_exits: FailedExits | None = field(default=None, compare=False)
    """Why no example stops early in this run, once that is known."""

    def __post_init__(self) -> None:
        if min(self.n, self.batch_size, self.shard_size) < 1:
            raise InputError("examples, batch size and shard size must be at least 1")

    @classmethod
    def from_dict(cls, plain: dict[str, Any]) -> Plan:
        """A plan as any version stored it; fields unknown here are ignored."""
        tuning = plain.get("tuning")
        n, batch, shard = (int(plain[name]) for name in ("n", "batch_size", "shard_size"))
        failed = plain.get("failed_exits")
        return cls(
            n,
            batch,
            shard,
            None if tuning is None else Tuning.from_dict(tuning),
            None if failed is None else FailedExits(**failed),
        )

    def as_dict(self) -> dict[str, Any]:
        """Plain values, without what was not chosen."""
        return {name: value for name, value in dataclasses.asdict(self).items() if value is not None}

    @property
    def cut(self) -> str:
        """What the draws of a randomised model depend on, for `RunSpec.cut`."""
        return f"{self.batch_size}/{self.shard_size}"

    def __len__(self) -> int:
        return (self.n + self.shard_size - 1) // self.shard_size

    def positions(self, shard: int) -> range:
        return range(shard * self.shard_size, min((shard + 1) * self.shard_size, self.n))
