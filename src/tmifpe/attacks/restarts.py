"""Restarts side by side: a few rows take about as long to look at as one, so that their starts share every look."""

from __future__ import annotations

__all__ = ["side_by_side"]

from dataclasses import replace

import torch

from tmifpe.attacks.ascent import Ascent
from tmifpe.attacks.attack import Attack
from tmifpe.attacks.loop import Loop, Verdicts
from tmifpe.attacks.loop.queries import Queries
from tmifpe.attacks.loop.rows import Problem


def side_by_side(attack: Attack, problem: Problem, queries: Queries, loop: Loop) -> Verdicts:
    """What `attack` finds on few rows, every start as rows of its own; the first that succeeds counts.

    A row that breaks early has paid for its other starts in vain, so this is not for many rows. An attack without
    restarts runs as it is, and so does every attack in `strongest` mode.
    """
    # Those of a class or a property are no starts, such as the targets of `MultiTargeted`.
    several = vars(attack).get("restarts", 1) > 1
    if not isinstance(attack, Ascent) or not several or loop.mode == "strongest":
        return attack.run(problem, queries, loop)
    count, n = attack.restarts, len(problem)
    starts = [attack.start(problem, restart) for restart in range(count)]
    if problem.start is not None:
        starts[0] = problem.start
    rows = torch.arange(n, device=problem.labels.device).repeat(count)
    each = replace(problem.take(rows), start=torch.cat(starts))
    one = replace(attack, restarts=1)  # pyright: ignore[reportArgumentType] - a dataclass, as all attacks are
    # Of the starts nobody can say yet which examples are done.
    found = one.run(each, queries, replace(loop, tick=lambda done, _broken: loop.tick(done // count, 0)))
    total, found = found.split(n)
    for _ in range(count - 1):
        now, found = found.split(n)
        both = total.followed_by(now, now.fooled | (now.margin > total.margin))
        done = total.fooled.nonzero()[:, 0]
        both.put(done, total.take(done))
        total = both
    return total
