"""Coming down a ladder of balls: another attack in a larger ball first, and on from its best points in smaller ones."""

from __future__ import annotations

__all__ = ["Outside"]

from dataclasses import dataclass, replace
from functools import cached_property
from typing import ClassVar

import torch

from tmifpe.attacks.ascent import Ascent
from tmifpe.attacks.attack import Attack, Budget
from tmifpe.attacks.loop import Loop
from tmifpe.attacks.loop.queries import Queries
from tmifpe.attacks.loop.rows import Problem, Verdicts
from tmifpe.core.errors import InputError, shown
from tmifpe.core.numbers import whole_number
from tmifpe.core.types import Threat


@dataclass(frozen=True)
class Outside(Attack):
    """Runs `attack` in balls of `widest`, ..., 2 and 1 times eps, each time from the best point of the ball before.

    At L1 a step changes few pixels, and which ones is settled early; a larger ball has room for others. AutoAttack's
    Auto-PGD does so at L1 (Croce and Hein 2021). Only what is found in the last ball counts.

    `last`: the steps in that ball; 0 for as many as in the others. `restarts`: how often all of it, each time from
    another start.

    >>> Outside("pgd(steps=10)", widest=3).budget
    Budget(forwards=33, backwards=30)
    """

    attack: str | Attack = "apgd(loss=ce,steps=33)"  # kept as its canonical text
    widest: int = 3
    last: int = 0
    restarts: int = 1

    name: ClassVar[str] = "outside"

    def __post_init__(self) -> None:
        from tmifpe.attacks.catalogue import attack_spelling, get_attack  # the catalogue knows this file

        inner = get_attack(self.attack) if isinstance(self.attack, str) else self.attack
        if not isinstance(inner, Ascent):
            raise InputError(f"outside takes an attack that can start anywhere, pgd or apgd, got {shown(self.attack)}")
        object.__setattr__(self, "attack", attack_spelling(inner))
        object.__setattr__(self, "widest", whole_number("widest", self.widest, most=100))
        object.__setattr__(self, "last", whole_number("last", self.last, least=0))
        object.__setattr__(self, "restarts", whole_number("restarts", self.restarts, most=1000))

    @cached_property  # progress asks for its budget at every step
    def inner(self) -> Ascent:
        """The attack that it runs."""
        from tmifpe.attacks.catalogue import get_attack

        made = get_attack(self.attack) if isinstance(self.attack, str) else self.attack
        assert isinstance(made, Ascent)  # noqa: S101 - seen above
        return made

    @cached_property
    def end(self) -> Ascent:
        """The attack in the last ball."""
        return replace(self.inner, steps=self.last) if self.last else self.inner  # pyright: ignore[reportArgumentType]

    @property
    def budget(self) -> Budget:
        wide, end = self.inner.budget, self.end.budget
        rungs = self.widest - 1
        each = (rungs * wide.forwards + end.forwards, rungs * wide.backwards + end.backwards)
        return Budget(self.restarts * each[0], self.restarts * each[1])

    def check(self, threat: Threat, *, targeted: bool = False, eot: int = 1) -> None:
        self.inner.check(threat, targeted=targeted, eot=eot)

    def run(self, problem: Problem, queries: Queries, loop: Loop) -> Verdicts:
        total = self._down(problem, 0, queries, loop)
        for restart in range(1, self.restarts):
            rows = (~total.fooled | (loop.mode == "strongest")).nonzero()[:, 0]
            if not len(rows):
                break
            before, found = total.take(rows), self._down(problem.take(rows), restart, queries, loop)
            total.put(rows, before.followed_by(found, found.fooled & ~before.fooled | (found.margin > before.margin)))
        return total

    def _down(self, problem: Problem, restart: int, queries: Queries, loop: Loop) -> Verdicts:
        # In a larger ball nothing is decided: every row takes all its steps, and none is done.
        wide = replace(loop, mode="strongest", verify=None, tick=lambda *_: loop.tick(0, 0))
        found = None
        for times in range(self.widest, 0, -1):
            rung = problem.at(times * problem.eps)
            if found is not None:
                rung = replace(rung, start=found.best)
            elif restart:
                rung = replace(rung, start=self.inner.start(rung, restart))
            last = times == 1
            now = (self.end if last else self.inner).run(rung, queries, loop if last else wide)
            # The later verdicts, with the looks of both.
            found = now if found is None else found.followed_by(now, torch.ones_like(now.fooled))
        assert found is not None  # noqa: S101 - there is a last ball
        return found
