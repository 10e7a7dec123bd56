"""What the finished shards of a run add up to, and the arithmetic of its progress bar."""

from __future__ import annotations

__all__ = ["Total"]

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from tmifpe.attacks.loop.queries import StageCost, Tally, added_costs
from tmifpe.run.cut.part import RunPart
from tmifpe.run.outcomes import Mark, Outcomes
from tmifpe.run.result import Progress
from tmifpe.run.shard import ShardFailure, ShardResult
from tmifpe.run.spec import Plan


class Total:
    def __init__(self, plan: Plan, keep_adv: bool, progress: Callable[[Progress], None]) -> None:
        self.plan, self.n, self.keep_adv, self.progress = plan, plan.n, keep_adv, progress
        # One table for all, filled in place: many small arrays that stay would keep the heap from shrinking.
        self.outcomes = Outcomes.blank(plan.n)
        self.outcomes.marks[:] = Mark.LEFT_OUT  # until its shard is there, an example is not counted
        self.adv: dict[int, Tensor] = {}
        self.shards: set[int] = set()
        self.failures: list[ShardFailure] = []
        self.tally = Tally()
        self.done = self.robust = 0
        self.seconds = 0.0
        self.notes: set[str] = set()
        self.stages: list[StageCost] | None = []
        """None as soon as a shard does not tell: 0.1.0 did not."""

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
        self.tally = self.tally + shard.tally
        self.stages = _added(self.stages, shard)
        self.done += len(shard.outcomes)
        self.robust += int(shard.outcomes.robust.sum())
        if self.keep_adv and shard.adv is not None:
            self.adv[shard.shard] = shard.adv.cpu()
        self.show()

    def show(self) -> None:
        """Tell how far the run has come."""
        self.progress(Progress(self.n, self.done, self.robust, self.done - self.robust))

    def tick(self, done: int, wrong: int) -> None:
        """Within a shard: `done` of its examples have a verdict, `wrong` of them are misclassified or broken."""
        robust = self.robust + done - wrong
        self.progress(Progress(self.n, self.done + done, robust, self.done - self.robust + wrong))

    def joined_adv(self) -> Tensor | None:
        return torch.cat([self.adv[shard] for shard in sorted(self.adv)]) if self.adv else None


def _added(stages: list[StageCost] | None, shard: ShardResult) -> list[StageCost] | None:
    """The costs so far with those of one more shard, whose later stages may have had nothing left to attack."""
    attacked = bool((shard.outcomes.correct & shard.outcomes.counted).any())
    if stages is None or (attacked and not shard.stages):
        return None
    return added_costs(stages, shard.stages)
