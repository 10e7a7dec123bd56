"""Work goes where it pays: a costly attack on the rows that the stages before it have brought near the boundary."""

from __future__ import annotations

__all__ = ["Near"]

from dataclasses import dataclass, replace
from functools import cached_property
from typing import ClassVar

import torch
from torch import Tensor

from tmifpe.attacks.attack import Attack, Budget
from tmifpe.attacks.loop import Loop, blank
from tmifpe.attacks.loop.queries import Queries
from tmifpe.attacks.loop.rows import Problem, Verdicts
from tmifpe.attacks.restarts import side_by_side
from tmifpe.core import numerics
from tmifpe.core.errors import InputError, shown
from tmifpe.core.numbers import real_number
from tmifpe.core.types import Threat
from tmifpe.norms import get_norm


@dataclass(frozen=True)
class Near(Attack):
    """Runs `attack` on the rows whose best margin so far is at most `share` of the clean one below zero.

    The margin that a first attack reaches tells where the next one can succeed: of 839 survivors of PGD on one
    network, all 41 that Square broke were among the 97 with the best margins. The decision is the row's own, so that
    batch, shard and order do not matter. Without a stage before it, all rows are attacked.

    `spread`: only rows that are at most that many times as far from the boundary as the last stage differed from the
    ones before. Where every start ends in the same place, more starts are wasted, however near that place is.
    `go_on` starts at the best point so far instead of where the attack would start. `norm`: only under threats of that
    norm; under others it attacks nothing.

    >>> from tmifpe.attacks import PGD
    >>> Near("pgd(steps=10)", share=0.2).budget
    Budget(forwards=11, backwards=10)
    """

    attack: str | Attack = "pgd"  # kept as its canonical text
    share: float = 0.25
    spread: float | None = None
    go_on: bool = False
    norm: str | None = None

    name: ClassVar[str] = "near"

    def __post_init__(self) -> None:
        from tmifpe.attacks.catalogue import attack_spelling, get_attack  # the catalogue knows this file

        inner = get_attack(self.attack) if isinstance(self.attack, str) else self.attack
        if len(inner.stages) != 1 or isinstance(inner, Near):
            raise InputError(f"near takes one attack, got {shown(self.attack)}; spell one near(...) for each stage")
        object.__setattr__(self, "attack", attack_spelling(inner))
        object.__setattr__(self, "share", real_number("share", self.share, above=0))
        if self.spread is not None:
            object.__setattr__(self, "spread", real_number("spread", self.spread, above=0))
        if not isinstance(self.go_on, bool):
            raise InputError(f"go_on must be true or false, got {shown(self.go_on)}")
        if self.norm is not None:
            get_norm(self.norm)

    @cached_property  # progress asks for its budget at every step
    def inner(self) -> Attack:
        """The attack that it runs."""
        from tmifpe.attacks.catalogue import get_attack

        return get_attack(self.attack) if isinstance(self.attack, str) else self.attack

    @property
    def title(self) -> str:
        return self.inner.title

    @property
    def needs_gradient(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.inner.needs_gradient

    @property
    def costly(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.inner.costly

    @property
    def budget(self) -> Budget:
        return self.inner.budget

    @property
    def together(self) -> int | None:
        return self.inner.together

    def check(self, threat: Threat, *, targeted: bool = False, eot: int = 1) -> None:
        if self.norm in (None, threat.norm):
            self.inner.check(threat, targeted=targeted, eot=eot)

    def run(self, problem: Problem, queries: Queries, loop: Loop) -> Verdicts:
        verdicts = blank(problem)
        near = self._near(problem)
        if not bool(near.any()):
            return verdicts
        rows = near.nonzero()[:, 0]
        start = problem.best if self.go_on else problem.start
        few = replace(problem, start=start).take(rows)
        verdicts.put(rows, side_by_side(self.inner, few, queries, loop))
        return verdicts

    def _near(self, problem: Problem) -> Tensor:
        if self.norm not in (None, problem.threat.norm):
            return torch.zeros_like(problem.labels, dtype=torch.bool)
        if problem.reached is None or problem.clean is None:
            return torch.ones_like(problem.labels, dtype=torch.bool)
        clean = numerics.margin(problem.clean.to(problem.reached.dtype), problem.labels, problem.targets)
        near = problem.reached >= self.share * clean  # both are negative
        if self.spread is None or problem.spread is None:
            return near
        return near & (problem.reached >= -self.spread * problem.spread.to(problem.reached))
