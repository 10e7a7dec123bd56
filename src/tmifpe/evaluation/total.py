"""What the finished shards of a run add up to, and the arithmetic of its progress bar."""

from __future__ import annotations

__all__ = ["Total"]

from collections.abc import Callable, Sequence
from functools import reduce

import numpy as np
import torch
from torch import Tensor

from tmifpe.attacks.loop.queries import StageCost, Tally, added_costs
from tmifpe.run.cut.part import RunPart
from tmifpe.run.outcomes import Mark, Outcomes
from tmifpe.run.shard import ShardFailure, ShardResult
from tmifpe.run.shown.progress import Look, Progress
from tmifpe.run.spec import Plan


class Total:
    """`stages` are the names of the stages of the attack, `budget` the forward passes that an example takes at most."""

    def __init__(
        self,
        plan: Plan,
        keep_adv: bool,
        progress: Callable[[Progress], None],
        stages: Sequence[str] = (),
        budget: int = 0,
    ) -> None:
        self.plan, self.n, self.keep_adv, self.progress = plan, plan.n, keep_adv, progress
        self.stage_names, self.budget = stages, budget
        # What is computed now, in examples and forward passes, and how many examples are still to come.
        self.computed = self.spent = self.waiting = 0
        # One table for all, filled in place: many small arrays that stay would keep the heap from shrinking.
        self.outcomes = Outcomes.blank(plan.n)
        self.outcomes.marks[:] = Mark.LEFT_OUT  # until its shard is there, an example is not counted
        self.adv: dict[int, Tensor] = {}
        self.shards: set[int] = set()
        self.tallies: dict[int, Tally] = {}
        self.thrown_away = Tally()
        """What shards cost that were computed anew."""
        self.failures: list[ShardFailure] = []
        self.done = self.robust = 0
        self.seconds = 0.0
        self.notes: set[str] = set()
        self.staged: dict[int, tuple[StageCost, ...]] = {}

    @property
    def tally(self) -> Tally:
        return sum(self.tallies.values(), self.thrown_away)

    @property
    def stages(self) -> list[StageCost]:
        """Stage by stage; later stages may have had nothing left to attack in a shard."""
        return reduce(added_costs, self.staged.values(), [])

    def missing(self, part: RunPart | None = None) -> list[int]:
        """The shards that are not there yet; of a part of the run, if one is given."""
        every = range(len(self.plan))
        return [shard for shard in (every if part is None else part.of(every)) if shard not in self.shards]

    def rows(self) -> list[int]:
        """The positions of the examples whose shards are there, in order."""
        return [row for shard in sorted(self.shards) for row in self.plan.positions(shard)]

    def found(self) -> Outcomes:
        """The rows of the shards that are there, in order."""
        return self.outcomes.take(np.asarray(self.rows(), dtype=np.int64)) if self.missing() else self.outcomes

    def add(self, shard: ShardResult) -> None:
        self.shards.add(shard.shard)
        self.outcomes.put(self.plan.positions(shard.shard), shard.outcomes)
        self.seconds += shard.seconds
        self.notes |= shard.notes
        self.tallies[shard.shard], self.staged[shard.shard] = shard.tally, shard.stages
        self.done += len(shard.outcomes)
        self.computed += len(shard.outcomes)
        self.spent += shard.tally.forwards
        self.waiting = max(0, self.waiting - len(shard.outcomes))
        self.robust += int(shard.outcomes.robust.sum())
        if self.keep_adv and shard.adv is not None:
            self.adv[shard.shard] = shard.adv.cpu()
        self.show()

    def exits(self) -> tuple[int, int]:
        """How many examples would have stopped early but were checked, and of how many that was wrong."""
        return self.outcomes.marked(Mark.EXIT_CHECKED), self.outcomes.marked(Mark.EXIT_WRONG)

    def stopped_early(self) -> list[int]:
        """The shards with examples that stopped early."""
        stopped = (self.outcomes.marks & Mark.STOPPED_EARLY) != 0
        return [shard for shard in sorted(self.shards) if stopped[self._rows(shard)].any()]

    def discard(self, shards: Sequence[int]) -> None:
        """Forget the outcomes of these shards, which are computed anew."""
        for shard in shards:
            rows = self._rows(shard)
            count = rows.stop - rows.start
            self.done, self.robust = self.done - count, self.robust - int(self.outcomes.robust[rows].sum())
            self.outcomes.put(self.plan.positions(shard), Outcomes.blank(count))
            self.outcomes.marks[rows] = Mark.LEFT_OUT
            self.adv.pop(shard, None)
            self.shards.discard(shard)
            del self.tallies[shard], self.staged[shard]

    def _rows(self, shard: int) -> slice:
        positions = self.plan.positions(shard)
        return slice(positions.start, positions.stop)

    def expect(self, shards: Sequence[int]) -> None:
        """These are to be computed; what was added before came from a store."""
        self.computed = self.spent = 0
        self.waiting = sum(len(self.plan.positions(shard)) for shard in shards)

    def show(self, stage: str = "") -> None:
        """Tell how far the run has come."""
        self.tick(Look(), stage)

    def tick(self, look: Look, stage: str | None = None) -> None:
        """The same with the shards in work."""
        each = self.spent / self.computed if self.computed else self.budget
        self.progress(
            Progress(
                self.n,
                self.done + look.done,
                self.robust + look.done - look.wrong,
                self.done - self.robust + look.wrong,
                self._named(look.stage) if stage is None else stage,
                self.spent + look.steps,
                look.left + round(each * max(0, self.waiting - look.size)),
            )
        )

    def _named(self, stage: int) -> str:
        count = len(self.stage_names)
        if stage >= count:
            return "certificates" if count else ""
        name = self.stage_names[stage]
        return f"stage {stage + 1} of {count}: {name}" if count > 1 else name

    def joined_adv(self) -> Tensor | None:
        return torch.cat([self.adv[shard] for shard in sorted(self.adv)]) if self.adv else None
