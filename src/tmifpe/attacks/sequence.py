"""Several attacks one after another, each on the survivors of those before it: an attack like any other."""

from __future__ import annotations

__all__ = ["Sequence", "as_attack", "fitting"]

import time
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import ClassVar

import torch

from tmifpe.attacks.attack import Attack, Budget
from tmifpe.attacks.loop import Loop, Verdicts
from tmifpe.attacks.loop.early_exit import EarlyExit, Exit
from tmifpe.attacks.loop.queries import Queries, StageCost
from tmifpe.attacks.loop.rows import Problem
from tmifpe.attacks.near import Near
from tmifpe.core.errors import InputError, shown
from tmifpe.core.types import Threat


@dataclass(frozen=True)
class Sequence(Attack):
    """Runs its stages in order; an example that is broken is never attacked again. Spelled `pgd(loss=ce)+gama`.

    >>> from tmifpe.attacks import PGD, GAMA
    >>> Sequence((PGD(steps=10), GAMA(steps=20))).budget
    Budget(forwards=33, backwards=30)
    """

    attacks: tuple[Attack, ...]

    name: ClassVar[str] = "sequence"

    def __post_init__(self) -> None:
        flat = tuple(stage for attack in self.attacks for stage in attack.stages)
        if not flat:
            raise InputError("a sequence needs at least one attack")
        object.__setattr__(self, "attacks", flat)

    @property
    def stages(self) -> tuple[Attack, ...]:
        return self.attacks

    @property
    def needs_gradient(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        return any(stage.needs_gradient for stage in self.attacks)

    @property
    def costly(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        return any(stage.costly for stage in self.attacks)

    @property
    def together(self) -> int | None:
        sizes = [stage.together for stage in self.attacks if stage.together is not None]
        return min(sizes) if sizes else None

    @property
    def budget(self) -> Budget:
        spent = [stage.budget for stage in self.attacks]
        return Budget(sum(one.forwards for one in spent), sum(one.backwards for one in spent))

    def check(self, threat: Threat, *, targeted: bool = False, eot: int = 1) -> None:
        for stage in self.attacks:
            stage.check(threat, targeted=targeted, eot=eot)

    def run(self, problem: Problem, queries: Queries, loop: Loop) -> Verdicts:
        total: Verdicts | None = None
        spread = torch.full_like(problem.eps, torch.inf)
        rows = torch.arange(len(problem), device=problem.labels.device)
        for number, stage in enumerate(self.attacks):
            if not len(rows):
                break
            part = problem.take(rows)
            part.stage = problem.stage + number
            if number:
                part.start = None  # a given start is where the first stage goes on
            if total is not None:
                part.reached, part.spread, part.best = total.margin[rows], spread[rows], total.best[rows]
            broken, last = len(problem) - len(rows), number == len(self.attacks) - 1

            def told(done: int, more: int, last: bool = last, broken: int = broken) -> None:
                loop.tick(broken + (done if last else more), broken + more)

            near = isinstance(stage, Near)
            early_exit = None if near else self._early_exit(loop.early_exit, number)
            found = _counted(stage, part, queries, replace(loop, tick=told, early_exit=early_exit))
            found.stage = torch.where(found.fooled, number, -1)
            if total is None:
                total = found
            else:
                apart = (found.margin - total.margin[rows]).abs().to(spread)
                spread[rows] = torch.where(found.margin > -torch.inf, apart, spread[rows])
                before = total.take(rows)
                if near:  # had it stopped, it would not have come so near
                    before.exit[found.fooled & (before.exit == Exit.CHECKED)] = Exit.WRONG
                total.put(rows, before.followed_by(found, found.fooled | (found.margin > before.margin)))
            rows = rows[~found.fooled]
        assert total is not None  # noqa: S101 - there is at least one stage, and a problem has rows
        return total

    def _early_exit(self, rule: EarlyExit | None, number: int) -> EarlyExit | None:
        """For the stage of that number: what a later one would attack for being near must get the chance to be."""
        later = [stage.share for stage in self.attacks[number + 1 :] if isinstance(stage, Near)]
        return replace(rule, level=max(rule.level, *later)) if rule is not None and later else rule


def as_attack(attacks: Iterable[Attack]) -> Attack:
    """One attack as it is, several as a sequence."""
    several = tuple(attacks)
    for attack in several:
        if not isinstance(attack, Attack):
            raise InputError(f"an attack must be a name or, say, PGD(steps=100), got {shown(attack)}")
    return several[0] if len(several) == 1 else Sequence(several)


def fitting(attack: Attack, threat: Threat, *, targeted: bool, eot: int) -> tuple[Attack, tuple[str, ...]]:
    """The attack without the stages that cannot do this, and a sentence on each; `InputError` if none can."""
    able: list[Attack] = []
    refused: list[tuple[Attack, InputError]] = []
    for stage in attack.stages:
        try:
            stage.check(threat, targeted=targeted, eot=eot)
            able.append(stage)
        except InputError as error:
            refused.append((stage, error))
    if not able:
        raise refused[0][1]
    notes = tuple(f"stage {stage.title} was skipped: {error}" for stage, error in refused)
    return (as_attack(able), notes) if refused else (attack, ())


def _counted(stage: Attack, problem: Problem, queries: Queries, loop: Loop) -> Verdicts:
    """The verdicts of one stage; what it cost is noted with the queries."""
    before, began = replace(queries.tally), time.perf_counter()
    found = stage.run(problem, queries, loop)
    asked = queries.tally
    queries.stages.append(
        StageCost(
            int((found.fooled | (found.margin > -torch.inf)).sum()),  # a row that a stage leaves out has no margin
            int(found.fooled.sum()),
            asked.forwards - before.forwards,
            asked.backwards - before.backwards,
            time.perf_counter() - began,
        )
    )
    return found
