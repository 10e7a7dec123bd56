"""One attack at several radii, the smallest first: what breaks at one is broken at all larger ones."""

from __future__ import annotations

__all__ = ["run_radii"]

from collections.abc import Sequence
from dataclasses import replace

import torch

from tmifpe.attacks.attack import Attack
from tmifpe.attacks.loop import Loop, Verdicts, blank
from tmifpe.attacks.loop.queries import Queries, added_costs
from tmifpe.attacks.loop.rows import Problem


def run_radii(attack: Attack, radii: Sequence[float], problem: Problem, queries: Queries, loop: Loop) -> Verdicts:
    """`attack` at each of these radii in turn, on the survivors, which go on from the best point so far.

    The accuracies fall with the radius by construction. The costs of a stage at all radii are one entry.
    """
    total = blank(problem)
    total.broken_at[:], total.withstood[:] = torch.inf, 0.0
    rows = torch.arange(len(problem), device=problem.labels.device)
    smaller = False
    for radius in radii:
        if not len(rows):
            break
        if radius == 0:  # nothing moves
            continue
        part = problem.at(radius).take(rows)
        if smaller:
            part = replace(part, start=total.best[rows])
        broken, last = len(problem) - len(rows), radius == radii[-1]

        def told(done: int, more: int, last: bool = last, broken: int = broken) -> None:
            loop.tick(broken + (done if last else more), broken + more)

        earlier = queries.stages.copy()
        queries.stages.clear()  # in place: a list shared with the queries of the model that the attack does not follow
        found, before = attack.run(part, queries, replace(loop, tick=told)), total.take(rows)
        queries.stages[:] = added_costs(earlier, queries.stages)
        joined = before.followed_by(found, found.fooled | (found.margin > before.margin))
        # Of an attack that tries radii of its own, what it says within this one.
        at = torch.where(found.broken_at.isnan(), part.eps, found.broken_at)
        held = torch.where(found.withstood.isnan(), part.eps, found.withstood)
        joined.broken_at = torch.where(found.fooled, at, torch.inf)
        joined.withstood = torch.where(found.fooled & found.withstood.isnan(), before.withstood, held)
        total.put(rows, joined)
        smaller = True
        rows = rows[~found.fooled]
    return total
