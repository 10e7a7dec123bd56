"""What an evaluation found: numbers, and the evidence for them."""

from __future__ import annotations

__all__ = ["Flag", "Progress", "Result", "as_options"]

import dataclasses
import re
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from tmifpe.attacks.queries import Tally
from tmifpe.core.errors import IncompleteError, shorten
from tmifpe.core.options import parse
from tmifpe.core.stats import student, wilson
from tmifpe.run.outcomes import Mark, Outcomes
from tmifpe.run.shard import ShardFailure
from tmifpe.run.spec import Plan, RunSpec
from tmifpe.version import __version__


@dataclass(frozen=True)
class Flag:
    """A reason to doubt the number: what was seen, and what to do about it.

    Options stand in backticks, the way Python names them; `on_command_line` turns them into options of the command.

    >>> Flag("randomised", "...", 'Try `loss="tmifpe"`, `batch_size=8` and more `steps`.').on_command_line().advice
    'Try --loss tmifpe, --batch-size 8 and more --steps.'
    """

    name: str
    seen: str
    advice: str

    def on_command_line(self) -> Flag:
        return Flag(self.name, as_options(self.seen), as_options(self.advice))


def as_options(text: str) -> str:
    """Text that names options as Python does, in backticks, with the names of the command line."""

    def option(found: re.Match[str]) -> str:
        name, value = found[1].replace("_", "-"), found[2]
        return f"--{name}" if value is None else f"--{name} " + value.strip('"')

    return re.sub(r"`(\w+)(?:=([^`]*))?`", option, text)


@dataclass(frozen=True)
class Progress:
    """How far an evaluation has come. The robust accuracy so far lies in [robust, total - wrong] / total."""

    total: int
    done: int
    robust: int
    wrong: int

    @property
    def bounds(self) -> tuple[float, float]:
        return self.robust / self.total, (self.total - self.wrong) / self.total


@dataclass(frozen=True)
class Result:
    """The answer to a `RunSpec`. Accuracies and the interval are fractions in [0, 1].

    `robust_accuracy` is the share of all examples that are classified correctly and withstood every attack.
    Targeted: examples left out (predicted or labelled as their target to begin with) are not counted in `n` and the
    robust accuracy; the clean accuracy is always that of all examples.
    """

    spec: RunSpec
    plan: Plan
    outcomes: Outcomes
    tally: Tally
    seconds: float
    resumed: int = 0
    flags: tuple[Flag, ...] = ()
    check_forwards: int = 0
    """Forward passes spent on checks of the set-up, counted apart from the attack's."""
    adv: Tensor | None = field(default=None, repr=False, compare=False)
    repeated: tuple[float, ...] = ()
    """The robust accuracy in further draws of a randomised model, one number per draw."""
    notes: tuple[str, ...] = ()
    """Remarks by the sources of the model and of the data."""
    missing: int = 0
    """Examples without a verdict, because their shards failed: then there are `bounds`, but no robust accuracy."""
    failures: tuple[ShardFailure, ...] = ()
    """The shards that failed, and why."""
    part: str = ""
    """Which part of the run this is, such as `3/16`; empty for all of it."""

    @property
    def bounds(self) -> tuple[float, float]:
        """The robust accuracy if all missing examples counted as broken, and if all counted as robust."""
        every = self.n + self.missing
        return (self.robust / every, (self.robust + self.missing) / every) if every else (0.0, 0.0)

    @property
    def n(self) -> int:
        return int(self.outcomes.counted.sum())

    @property
    def broken(self) -> int:
        return int(self.outcomes.fooled.sum())

    @property
    def robust(self) -> int:
        return int((self.outcomes.robust & self.outcomes.counted).sum())

    @property
    def clean_accuracy(self) -> float:
        return float(self.outcomes.correct.mean()) if len(self.outcomes) else 0.0

    @property
    def robust_accuracy(self) -> float:
        self._require_complete()
        return self.robust / self.n if self.n else 0.0

    @property
    def interval(self) -> tuple[float, float]:
        """Wilson's 95 % interval of the robust accuracy: the spread of the draw of examples, not of the seed."""
        self._require_complete()
        return wilson(self.robust, self.n)

    @property
    def fragile(self) -> NDArray[np.int64]:
        """Indices of the examples whose verdict differs in the precision of the second opinion (`verify`)."""
        return self.outcomes.index[(self.outcomes.marks & Mark.FRAGILE) != 0]

    @property
    def second_robust_accuracy(self) -> float:
        """The robust accuracy if the second opinion decides. In `robust_accuracy` the run's own precision does, so
        that an example broken in it alone counts as broken there and as robust here."""
        differs = (self.outcomes.marks & Mark.FRAGILE) != 0
        broken = self.outcomes.fooled ^ differs
        robust = int((self.outcomes.correct & ~broken & self.outcomes.counted).sum())
        return robust / self.n if self.n else 0.0

    @property
    def success_rate(self) -> float:
        """Broken examples as a share of those attacked."""
        attacked = int((self.outcomes.correct & self.outcomes.counted).sum())
        return self.broken / attacked if attacked else 0.0

    def _require_complete(self) -> None:
        if self.missing:
            low, high = self.bounds
            why = f" ({self.failures[0].error})" if self.failures else ""
            raise IncompleteError(
                f"the run is incomplete: {self.missing} of {self.n + self.missing} examples have no verdict{why}; its "
                f"robust accuracy lies between {low:.2%} and {high:.2%}. Ask for the same again to go on"
            )

    def to_json(self) -> dict[str, Any]:
        """The result as plain values, without the rows. Of an incomplete one, the number is null and has bounds."""
        _, options = parse(self.spec.attacks[0])
        plain: dict[str, Any] = {
            "clean_accuracy": self.clean_accuracy,
            "robust_accuracy": None if self.missing else self.robust_accuracy,
            "interval": None if self.missing else list(self.interval),
            "n": self.n,
            "broken": self.broken,
            "norm": self.spec.threat.norm,
            "eps": self.spec.threat.eps,
            "loss": options.get("loss"),
            "steps": options.get("steps"),
            "seed": self.spec.seed,
            "seconds": self.seconds,
            "forwards": self.tally.forwards,
            "backwards": self.tally.backwards,
            "check_forwards": self.check_forwards,
            "resumed": self.resumed,
            "flags": [dataclasses.asdict(flag) for flag in self.flags],
            "notes": list(self.notes),
            "model": self.spec.model,
            "data": self.spec.data,
            "attacks": list(self.spec.attacks),
            "mode": self.spec.mode,
            "precision": self.spec.precision,
            "batch_size": self.plan.batch_size,
            "key": self.spec.key() if self.spec.data_identity else None,  # of what is not stored, nothing is hashed
            "version": __version__,
        }
        if self.missing:
            failures = [{"shard": one.shard, "attempts": one.attempts, "error": one.error} for one in self.failures]
            plain |= {"bounds": list(self.bounds), "missing": self.missing, "failures": failures}
        if self.part:
            plain |= {"shard": self.part}
        if self.spec.verify != "none":
            plain |= {
                "verify": self.spec.verify,
                "second_robust_accuracy": None if self.missing else self.second_robust_accuracy,
                "fragile": len(self.fragile),
                "fragile_indices": self.fragile.tolist(),
            }
        if self.repeated:
            plain |= {
                "repeated": list(self.repeated),
                "repeated_mean": sum(self.repeated) / len(self.repeated),
                "repeated_interval": list(student(self.repeated)),
            }
        if self.spec.targets != "none":
            left_out = int(((self.outcomes.marks & Mark.LEFT_OUT) != 0).sum())
            plain |= {"targets": self.spec.targets, "success_rate": self.success_rate, "left_out": left_out}
        return plain

    def __repr__(self) -> str:
        spec, names = self.spec, ", ".join(dict.fromkeys(flag.name for flag in self.flags))
        what = f"{spec.model} on {spec.data}, {'; '.join(spec.attacks)}"
        return f"<Result {self}; {shorten(what, 200)}; {f'flags: {shorten(names, 100)}' if names else 'no flags'}>"

    def __str__(self) -> str:
        low, high = self.bounds if self.missing else self.interval
        number = f"{self.robust_accuracy:.2%} (95 % interval {low:.2%} to {high:.2%})" if not self.missing else ""
        number = number or f"between {low:.2%} and {high:.2%} (incomplete: {self.missing} examples have no verdict)"
        return (
            f"{f'shard {self.part}: ' if self.part else ''}robust accuracy {number}, "
            f"clean {self.clean_accuracy:.2%}, n = {self.n}, {self.spec.threat.norm} eps = {self.spec.threat.eps:.6g}"
        )

    def per_class(self) -> dict[int, tuple[int, int, int]]:
        """For every label: examples, correct ones, robust ones."""
        table = self.outcomes.take(self.outcomes.counted)
        labels = np.unique(table.label)
        return {
            int(c): (int((m := table.label == c).sum()), int(table.correct[m].sum()), int(table.robust[m].sum()))
            for c in labels
        }
