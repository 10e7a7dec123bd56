"""FAB: the smallest perturbation, by projecting onto the boundary of the linear model, again and again.

After Croce and Hein 2020, "Minimally distorted adversarial examples with a fast adaptive boundary attack", whose
equation numbers are cited. It does not know eps on its way, and it is blind to the scale of the logits.
"""

from __future__ import annotations

__all__ = ["FAB", "onto_plane"]

from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from tmifpe.attacks.ascent import PLAIN_FROM
from tmifpe.attacks.attack import Attack, Budget
from tmifpe.attacks.loop import Loop, Verdicts, blank
from tmifpe.attacks.loop.queries import Queries
from tmifpe.attacks.loop.rows import Problem
from tmifpe.attacks.radius.smallest import size_of
from tmifpe.core import numerics, rng
from tmifpe.core.errors import InputError, shown
from tmifpe.core.numbers import real_number, whole_number
from tmifpe.core.types import Threat
from tmifpe.norms import column

_CONJUGATE = {"linf": 1.0, "l2": 2.0, "l1": torch.inf}
_ULPS = 8


@dataclass(frozen=True)
class FAB(Attack):
    """At every step the projections of the point and of the image onto the boundary of the linear model, and the next
    point between them, a little beyond (`beyond`) and at most `pull` of the way to that of the image (eqs. 8 to 10).
    What is adversarial is noted if it is smaller, and the search goes on from `back` of the way out to it (eq. 12).

    `targets`: the classes with the largest logits. `towards`: `nearest`, at every step the one whose boundary is
    nearest (eq. 7), or `each`, one after another, which is AutoAttack's FAB-T. `restarts`: the first begins at the
    image, the others at random, at half of the smallest size so far, at most eps.
    `smooth`: see `PGD`. `smallest`: without it a row leaves with the first example within eps, enough for a verdict.

    >>> FAB(steps=50, targets=9, towards="each").budget
    Budget(forwards=901, backwards=450)
    """

    steps: int = 100
    restarts: int = 1
    targets: int = 9
    towards: str = "nearest"
    beyond: float = 1.05
    pull: float = 0.1
    back: float = 0.9
    smooth: float = 0.0
    smallest: bool = True

    name: ClassVar[str] = "fab"

    def __post_init__(self) -> None:
        for field in ("steps", "restarts", "targets"):
            object.__setattr__(self, field, whole_number(field, getattr(self, field), most=2**20))
        for field, most in (("beyond", 2), ("pull", 1), ("back", 1)):
            object.__setattr__(self, field, real_number(field, getattr(self, field), above=0, most=most))
        object.__setattr__(self, "smooth", real_number("smooth", self.smooth, least=0, most=100))
        if self.towards not in ("nearest", "each"):
            raise InputError(f"towards must be 'nearest' or 'each', got {shown(self.towards)}")
        if not isinstance(self.smallest, bool):
            raise InputError(f"smallest must be true or false, got {shown(self.smallest)}")

    @property
    def budget(self) -> Budget:
        rounds = self.steps * self.restarts
        slopes = self.targets * rounds
        judged = slopes if self.towards == "each" else rounds
        return Budget(1 + slopes + judged, slopes)

    def check(self, threat: Threat, *, targeted: bool = False, eot: int = 1) -> None:
        super().check(threat, targeted=targeted, eot=eot)
        if threat.norm not in _CONJUGATE:
            raise InputError(f"fab knows linf, l2 and l1, not {shown(threat.norm)}")

    def run(self, problem: Problem, queries: Queries, loop: Loop) -> Verdicts:
        self.check(problem.threat, targeted=problem.targets is not None)
        verdicts = blank(problem)
        done = broken = 0
        for rows in torch.arange(len(problem), device=problem.labels.device).split(loop.batch_size):

            def told(_: int, __: int, done: int = done, broken: int = broken) -> None:
                loop.tick(done, broken)

            found = _Search(self, problem.take(rows), queries, replace(loop, tick=told)).go()
            verdicts.put(rows, found)
            done, broken = done + len(rows), broken + int(found.fooled.sum())
            loop.tick(done, broken)
        return verdicts


class _Search:
    """Some rows in step: their points, and the smallest adversarial example of each so far."""

    def __init__(self, attack: FAB, problem: Problem, queries: Queries, loop: Loop) -> None:
        self.attack, self.problem, self.queries, self.loop = attack, problem, queries, loop
        self.near = problem.eps * (1 + _ULPS * torch.finfo(problem.x.dtype).eps)
        self.found, self.size = problem.x.clone(), torch.full_like(problem.eps, torch.inf)
        self.best = problem.x.clone()
        self.steps = torch.zeros_like(problem.labels)
        self.logits = problem.clean if problem.clean is not None else queries.logits(problem.x)
        if self.logits.shape[1] <= int(problem.labels.max()):
            raise InputError(
                f"class {int(problem.labels.max())} is out of range: the model has {self.logits.shape[1]} classes"
            )
        self.read = self.logits.to(numerics.compute_dtype(self.logits.dtype)).clone()
        """The logits at `best`."""
        self.margin = numerics.margin(self.read, problem.labels, problem.targets)
        rows = torch.arange(len(problem), device=problem.labels.device)
        self._note(rows, problem.x, self.logits)

    def go(self) -> Verdicts:
        order = self._order()
        goals = [order] if self.attack.towards == "nearest" else list(order.split(1, dim=1))
        for number, classes in enumerate(goals):
            for restart in range(self.attack.restarts):
                self._descend(classes, number * self.attack.restarts + restart, restart > 0)
        return self._verdicts()

    def _order(self) -> Tensor:
        """The classes to go towards (n, k): those with the largest logits, or the target."""
        problem = self.problem
        if problem.targets is not None:
            return problem.targets[:, None]
        if self.logits.shape[1] < 2:
            raise InputError("fab needs at least 2 classes, the model has 1; there is no class to aim at")
        order = self.logits.argsort(dim=1, descending=True, stable=True)
        return order[order != problem.labels[:, None]].reshape(len(order), -1)[:, : self.attack.targets]

    def _descend(self, classes: Tensor, number: int, random: bool) -> None:
        problem, attack = self.problem, self.attack
        rows = self._open().nonzero()[:, 0]
        point = self._start(number) if random else self._given()
        for step in range(attack.steps):
            if not len(rows):
                return
            part, here = problem.take(rows), point[rows]
            smooth = attack.smooth * max(0.0, 1 - step / (PLAIN_FROM * attack.steps))
            offset, normal = self._plane(part, here, classes[rows], smooth)
            one, two = (onto_plane(at, normal, offset, part) for at in (here, part.x))  # eq. 8: of point and image
            far, farther = (part.norm.size(way) for way in (one, two))
            share = (far / (far + farther).clamp(min=torch.finfo(far.dtype).tiny)).clamp(max=attack.pull)  # eq. 9
            here = torch.lerp(here + attack.beyond * one, part.x + attack.beyond * two, column(share, here))  # eq. 10
            here = part.ball.boxed(here)
            won = self._note(rows, here, self.queries.logits(here))
            point[rows] = torch.where(column(won, here), torch.lerp(part.x, here, attack.back), here)  # eq. 12
            self.loop.tick(0, 0)
            if not attack.smallest:
                rows = rows[self.size[rows] > self.near[rows]]

    def _open(self) -> Tensor:
        """Rows that are still searched (n,): not those that were misclassified to begin with."""
        return self.size > (0 if self.attack.smallest else self.near)

    def _given(self) -> Tensor:
        """Where the first search begins: at the image, or where the caller says."""
        problem = self.problem
        return problem.x.clone() if problem.start is None else problem.norm.project(problem.start, problem.ball)

    def _start(self, number: int) -> Tensor:
        """A random direction, half as far as the smallest example and eps allow."""
        problem = self.problem
        x, norm = problem.x, problem.norm
        shape = tuple(x.shape[1:])
        if problem.threat.norm == "linf":
            way = 2 * rng.uniform(problem.seed, problem.indices, problem.stage, number, shape).to(x.dtype) - 1
        else:
            way = rng.normal(problem.seed, problem.indices, problem.stage, number, shape).to(x.dtype)
        radius = torch.minimum(self.size, problem.eps).to(x.dtype) / 2
        return problem.ball.boxed(x + way * column(radius / norm.size(way), x))

    def _plane(self, problem: Problem, x: Tensor, classes: Tensor, smooth: float) -> tuple[Tensor, Tensor]:
        """f and w of the boundary f + <w, z − x> = 0 that is nearest by |f| / ‖w‖* (eq. 7), as the offset f − <w, x>
        (n,) and w (n, ...)."""
        order = _CONJUGATE[problem.threat.norm]
        smoothed = torch.full_like(x.flatten(1)[:, 0], smooth) if smooth else None
        nearest = offset = normal = None
        for goal in classes.unbind(dim=1):

            def lead(logits: Tensor, goal: Tensor = goal) -> Tensor:
                picked = logits.gather(1, torch.stack([goal, problem.labels], dim=1))
                return (
                    picked[:, 0] - picked[:, 1]
                    if problem.targets is None
                    else numerics.margin(logits, problem.labels, problem.targets)
                )

            seen = self.queries.look(x, lead, smoothed)
            assert seen.grad is not None  # noqa: S101 - a look has one
            assert seen.value is not None  # noqa: S101 - and a value
            w = torch.nan_to_num(seen.grad, nan=0.0, posinf=0.0, neginf=0.0)
            f = torch.nan_to_num(seen.value.to(w.dtype))
            steep = torch.linalg.vector_norm(w.flatten(1), ord=order, dim=1)
            far = torch.where(steep > 0, f.abs() / torch.where(steep > 0, steep, 1.0), torch.inf)
            b = f - (w * x).flatten(1).sum(dim=1)
            if nearest is None or offset is None or normal is None:
                nearest, offset, normal = far, b, w
                continue
            nearer = far < nearest
            nearest, offset = torch.where(nearer, far, nearest), torch.where(nearer, b, offset)
            normal = torch.where(column(nearer, w), w, normal)
        assert offset is not None  # noqa: S101 - there is a class
        assert normal is not None  # noqa: S101
        return offset, normal

    def _note(self, rows: Tensor, x: Tensor, logits: Tensor) -> Tensor:
        """Keep what is the smallest example so far, or within eps the nearest to one; return who succeeds here."""
        part = self.problem.take(rows)
        z = logits.to(self.read.dtype)
        usable = numerics.is_usable(z)
        won, size = part.succeeded(z.argmax(dim=1)) & usable, size_of(part, x)
        margin = numerics.margin(z, part.labels, part.targets)
        smaller = won & (size < self.size[rows])
        self.found[rows[smaller]], self.size[rows[smaller]] = x[smaller], size[smaller]
        within = size <= self.near[rows]
        better = within & usable & torch.where(won, smaller, (margin > self.margin[rows]) & ~self._broken()[rows])
        self.best[rows[better]], self.read[rows[better]] = x[better], z[better]
        self.margin[rows[better]] = margin[better]
        self.steps[rows] += self.steps.new_ones(len(rows))
        return won

    def _broken(self) -> Tensor:
        return self.size <= self.near

    def _verdicts(self) -> Verdicts:
        problem, verdicts = self.problem, blank(self.problem)
        fooled = self._broken()
        rows = fooled.nonzero()[:, 0]
        if len(rows) and self.loop.verify is not None:
            fooled[rows] = self.loop.verify(self.found[rows], problem.take(rows))
        verdicts.fooled, verdicts.margin = fooled, self.margin.to(verdicts.margin.dtype)
        verdicts.prediction = self.read.argmax(dim=1)
        verdicts.gap = numerics.top_gap(self.read).to(verdicts.gap.dtype)
        verdicts.steps = self.steps - 1
        verdicts.stage = torch.where(fooled, 0, -1)
        verdicts.best = self.best
        strongest = self.loop.mode == "strongest"
        verdicts.adv = torch.where(column(fooled | strongest, problem.x), self.best, problem.x)
        return verdicts


def onto_plane(x: Tensor, normal: Tensor, offset: Tensor, problem: Problem) -> Tensor:
    """The smallest step from each point x in the box to the plane <normal, z> + offset = 0 inside the box; as near to
    the plane as the box allows where they do not meet (eqs. 3 to 5).

    In the direction that rises, every pixel has room up to the box. At linf all go equally far, at l2 in proportion to
    the normal, until their room is used up; at l1 the steepest go first. What a multiple of that gains is piecewise
    linear in the multiple, with a corner wherever a room is used up.
    """
    flat, w = x.flatten(1), normal.flatten(1)
    gap = -((w * flat).sum(dim=1) + offset)  # <w, d> must be this
    sign = torch.where(gap >= 0, 1.0, -1.0).to(w)
    rising = torch.sign(w) * sign[:, None]
    steep, gap = w.abs(), gap.abs()
    room = torch.where(rising > 0, problem.threat.high - flat, flat - problem.threat.low).clamp(min=0)
    room = torch.where(rising == 0, 0.0, room)
    if problem.threat.norm == "l1":
        order = steep.argsort(dim=1, descending=True, stable=True)
        steepest, space = steep.gather(1, order), room.gather(1, order)
        gained = (steepest * space).cumsum(dim=1)
        before = gained - steepest * space
        left = (gap[:, None] - before).clamp(min=0)
        used = torch.minimum(left / torch.where(steepest > 0, steepest, 1.0), space)
        length = torch.zeros_like(room).scatter(1, order, used)
    else:
        rate = torch.ones_like(steep) if problem.threat.norm == "linf" else steep
        corner = torch.where(rate > 0, room / torch.where(rate > 0, rate, 1.0), 0.0)
        corners, order = corner.sort(dim=1, stable=True)
        full = (steep * room).gather(1, order).cumsum(dim=1)  # the gain of the pixels whose room is used up
        pace = (steep * rate).gather(1, order)
        free = (pace.flip(1).cumsum(dim=1).flip(1) - pace).clamp(min=0)  # the pace of those behind them
        gained = full + corners * free
        last = corners.shape[1] - 1
        here = torch.searchsorted(gained.contiguous(), gap[:, None]).clamp(max=last)
        earlier = (here - 1).clamp(min=0)
        first = here == 0
        done = torch.where(first, 0.0, full.gather(1, earlier))
        speed = torch.where(first, pace.sum(dim=1, keepdim=True), free.gather(1, earlier))
        times = torch.where(speed > 0, (gap[:, None] - done) / torch.where(speed > 0, speed, 1.0), torch.inf)
        length = torch.minimum(torch.minimum(times, corners.gather(1, here)) * rate, room)
    return (rising * length).view_as(x)
