"""A bracket around the smallest perturbation of every example: the largest radius that it withstood, and the smallest
at which there is a verified adversarial example. Every radius at once, for curves."""

from __future__ import annotations

__all__ = ["Bracket"]

from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from tmifpe.attacks.attack import Attack, Budget
from tmifpe.attacks.loop import Loop, Verdicts
from tmifpe.attacks.loop.queries import Queries
from tmifpe.attacks.loop.rows import Problem
from tmifpe.attacks.multi_targeted import MultiTargeted
from tmifpe.attacks.pgd import PGD
from tmifpe.attacks.radius.fmn import FMN
from tmifpe.attacks.radius.smallest import size_of
from tmifpe.core.numbers import real_number, whole_number
from tmifpe.losses import AnyLoss, get_loss, spelling


@dataclass(frozen=True)
class Bracket(Attack):
    """Comes down from eps with `descend` steps of `fmn` on each of two losses, which find different examples.

    Then it tries radii below what was found, with `probe` steps of `pgd` that go on from there and as many towards the
    two nearest classes, until one that is at most `resolution` (in units of eps) smaller withstands.

    What breaks below lowers the bracket, and the next try is twice as bold; what withstands raises it, and the next try
    is half-way. Every row is at its own radius and stops by itself, at the latest after `rounds` tries.

    >>> Bracket(descend=100, probe=20, rounds=1).budget
    Budget(forwards=307, backwards=301)
    """

    loss: AnyLoss = "tmifpe"  # kept as its canonical text, like the second
    second: AnyLoss = "cw"
    resolution: float = 1 / 256
    descend: int = 100
    probe: int = 20
    rounds: int = 12
    smooth: float = 3.0

    name: ClassVar[str] = "bracket"
    every_radius: ClassVar[bool] = True

    def __post_init__(self) -> None:
        for field in ("descend", "probe", "rounds"):
            object.__setattr__(self, field, whole_number(field, getattr(self, field), most=2**20))
        object.__setattr__(self, "resolution", real_number("resolution", self.resolution, above=0, most=1))
        object.__setattr__(self, "smooth", real_number("smooth", self.smooth, least=0, most=100))
        for field in ("loss", "second"):
            object.__setattr__(self, field, spelling(get_loss(getattr(self, field))))

    @property
    def _at(self) -> PGD:
        """For what did not break on the way down: an attack at eps itself, from a random start."""
        return PGD(self.loss, 2 * self.probe, smooth=self.smooth)

    @property
    def _below(self) -> PGD:
        return PGD(self.loss, self.probe, smooth=self.smooth / 3, step_size=0.25)

    @property
    def _towards(self) -> MultiTargeted:
        """For what is to be called withstood: the two nearest classes, which an untargeted loss may never try."""
        return MultiTargeted(self.loss, targets=2, steps=max(1, self.probe // 2), smooth=self.smooth)

    @property
    def budget(self) -> Budget:
        each = [self._below.budget, self._towards.budget]
        above = FMN(self.loss, self.descend).budget
        spent = [above, above, self._at.budget, *each * self.rounds]
        return Budget(sum(one.forwards for one in spent), sum(one.backwards for one in spent))

    def run(self, problem: Problem, queries: Queries, loop: Loop) -> Verdicts:
        done = broken = 0
        inner = Loop(loop.batch_size, "verdict", loop.verify, lambda *_: loop.tick(done, broken))
        if problem.targets is None:
            problem = self._towards.ranked(problem, queries, inner)
        verdicts = self._descend(self.loss, problem, queries, inner)
        other = self._descend(self.second, problem, queries, inner)
        smaller = other.fooled & (~verdicts.fooled | (_size(problem, other) < _size(problem, verdicts)))
        verdicts = verdicts.followed_by(other, smaller)
        self._try(self._at, ~verdicts.fooled, problem, verdicts, queries, inner)
        fooled = verdicts.fooled
        width = self.resolution * problem.eps
        high = torch.where(fooled, _size(problem, verdicts), torch.inf)
        low = torch.where(fooled, 0.0, problem.eps)
        stride = width.clone()
        for _ in range(self.rounds):
            wide = fooled & (high - low > width * (1 + 1e-9))
            # What is broken and not yet bracketed is not done, and must not count as broken before it is.
            done, broken = int((~wide).sum()), int((fooled & ~wide).sum())
            if done == len(problem):
                break
            tried = torch.where(wide, (high - stride).clamp(min=0), problem.eps)
            nearer = replace(problem.at(tried), start=verdicts.best)
            lower = self._try(self._below, wide, nearer, verdicts, queries, inner)
            if problem.targets is None:
                final = wide & ~lower & (high - tried <= width * (1 + 1e-9))
                lower |= self._try(self._towards, final, nearer, verdicts, queries, inner)
            high = torch.where(lower, _size(problem, verdicts), high)
            low = torch.where(wide & ~lower, torch.maximum(low, tried), low)
            half = (high - low) / 2
            stride = torch.where(lower, torch.minimum(2 * stride, half), half).maximum(width)
        verdicts.broken_at, verdicts.withstood = high, low
        return verdicts

    def _descend(self, loss: AnyLoss, problem: Problem, queries: Queries, loop: Loop) -> Verdicts:
        return FMN(loss, self.descend, smooth=self.smooth).run(problem, queries, loop)

    def _try(
        self, attack: Attack, wanted: Tensor, problem: Problem, verdicts: Verdicts, queries: Queries, loop: Loop
    ) -> Tensor:
        """Attack the wanted rows; what it breaks replaces what is there. Returns which rows those are."""
        rows = wanted.nonzero()[:, 0]
        lower = torch.zeros_like(wanted)
        if not len(rows):
            return lower
        before, found = verdicts.take(rows), attack.run(problem.take(rows), queries, loop)
        better = found.fooled | (~before.fooled & (found.margin > before.margin))
        verdicts.put(rows, before.followed_by(found, better))
        lower[rows] = found.fooled
        return lower


def _size(problem: Problem, verdicts: Verdicts) -> Tensor:
    return size_of(problem, verdicts.best)
