"""What a run and its shards tell of themselves while they are computed: bounds, stage, steps, and what is left."""

from __future__ import annotations

__all__ = ["Look", "Progress", "budget_of", "look_at", "together"]

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from tmifpe.attacks.near import Near

if TYPE_CHECKING:
    from tmifpe.attacks.loop.queries import Queries
    from tmifpe.run.shard import Job


@dataclass(frozen=True)
class Progress:
    """How far an evaluation has come. The robust accuracy so far lies in [robust, total - wrong] / total."""

    total: int
    done: int
    robust: int
    """Withstood every attack."""
    wrong: int
    """Broken, or misclassified to begin with."""
    stage: str = ""
    """What is being done, such as `stage 2 of 5: gama 20`; with workers, the earliest that one of them does."""
    steps: int = 0
    """Forward passes so far, counted in examples; what comes from a store is not counted."""
    left: int = 0
    """About so many are still to come, at most: no more than the budget of the attack, and as many per example as in
    the shards that are finished."""

    @property
    def bounds(self) -> tuple[float, float]:
        return self.robust / self.total, (self.total - self.wrong) / self.total

    @property
    def share(self) -> float:
        """Of the work, as far as that is known; else of the examples."""
        return self.steps / (self.steps + self.left) if self.left else self.done / max(1, self.total)


class Look(NamedTuple):
    """Of `size` examples, `done` have a verdict and `wrong` are misclassified or broken."""

    size: int = 0
    done: int = 0
    wrong: int = 0
    stage: int = 0
    """The stage that is running, counted from 0; their number when certificates are computed."""
    steps: int = 0
    """Forward passes so far, counted in examples."""
    left: int = 0
    """At most so many are still to come, as far as the budgets of the stages say."""


def budget_of(job: Job) -> int:
    """Forward passes of an example that withstands every stage, at every radius."""
    return sum(stage.budget.forwards for stage in job.attack.stages) * job.eot * max(1, len(job.radii))


def look_at(job: Job, queries: Queries, size: int, done: int, wrong: int) -> Look:
    """A shard of `size` examples at this moment."""
    stage, steps, standing = len(queries.stages), queries.tally.forwards, size - wrong
    budgets = [one.budget.forwards * job.eot for one in job.attack.stages]
    if job.radii:  # every stage comes once per radius
        left = max(0, standing * budget_of(job) - steps)
    elif stage < len(budgets):
        here = steps - sum(one.forwards for one in queries.stages)
        near = [isinstance(one, Near) for one in job.attack.stages]
        # The stages of `full` attack ever fewer rows, those near the boundary: no more than the last one did.
        few = min(standing, queries.stages[-1].examples) if stage and near[stage - 1] else standing
        expected = [budget * (few if only else standing) for budget, only in zip(budgets, near, strict=True)]
        left = max(0, expected[stage] - here) + sum(expected[stage + 1 :])
    else:
        left = 0
    return Look(size, done, wrong, stage, steps, left if done < size else 0)


def together(looks: Iterable[Look]) -> Look:
    """Several shards at once; the stage is the earliest that one of them is in.

    >>> together([Look(8, 2, 1, 1, 50, 9), Look(8, 1, 1, 0, 10, 90)])
    Look(size=16, done=3, wrong=2, stage=0, steps=60, left=99)
    """
    size, done, wrong, stage, steps, left = zip(Look(), *looks, strict=True)
    return Look(sum(size), sum(done), sum(wrong), min(stage[1:], default=0), sum(steps), sum(left))
