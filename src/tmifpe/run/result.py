"""What an evaluation found: numbers, and the evidence for them."""

from __future__ import annotations

__all__ = ["EarlyExits", "Flag", "Radius", "Result"]

import dataclasses
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from tmifpe.attacks import part_names
from tmifpe.attacks.hooks.layer_gradient import LayerGradient
from tmifpe.attacks.loop.queries import StageCost, Tally
from tmifpe.core.errors import IncompleteError, InputError, shorten
from tmifpe.core.extras import import_extra
from tmifpe.core.options import parse
from tmifpe.core.shown.formats import sheet_html, sheet_latex, sheet_markdown
from tmifpe.core.stats import student, wilson
from tmifpe.run.evidence.flag import Flag
from tmifpe.run.evidence.repair import Repair
from tmifpe.run.evidence.spot_check import SpotCheck
from tmifpe.run.evidence.transfer import Transfer
from tmifpe.run.outcomes import Mark, Outcomes
from tmifpe.run.radius import Radius
from tmifpe.run.shard import ShardFailure
from tmifpe.run.shown.plot import plot_result, save_figure
from tmifpe.run.shown.sheets import result_sheets
from tmifpe.run.spec import Plan, RunSpec
from tmifpe.run.verify import Transferred
from tmifpe.version import __version__


@dataclass(frozen=True)
class EarlyExits:
    """How many of `n` examples stopped early, how many would have and took all their steps as a check, and how many of
    these were broken after all: a single one switches early exit off for the run.

    >>> print(EarlyExits(500, 212, 205, 0))
    212 of 500 stopped early (predicted robust); as a check 205 more went on, 0 of them were broken
    """

    n: int
    stopped: int
    checked: int
    wrong: int

    def __str__(self) -> str:
        if self.wrong:
            return (
                f"{self.wrong} of {self.checked} examples broke that early exit had predicted to be robust; no example "
                "stops early in this run"
            )
        return (
            f"{self.stopped} of {self.n} stopped early (predicted robust); as a check {self.checked} more went on, "
            "0 of them were broken"
        )


@dataclass(frozen=True)
class Result:
    """The result of a `RunSpec`. Accuracies and the interval are fractions in [0, 1].

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
    """Forward passes spent on checks, counted separately from the attack's; those of repairs are in `repairs`."""
    check_backwards: int = 0
    check_seconds: float = 0.0
    """What checks and repairs took on top of `seconds`."""
    repairs: tuple[Repair, ...] = ()
    """What other ways of attacking broke, where the checks found the gradients of `full` misleading: counted."""
    key: str | None = None
    """The key under which the run is stored: that of `spec`, or the one that an older version gave it."""
    adv: Tensor | None = field(default=None, repr=False, compare=False)
    repeated: tuple[float, ...] = ()
    """The robust accuracy in further draws of a randomised model, one number per draw."""
    stages: tuple[StageCost, ...] = ()
    """What each stage of the attack was given, broke and cost; empty where 0.1.0 ran a part of it."""
    notes: tuple[str, ...] = ()
    """Remarks by the sources of the model and of the data."""
    files: tuple[str, ...] = field(default=(), repr=False)
    """The file of each outcome, where the data has one for each."""
    class_names: tuple[str, ...] = field(default=(), repr=False)
    """The names of the classes, where the data has them."""
    checks_cut: tuple[str, ...] = ()
    """What the checks left out, or looked at less of, to stay within their share of the run's own cost."""
    transferred: Transferred | None = field(default=None, compare=False)
    """What the examples in `transfer_adv` do."""
    layers: tuple[LayerGradient, ...] = ()
    """What becomes of the gradient at every module, on a few images, if the model was checked."""
    spot_check: SpotCheck | None = None
    """What a stronger attack found among some survivors, if that was asked for."""
    from_model: Transfer | None = None
    """What the gradients of another model found among the survivors, if that was asked for."""
    missing: int = 0
    """Examples without a verdict, because their shards failed or are still to come: then there are bounds, but no
    accuracy."""
    failures: tuple[ShardFailure, ...] = ()
    """The shards that failed, and why."""
    part: str = ""
    """Which part of the run this is, such as `3/16`; empty for all of it."""

    @property
    def complete(self) -> bool:
        """Whether there is an accuracy to show: every example has a verdict. Otherwise there are bounds, if any has."""
        return not self.missing and len(self.outcomes) > 0

    @property
    def bounds(self) -> tuple[float, float]:
        """The robust accuracy if all missing examples counted as broken, and if all counted as robust."""
        return self._bounds(self.robust, self.n)

    @property
    def clean_bounds(self) -> tuple[float, float]:
        """The same of the clean accuracy."""
        return self._bounds(int(self.outcomes.correct.sum()), len(self.outcomes))

    def _bounds(self, good: int, known: int) -> tuple[float, float]:
        every = known + self.missing
        return (good / every, (good + self.missing) / every) if every else (0.0, 0.0)

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
    def early_exits(self) -> EarlyExits | None:
        """What early exit did; None where no example would have stopped early."""
        if (failed := self.plan.failed_exits) is not None:
            return EarlyExits(self.n, 0, failed.checked, failed.wrong)
        marks = (Mark.STOPPED_EARLY, Mark.EXIT_CHECKED, Mark.EXIT_WRONG)
        counts = [self.outcomes.marked(mark) for mark in marks]
        return EarlyExits(self.n, *counts) if any(counts) else None

    @property
    def certified(self) -> int | None:
        """How many examples are proved to withstand every attack of this threat; None if that was not asked."""
        if self.spec.certify == "none":
            return None
        return int(((self.outcomes.certified == 1) & self.outcomes.counted).sum())

    @property
    def certified_accuracy(self) -> float | None:
        """A lower bound of the robust accuracy, where `robust_accuracy` is an upper one; None if it was not asked."""
        return None if self.certified is None else self.certified / max(1, self.n + self.missing)

    @property
    def radii(self) -> tuple[Radius, ...]:
        """What stands at every radius of the run; empty if eps was the only one."""
        return tuple(self.standing(eps) for eps in self.spec.radii)

    def standing(self, eps: float) -> Radius:
        """What stands at a radius that the run attacked; at any up to eps if it looked for the smallest (`curve`)."""
        self._require_complete()
        table, n = self.outcomes, self.n
        robust = int((table.correct & table.counted & (table.broken_at > eps)).sum())
        proved = None
        if self.spec.certify != "none":
            proved = int((table.correct & table.counted & (table.certified_to >= eps)).sum()) / max(1, n)
        return Radius(eps, robust / max(1, n), wilson(robust, n), proved)

    @property
    def clean_accuracy(self) -> float:
        self._require_complete()
        return float(self.outcomes.correct.mean()) if len(self.outcomes) else 0.0

    @property
    def robust_accuracy(self) -> float:
        self._require_complete()
        return self.robust / self.n if self.n else 0.0

    @property
    def interval(self) -> tuple[float, float]:
        """Wilson's 95 % interval of the robust accuracy: it covers the sampling of examples, not the seed."""
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
        self._require_complete()
        differs = (self.outcomes.marks & Mark.FRAGILE) != 0
        broken = self.outcomes.fooled ^ differs
        robust = int((self.outcomes.correct & ~broken & self.outcomes.counted).sum())
        return robust / self.n if self.n else 0.0

    @property
    def success_rate(self) -> float:
        """Broken examples as a share of those attacked."""
        self._require_complete()
        attacked = int((self.outcomes.correct & self.outcomes.counted).sum())
        return self.broken / attacked if attacked else 0.0

    def broken_by(self) -> dict[str, NDArray[np.int64]]:
        """Which examples each attack broke, by index; part by part where it has parts, as AutoAttack has."""
        found: dict[str, NDArray[np.int64]] = {}
        table = self.outcomes
        for number, spelled in enumerate(self.spec.attacks):
            here, names = table.fooled & (table.stage == number), part_names(spelled)
            for part, name in enumerate(names):
                found[f"{parse(spelled)[0]}: {name}"] = table.index[here & (table.part == part)]
            rest = table.index[here & ((table.part < 0) | (table.part >= len(names)))]
            if len(rest) or not names:
                found[spelled] = rest
        for repair in self.repairs:
            found[f"repair: {repair.name}"] = np.array(repair.indices, dtype=np.int64)
        return found

    @property
    def spent(self) -> Tally:
        """All passes: of the attack, of checks and of repairs."""
        return sum((one.tally for one in self.repairs), self.tally + self.checked)

    @property
    def checked(self) -> Tally:
        return Tally(self.check_forwards, self.check_backwards)

    def _require_complete(self) -> None:
        if not self.complete:
            why = f" ({self.failures[0].error})" if self.failures else ""
            raise IncompleteError(f"the run is incomplete{why}: {self.progress}. Ask for the same again to go on")

    @property
    def progress(self) -> str:
        """How far an incomplete run has come, with the bounds of its robust accuracy where there are some."""
        done, every = len(self.outcomes), len(self.outcomes) + self.missing
        if not done:
            return f"0 of {every} examples have a verdict"
        low, high = self.bounds
        missing = f"{self.missing} of {every} examples have no verdict"
        return f"robust accuracy between {low:.2%} and {high:.2%}, since {missing}"

    def to_json(self) -> dict[str, Any]:
        """The result as plain values, without the rows. Of an incomplete one, the number is null and has bounds."""
        options = _options_of(self.spec.attacks[0]) | _options_of(self.spec.attack_title)
        plain: dict[str, Any] = {
            "clean_accuracy": self.clean_accuracy if self.complete else None,
            "robust_accuracy": self.robust_accuracy if self.complete else None,
            "interval": list(self.interval) if self.complete else None,
            "n": self.n,
            "broken": self.broken,
            "norm": self.spec.threat.norm,
            "eps": self.spec.threat.eps,
            "box": list(self.spec.threat.box),
            "loss": options.get("loss"),
            "steps": options.get("steps"),
            "seed": self.spec.seed,
            "seconds": self.seconds,
            "forwards": self.tally.forwards,
            "backwards": self.tally.backwards,
            "check_forwards": self.check_forwards,
            "check_backwards": self.check_backwards,
            "check_seconds": self.check_seconds,
            "checks_cut": list(self.checks_cut),
            "resumed": self.resumed,
            "flags": [dataclasses.asdict(flag) for flag in self.flags],
            "notes": list(self.notes),
            "model": self.spec.model,
            "data": self.spec.data,
            "attacks": list(self.spec.attacks),
            "stages": [
                {"attack": attack} | dataclasses.asdict(stage)
                for attack, stage in zip(self.spec.attacks, self.stages, strict=False)
            ],
            "mode": self.spec.mode,
            "precision": self.spec.precision,
            "batch_size": self.plan.batch_size,
            "tuning": None if self.plan.tuning is None else dataclasses.asdict(self.plan.tuning),
            "early_exit": None if self.early_exits is None else dataclasses.asdict(self.early_exits),
            "key": self.key,
            "version": __version__,
        }
        if self.class_names:
            plain["class_names"] = list(self.class_names)
        if self.files:
            plain["files"] = list(self.files)
        if self.transferred is not None:
            plain |= {"transfer": self.transferred.to_json()}
        if len(broken_by := self.broken_by()) > 1:
            plain |= {"broken_by": {name: indices.tolist() for name, indices in broken_by.items()}}
        if self.spec.targets != "none":
            left_out = int(((self.outcomes.marks & Mark.LEFT_OUT) != 0).sum())
            rate = self.success_rate if self.complete else None
            plain |= {"targets": self.spec.targets, "success_rate": rate, "left_out": left_out}
        return plain | self._stated()

    def _stated(self) -> dict[str, Any]:
        """What is there only where it was asked for."""
        plain: dict[str, Any] = {}
        if self.spec.radii and self.complete:
            plain["radii"] = [radius.to_json() for radius in self.radii]
        if self.spec.straight_through:
            plain["straight_through"] = list(self.spec.straight_through)
        if self.repairs:
            plain["repairs"] = [repair.to_json() for repair in self.repairs]
        if self.layers:
            plain["layers"] = [dataclasses.asdict(layer) for layer in self.layers]
        if self.spot_check is not None:
            plain["spot_check"] = self.spot_check.to_json()
        if self.from_model is not None:
            plain["from_model"] = self.from_model.to_json()
        if not self.complete:
            failures = [{"shard": one.shard, "attempts": one.attempts, "error": one.error} for one in self.failures]
            bounds = {"bounds": list(self.bounds), "clean_bounds": list(self.clean_bounds)}
            plain |= (bounds if len(self.outcomes) else {}) | {"missing": self.missing, "failures": failures}
        if self.part:
            plain |= {"shard": self.part}
        if self.spec.verify != "none":
            plain |= {
                "verify": self.spec.verify,
                "second_robust_accuracy": self.second_robust_accuracy if self.complete else None,
                "fragile": len(self.fragile),
                "fragile_indices": self.fragile.tolist(),
            }
        if self.spec.certify != "none":
            plain |= {
                "certify": self.spec.certify,
                "certified": self.certified,
                "certified_accuracy": self.certified_accuracy,
            }
        if self.repeated:
            plain |= {
                "repeated": list(self.repeated),
                "repeated_mean": sum(self.repeated) / len(self.repeated),
                "repeated_interval": list(student(self.repeated)),
            }
        return plain

    def __repr__(self) -> str:
        spec, names = self.spec, ", ".join(dict.fromkeys(flag.name for flag in self.flags))
        what = f"{spec.model} on {spec.data}, {spec.attack_title}"
        return f"<Result {self}; {shorten(what, 200)}; {f'flags: {shorten(names, 100)}' if names else 'no flags'}>"

    def __str__(self) -> str:
        threat, part = self.spec.threat, f"shard {self.part}: " if self.part else ""
        proved = "" if self.certified_accuracy is None else f"certified {self.certified_accuracy:.2%} <= "
        number = f"incomplete: {self.progress}"
        if self.complete:
            low, high = self.interval
            number = f"{proved}robust accuracy {self.robust_accuracy:.2%} (95 % interval {low:.2%} to {high:.2%}), "
            number += f"clean {self.clean_accuracy:.2%}, n = {self.n}"
        return f"{part}{number}, {threat.norm} eps = {threat.eps:.6g}{threat.within}"

    def to_markdown(self) -> str:
        """The numbers, the flags and the stages, tables in Markdown."""
        return "\n\n".join(map(sheet_markdown, result_sheets(self)))

    def to_latex(self) -> str:
        """The same in LaTeX: a `tabular` each, without packages."""
        return "\n\n".join(map(sheet_latex, result_sheets(self)))

    def _repr_html_(self) -> str:
        return "".join(map(sheet_html, result_sheets(self)))

    def plot(self, path: str | Path | None = None) -> Any:
        """Robust accuracy by class, and against the steps. Returns a matplotlib figure (extra `plots`).

        It is also written to `path` if one is given.
        """
        return save_figure(plot_result(self), path)

    def class_name(self, number: int) -> str:
        """The name of a class, or else its number."""
        return self.class_names[number] if 0 <= number < len(self.class_names) else str(number)

    def to_pandas(self) -> Any:
        """One row per example as a DataFrame (extra `pandas`), in the order of evaluation.

        index, label, target (-1: untargeted), clean_pred and adv_pred are whole numbers. `correct`: the clean image is
        classified correctly. `fooled`: the attack broke it; False for what it was not tried on. `robust`: correct and
        not fooled, missing for examples that a targeted run does not count; its mean is the robust accuracy. `attack`
        and `part`: what broke it, empty if nothing did. steps_used; margin and clean_margin (positive: broken); size of
        the change; clean_gap and adv_gap between the two largest logits; `fragile`: broken in one precision only.
        broken_at and withstood: the smallest radius that breaks it and the largest below that did not. certified (1 or
        0, -1: not asked), margin_bound and certified_to, what `certify` proves of the margin and up to which radius.
        """
        pandas: Any = import_extra("pandas", "tables of outcomes", "pandas")
        table = self.outcomes
        # The stage after the last one is that of the repairs; -1, of those that nothing broke, is the empty text.
        attacks = np.array([*(parse(attack)[0] for attack in self.spec.attacks), "repair", ""], dtype=object)
        named = [part_names(attack) for attack in self.spec.attacks]
        named.append(tuple(repair.name for repair in self.repairs))
        parts = {(stage, part): name for stage, names in enumerate(named) for part, name in enumerate(names)}
        places = zip(table.stage.tolist(), table.part.tolist(), strict=True)
        robust = pandas.array(table.robust, dtype="boolean")
        robust[~table.counted] = pandas.NA
        columns: dict[str, Any] = {
            name: table.arrays[name] for name in ("index", "label", "target", "clean_pred", "adv_pred")
        }
        columns |= {"correct": table.correct, "fooled": table.fooled, "robust": robust}
        columns |= {"attack": attacks[table.stage], "part": [parts.get(place, "") for place in places]}
        columns |= {name: table.arrays[name] for name in table.columns() if name not in {*columns, "stage", "marks"}}
        return pandas.DataFrame(columns | {"fragile": (table.marks & Mark.FRAGILE) != 0})

    def per_class(self) -> dict[int, tuple[int, int, int]]:
        """For every label: examples, correct ones, robust ones."""
        table = self.outcomes.take(self.outcomes.counted)
        labels = np.unique(table.label)
        return {
            int(c): (int((m := table.label == c).sum()), int(table.correct[m].sum()), int(table.robust[m].sum()))
            for c in labels
        }


def _options_of(attack: str) -> dict[str, Any]:
    try:
        return parse(attack)[1]
    except InputError:  # a spelling of another version
        return {}
