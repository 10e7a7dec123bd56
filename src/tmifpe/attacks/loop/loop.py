"""The one loop that every attack runs in.

An evaluation needs a verdict per example, so in `verdict` mode an example leaves as soon as it is broken and the
next one waiting takes its place: the batch stays full until the queue is empty. Every row counts its own steps.
It also stops, predicted robust, where the linear model says that it cannot get there (`EarlyExit`).
In `strongest` mode every example takes all its steps and the point with the largest margin is kept.
One forward and one backward per step; the test of success reuses the forward.
"""

from __future__ import annotations

__all__ = ["Loop", "State", "Steps", "Verdicts", "blank", "run_loop"]

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar, Protocol

import torch
from torch import Tensor

from tmifpe.attacks.loop.early_exit import EarlyExit, Exit
from tmifpe.attacks.loop.parts import FEWEST, PartedQueries, run_parts
from tmifpe.attacks.loop.queries import Evaluated, Objective, Queries
from tmifpe.attacks.loop.rows import Problem, Verdicts
from tmifpe.attacks.loop.seats import Seat, Slots, blank, gap_of
from tmifpe.core import numerics
from tmifpe.core.errors import InputError
from tmifpe.core.numbers import whole_number


class State(Protocol):
    """What an attack remembers per row. A dataclass of `Rows`; the loop reads these two."""

    x: Tensor
    looks: Tensor


class Steps(Protocol):
    """What the loop needs from an attack; `tmifpe.attacks.stepwise.Stepwise` is the class to inherit from."""

    reads_clean: ClassVar[bool]
    needs_gradient: ClassVar[bool]

    @property
    def looks(self) -> int:
        """Looks at the model per example, the last of which only judges."""
        ...

    def init(self, problem: Problem) -> Any: ...

    def objective(self, problem: Problem, state: Any) -> Objective: ...

    def smoothness(self, state: Any) -> Tensor | None: ...

    def inside(self, problem: Problem, state: Any) -> Tensor | None: ...

    @property
    def may_stop_early(self) -> bool: ...

    def gain(self, problem: Problem, state: Any, grad: Tensor) -> Tensor: ...

    def step(self, problem: Problem, state: Any, evaluated: Evaluated) -> Any: ...


@dataclass(frozen=True)
class Loop:
    """How to run: rows per batch, the mode, who checks a claimed success, and who is told of progress."""

    batch_size: int = 256
    mode: str = "verdict"
    verify: Callable[[Tensor, Problem], Tensor] | None = None
    """From claimed adversarial examples to a mask of those that hold in a fresh forward pass."""
    tick: Callable[[int, int], None] = lambda done, broken: None
    """Called once per look with examples done and broken so far; raises to stop."""
    early_exit: EarlyExit | None = None
    """Which rows stop before their last step because they cannot get to the boundary, in `verdict` mode."""

    def __post_init__(self) -> None:
        if self.mode not in ("verdict", "strongest"):
            raise InputError(f"mode must be 'verdict' or 'strongest', got {self.mode!r}")
        object.__setattr__(self, "batch_size", whole_number("batch_size", self.batch_size))


class _Run:
    """The state of one run of the loop: the rows in the batch, those waiting, and those with a claim to verify."""

    def __init__(self, attack: Steps, problem: Problem, queries: Queries, loop: Loop, rest: Seat | None = None) -> None:
        self.attack, self.problem, self.queries, self.loop = attack, problem, queries, loop
        self.next = 0 if rest is None else len(problem)
        self.early_exit = loop.early_exit if loop.mode == "verdict" and attack.may_stop_early else None
        self.late = math.ceil(0.9 * (attack.looks - 1))
        self.highest = _highest(problem)
        self.claims: list[Seat] = []
        self.seen = problem.x  # the points of the last look
        self.verdicts = blank(problem)
        self.done = self.broken = 0
        self.waiting = self._open(loop.batch_size) if rest is None else rest
        self.batch = self._admit(loop.batch_size)

    def go(self) -> Verdicts:
        while len(self.batch) or self.claims or len(self.waiting):
            if not len(self.batch):
                self.batch = self._admit(self.loop.batch_size)
            if len(self.batch):
                self._look()
            pending = sum(len(claim) for claim in self.claims)
            if pending and (pending >= self.loop.batch_size or not len(self.batch)):
                self._settle()
            self.loop.tick(self.done, self.broken)
        return self.verdicts

    def rest(self) -> Seat:
        """All rows that have no verdict yet, where the loop was stopped at a tick."""
        self._keep(self.batch.slots.fresh)
        self.batch.slots.fresh = torch.zeros_like(self.batch.slots.fresh)
        if self.claims:
            self._settle()
        rows = self.batch
        for more in (self.waiting, self._open(len(self.problem))):
            if len(more):
                rows = rows.join(more) if len(rows) else more
        return rows

    def _admit(self, count: int) -> Seat:
        """The next examples, at most `count`, ready for their first look."""
        if len(self.waiting) < count and self.next < len(self.problem):
            # Many at once: opening one row costs about as much as opening thirty.
            more = self._open(max(count, self.loop.batch_size // 4))
            self.waiting = self.waiting.join(more) if len(self.waiting) else more
        admitted, self.waiting = self.waiting.split(count)
        return admitted

    def _open(self, count: int) -> Seat:
        end = min(self.next + count, len(self.problem))
        position = torch.arange(self.next, end, device=self.problem.labels.device)
        self.next = end
        problem = self.problem.take(position)
        return Seat(problem, self.attack.init(problem), Slots.open(problem, position))

    def _look(self) -> None:
        """One query for the whole batch: judge every row, step every row, and release those that are finished."""
        problem, state = self.batch.problem, self.batch.state
        last = state.looks >= self.attack.looks - 1
        if bool(last.all()):
            evaluated = Evaluated(self._fitting(self.queries.logits(state.x)))
        else:
            objective = self.attack.objective(problem, state)
            evaluated = self._ask(state, lambda logits: objective(self._fitting(logits)), last)
        won = self._judge(evaluated.logits)
        if self.early_exit is not None:
            last = last | self._stopping(self.early_exit, evaluated, last)
        through = last | won if self.loop.mode == "verdict" else last
        self.batch.state = self.attack.step(problem, state, evaluated)
        if bool(through.any()):
            self._release(through, won, last)

    def _stopping(self, rule: EarlyExit, evaluated: Evaluated, last: Tensor) -> Tensor:
        """Rows that stop here, predicted robust (n,); those that go on as a check are only noted."""
        stopping, slots, attack = torch.zeros_like(last), self.batch.slots, self.attack
        rows = (rule.due(self.batch.state.looks) & ~last & (slots.exit == Exit.NONE)).nonzero()[:, 0]
        if evaluated.grad is None or not len(rows):
            return stopping
        problem, state = self.batch.problem.take(rows), self.batch.state.take(rows)
        objective, notes = attack.objective(problem, state), set(self.queries.notes)
        # What a smoothed gradient promises, the model need not keep; what the true one does not, a waking unit may.
        plain = attack.smoothness(self.batch.state) is None
        true = evaluated.take(rows) if plain else self.queries.look(state.x, objective)
        smooth = self.queries.look(state.x, objective, torch.full_like(true.logits[:, 0], rule.smooth))
        self.queries.notes.intersection_update(notes)  # that a network without rectifiers has none is no news here
        assert true.grad is not None  # noqa: S101 - a look has one
        assert smooth.grad is not None  # noqa: S101
        gain = torch.maximum(attack.gain(problem, state, true.grad), attack.gain(problem, state, smooth.grad))
        robust, checked = rule.robust(problem, true, gain), rule.checks(problem)
        done = torch.where(checked, Exit.CHECKED, Exit.STOPPED)
        slots.exit.index_copy_(0, rows, torch.where(robust, done, Exit.NONE))
        return stopping.index_copy_(0, rows, robust & ~checked)

    def _ask(self, state: State, objective: Objective, last: Tensor) -> Evaluated:
        if not self.attack.needs_gradient:
            return self.queries.judge(state.x, objective)
        smooth = self.attack.smoothness(state)
        evaluated = self.queries.look(state.x, objective, smooth)
        # What is said of zero gradients is said of the plain ones.
        plain = ~last if smooth is None else ~last & (smooth <= 0)
        slots = self.batch.slots
        slots.plain += plain
        if evaluated.grad is not None and (zero := numerics.zero_rows(evaluated.grad)) is not None:
            slots.zero_grad += zero & plain
        return evaluated

    def _fitting(self, logits: Tensor) -> Tensor:
        """The logits, if they have a column for every class that is named."""
        if logits.shape[1] <= self.highest:
            raise InputError(f"class {self.highest} is out of range: the model has {logits.shape[1]} classes")
        return logits

    def _judge(self, logits: Tensor) -> Tensor:
        """Note the margin of every row and whether it is its best; return who succeeds at this point."""
        problem, state, slots = self.batch.problem, self.batch.state, self.batch.slots
        logits = logits.to(slots.margin.dtype)
        usable = numerics.is_usable(logits)
        prediction = logits.argmax(dim=1)
        margin = numerics.margin(logits, problem.labels, problem.targets)
        inside = self.attack.inside(problem, state)
        better, won = margin > slots.margin, problem.succeeded(prediction)
        if inside is not None:
            better, won = better & inside, won & inside
        if not bool(usable.all()):
            better, won = better & usable, won & usable
            slots.unusable += ~usable
        slots.margin = torch.where(better, margin, slots.margin)
        slots.early = torch.where(state.looks < self.late, slots.margin, slots.early)
        slots.prediction = torch.where(better, prediction, slots.prediction)
        self._keep(slots.fresh > better)  # fresh, and not better
        slots.fresh, self.seen = better, state.x
        if problem.targets is not None or bool(won.any()):
            slots.gap = torch.where(better, numerics.top_gap(logits), slots.gap)
        return won

    def _keep(self, mask: Tensor) -> None:
        """Copy the points of the last look to where the best ones are kept."""
        if bool(mask.any()):
            rows = mask.nonzero()[:, 0]
            self.batch.slots.best.index_copy_(0, rows, self.seen.index_select(0, rows))

    def _release(self, through: Tensor, won: Tensor, last: Tensor) -> None:
        """Finished rows leave, as a claim or with their verdict, and others take their places."""
        slots = self.batch.slots
        if self.loop.mode == "strongest":
            won = self.batch.problem.succeeded(slots.prediction)
            self._keep(through & slots.fresh)
        else:
            # What is claimed is the point of this look, even if one that was refused before had a larger margin.
            self._keep(through & (slots.fresh | won))
        slots.fresh = slots.fresh & ~through
        for mask, settle in ((through & won, self._claim), (through & last & ~won, self._record_robust)):
            if bool(mask.any()):
                settle(self.batch.take(mask.nonzero()[:, 0]))
        free = through.nonzero()[:, 0]
        joining = self._admit(len(free))
        taken = len(joining)
        if taken:
            self.batch.put(free[:taken], joining)
        if taken < len(free):
            self._close(free[taken:])

    def _close(self, empty: Tensor) -> None:
        """The queue is empty: the last rows move into these seats, so that few rows are copied, not all."""
        left = len(self.batch) - len(empty)
        stay = torch.ones(len(self.batch), dtype=torch.bool, device=empty.device)
        stay[empty] = False
        moving = stay[left:].nonzero()[:, 0] + left
        # `seen` does not move with them, so that what is still to be copied from it is copied now.
        late = torch.zeros_like(stay).index_fill_(0, moving, True) & self.batch.slots.fresh
        self._keep(late)
        self.batch.slots.fresh &= ~late
        self.batch.put(empty[empty < left], self.batch.take(moving))
        self.batch, _ = self.batch.split(left)

    def _claim(self, seat: Seat) -> None:
        if self.loop.verify is None:
            self._record(seat, True)
        else:
            self.claims.append(seat)

    def _settle(self) -> None:
        """Verify all claims; a row whose claim fails goes back for its remaining steps."""
        seat = self.claims[0]
        for claim in self.claims[1:]:
            seat = seat.join(claim)
        self.claims = []
        assert self.loop.verify is not None  # noqa: S101 - claims exist only if there is a verifier
        holds = self.loop.verify(seat.slots.best, seat.problem)
        spent = seat.state.looks >= self.attack.looks
        for mask, settle in ((holds, self._record_fooled), (~holds & spent, self._record_robust)):
            if bool(mask.any()):
                settle(seat.take(mask.nonzero()[:, 0]))
        back = ~holds & ~spent
        if bool(back.any()):
            again = seat.take(back.nonzero()[:, 0])
            # Their seats have been taken: some sit down where the batch has room, the others go before all who wait.
            now, later = again.split(max(0, self.loop.batch_size - len(self.batch)))
            self.batch = self.batch.join(now) if len(self.batch) else now
            self.waiting = later.join(self.waiting) if len(self.waiting) else later

    def _record_fooled(self, seat: Seat) -> None:
        self._record(seat, True)

    def _record_robust(self, seat: Seat) -> None:
        self._record(seat, False)

    def _record(self, seat: Seat, fooled: bool) -> None:
        slots = seat.slots
        outcome = torch.full_like(slots.position, int(fooled), dtype=torch.bool)
        verdicts = Verdicts(
            outcome,
            slots.prediction,
            slots.margin,
            # A claim has taken the step after its look already, so the look that broke it is one earlier.
            steps=seat.state.looks - 1,
            unusable=slots.unusable,
            plain=slots.plain,
            zero_grad=slots.zero_grad,
            # Infinite if no earlier look could be used: everything was gained late.
            rise=slots.margin - slots.early,
            gap=gap_of(seat),
            stage=torch.full_like(slots.position, 0 if fooled else -1),
            exit=_contradicted(slots.exit) if fooled else slots.exit,
            adv=slots.best if fooled or self.loop.mode == "strongest" else seat.problem.x,
            best=slots.best,
        )
        self.verdicts.put(slots.position, verdicts)
        self.done += len(seat)
        self.broken += len(seat) * fooled


def run_loop(attack: Steps, problem: Problem, queries: Queries, loop: Loop) -> Verdicts:
    """Run `attack` on every example of `problem` and return a verdict for each, in the same order."""
    if attack.reads_clean and problem.clean is None:
        clean = torch.cat([queries.logits(part) for part in problem.x.split(loop.batch_size)])
        problem = replace(problem, clean=clean)
    # The loop moves all that a row has, so what earlier stages found stays behind.
    problem = replace(problem, reached=None, spread=None, best=None)
    if isinstance(queries, PartedQueries) and len(problem) >= FEWEST * len(queries.copies):
        return run_parts(partial(_Run, attack), problem, queries, loop)
    return _Run(attack, problem, queries, loop).go()


def _contradicted(exits: Tensor) -> Tensor:
    """Of rows that were broken: a check that came out against the prediction."""
    return torch.where(exits == Exit.CHECKED, Exit.WRONG, exits)


def _highest(problem: Problem) -> int:
    """The largest class that is named, -1 of no examples."""
    named = torch.cat([problem.labels] + ([] if problem.targets is None else [problem.targets]))
    return int(named.max()) if len(named) else -1
