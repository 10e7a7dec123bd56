"""Where gradients mislead, `full` goes on with the survivors: by a mended gradient, a smoothed one, an estimated one,
and by none. The cheapest first; each first on those nearest to the boundary, and on the others as long as that pays.
What they claim is read again by the model itself, like every claim."""

from __future__ import annotations

__all__ = ["Repairs", "probe", "repair"]

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tmifpe.attacks import PGD, Attack, Loop, Queries, Square, Verdicts
from tmifpe.attacks.hooks.layers import Layers
from tmifpe.attacks.hooks.mended import Core, MendedQueries, find_cores
from tmifpe.attacks.loop.estimated import EstimatedQueries, SmoothedQueries
from tmifpe.attacks.loop.frozen import preserved_state
from tmifpe.attacks.loop.queries import Tally, TransferQueries
from tmifpe.attacks.loop.rows import Problem
from tmifpe.checks.allowance import Allowance, spread
from tmifpe.checks.gradients import agreement, margin_of
from tmifpe.checks.sample import draw_sample
from tmifpe.core import rng
from tmifpe.core.errors import InputError, ModelError
from tmifpe.core.types import Model
from tmifpe.run.evidence.repair import Broken, Repair
from tmifpe.run.outcomes import Mark, Outcomes
from tmifpe.run.shard import Job, fetch_rows, read_clean, targets_of
from tmifpe.run.verify import disagree, verify

_FIRST = 16
"""Survivors that a repair is tried on first; one that takes no more than `full` did, four times as many."""
_LOOKED_AT = 16
_STEPS = 40
_STREAM = 0x4EFA
_SQUARE, _SQUARES = 5000, ("linf", "l2", "l1")
_PROBE, _PROBED, _LEAST, _SHARE = 200, 12, 20, 0.3
"""Queries of the probe, survivors that get them, how few are worth it, and its share of what checks may still cost."""


@dataclass
class Repairs:
    """What was done, and the points that were found, by position."""

    done: list[Repair] = field(default_factory=list)
    points: dict[int, Tensor] = field(default_factory=dict)

    @property
    def broken(self) -> int:
        return sum(one.broken for one in self.done)

    def __str__(self) -> str:
        said = [str(one) for one in self.done if one.broken]
        if vain := len(self.done) - len(said):
            said.append(f"{vain} {'other ' if said else ''}ways broke none")
        return f"The attack went on with the survivors: {'; '.join(said)}."


@dataclass(frozen=True)
class _Way:
    """A way to attack: whose gradient leads, and by which attack."""

    name: str
    attack: Attack
    queries: Queries
    cheap: bool = False
    dear: bool = False

    @property
    def tally(self) -> Tally:
        return self.queries.tally


def probe(job: Job, outcomes: Outcomes, allowance: Allowance, found: Repairs) -> int:
    """Square, with few queries, on the survivors nearest to the boundary; how many it broke. It knows nothing of
    gradients, so that nothing done to them misleads it."""
    left = _nearest(outcomes)[:_PROBED]
    if not len(left) or job.threat.norm not in _SQUARES or job.threat.eps == 0:
        return 0
    queries = min(_PROBE, int(_SHARE * allowance.left // min(len(left), 4)))
    if queries < _LEAST:
        allowance.cut.append("the probe without gradients left out")
        return 0
    if queries < _PROBE:
        allowance.cut.append(f"the probe without gradients with {queries} queries instead of {_PROBE}")
    count = allowance.rows("the probe without gradients", queries, len(left), share=_SHARE)
    way = _Way("a probe without gradients", Square(queries=queries), _asked(job, allowance.tally))
    _try(job, way, left[:count], found, lambda: None)
    one = found.done.pop()
    if one.rows:  # what it cost is counted with the checks
        found.done.append(replace(one, forwards=0, backwards=0))
    return one.broken


def repair(job: Job, outcomes: Outcomes, layers: Layers, found: Repairs, tick: Callable[[], None]) -> None:
    """All ways on what is left standing; those that cost most only while no gradient was found that can be believed."""
    believed = False
    for way in _ways(job, outcomes, layers):
        left = np.array([p for p in _nearest(outcomes) if p not in found.points], dtype=np.int64)
        if not len(left):
            return
        if way.dear and believed:
            continue
        _try(job, way, left, found, tick)
        believed = believed or (isinstance(way.queries, TransferQueries) and _is_right(job, way.queries, left))
        # With the look at its gradient, and for the first one the search for the core.
        found.done[-1] = replace(found.done[-1], forwards=way.tally.forwards, backwards=way.tally.backwards)
    left = np.array([p for p in _nearest(outcomes) if p not in found.points], dtype=np.int64)
    if believed and len(left) and job.threat.norm in _SQUARES:
        _try(job, _Way(f"Square with {_PROBE} queries", Square(queries=_PROBE), _asked(job)), left, found, tick)


def _is_right(job: Job, queries: TransferQueries, left: NDArray[np.int64]) -> bool:
    """Whether the model does what the gradient that leads here promises, as an honest one's does."""
    with preserved_state(job.prepared.model, job.prepared.device):
        sample = draw_sample(job, left[spread(len(left), _LOOKED_AT)], queries.tally)
        if sample is None:
            return False
        try:
            grad = queries.source.look(sample.problem.x, margin_of(sample.problem)).grad
        except (InputError, ModelError):
            return False
        assert grad is not None  # noqa: S101 - a look has one
        ratios = agreement(sample, grad, 0.25)
    return len(ratios) >= len(sample) / 2 and bool(((ratios > 0.7) & (ratios < 1.5)).float().mean() >= 0.75)


def _ways(job: Job, outcomes: Outcomes, layers: Layers) -> Sequence[_Way]:
    threat, full = job.threat, job.attack
    model: Model = getattr(job.prepared.model, "_orig_mod", job.prepared.model)  # compiled code knows no hooks
    short = PGD(steps=_STEPS)

    def led(name: str, attack: Attack, source: Queries) -> _Way:
        asked = TransferQueries(model, job.prepared.dtype, job.eot, source=source)
        source.tally = asked.tally
        if isinstance(source, SmoothedQueries):
            source.source.tally = asked.tally
        return _Way(name, attack, asked, cheap=attack is full)

    def mended(core: Core | None) -> MendedQueries:
        passed = tuple(dict.fromkeys((*job.prepared.straight_through, *dead)))
        return MendedQueries(model, job.prepared.dtype, straight_through=passed, core=core)

    common: dict[str, Any] = {"model": model, "dtype": job.prepared.dtype, "threat": threat, "seed": job.seed}
    x = _images(job, _nearest(outcomes)[spread(int(outcomes.robust.sum()), _LOOKED_AT)])
    search = Tally()
    dead = _shape_keeping(job, layers, x, search)
    found = _cores(job, x, search)
    ways = [led(f"the gradient of its core ({_named(core)})", full, mended(core)) for core in found]
    ways.append(led("passing over what kills or turns the gradient", full, mended(None)))
    ways.append(led("a smoothed gradient", short, SmoothedQueries(**common, source=_asked(job))))
    for core in found:
        source = SmoothedQueries(**common, source=mended(core))
        ways.append(led(f"the smoothed gradient of its core ({_named(core)})", short, source))
    ways.append(replace(led("an estimated gradient", short, EstimatedQueries(**common)), dear=True))
    if threat.norm in _SQUARES:
        ways.append(_Way(f"Square with {_SQUARE} queries", Square(queries=_SQUARE), _asked(job), dear=True))
    ways[0].tally.forwards, ways[0].tally.backwards = search.forwards, search.backwards
    return ways


def _named(core: Core) -> str:
    return core[0] if core[0] == core[1] else f"{core[0]} to {core[1]}"


def _asked(job: Job, tally: Tally | None = None) -> Queries:
    return Queries(job.prepared.model, job.prepared.dtype, job.eot, tally or Tally())


def _images(job: Job, positions: NDArray[np.int64]) -> Tensor:
    return fetch_rows(job, positions.tolist())[0]


def _cores(job: Job, x: Tensor, tally: Tally) -> list[Core]:
    try:
        with preserved_state(job.prepared.model, job.prepared.device):
            return find_cores(_asked(job, tally), x)
    except ModelError:
        return []


def _shape_keeping(job: Job, layers: Layers, x: Tensor, tally: Tally) -> tuple[str, ...]:
    """The dead modules that the identity can stand in for, tried one by one."""
    kept: list[str] = []
    for layer in layers.dying:
        if layer.own or not layer.name or layer.name in kept:
            continue
        tried = replace(_asked(job, tally), straight_through=(layer.name,))
        try:
            with preserved_state(job.prepared.model, job.prepared.device):
                tried.look(x[:1], lambda z: z.sum(dim=1))
            kept.append(layer.name)
        except (InputError, ModelError):
            continue
    return tuple(kept)


def _nearest(outcomes: Outcomes) -> NDArray[np.int64]:
    """The positions of the survivors that are not proved to be robust, the nearest to the boundary first."""
    left = np.flatnonzero(outcomes.robust & outcomes.counted & (outcomes.certified != 1))
    share = outcomes.margin[left] / np.where(outcomes.clean_margin[left] < 0, -outcomes.clean_margin[left], 1.0)
    return left[np.argsort(-np.nan_to_num(share, nan=-np.inf), kind="stable")]


def _try(job: Job, way: _Way, left: NDArray[np.int64], found: Repairs, tick: Callable[[], None]) -> None:
    """`way` on the first of these positions, then on twice as many, until a lot stands."""
    began, before = time.perf_counter(), replace(way.tally)
    tried, size, rows = 0, (4 if way.cheap else 1) * _FIRST, list[Broken]()
    try:
        while tried < len(left):
            some = left[tried : tried + size]
            tried, size = tried + len(some), 2 * size
            broken = _attack(job, way, some, found, tick)
            rows += broken
            if not broken:
                break
    except (InputError, ModelError):  # the model cannot be asked in this way
        tried = max(tried, len(rows))
    spent = (way.tally.forwards - before.forwards, way.tally.backwards - before.backwards)
    found.done.append(Repair(way.name, tried, *spent, time.perf_counter() - began, tuple(rows)))


def _attack(job: Job, way: _Way, some: NDArray[np.int64], found: Repairs, tick: Callable[[], None]) -> list[Broken]:
    rows: list[Broken] = []
    model, device = job.prepared.model, job.prepared.device
    for begin in range(0, len(some), job.batch_size):
        positions = some[begin : begin + job.batch_size].tolist()
        with preserved_state(model, device):
            rng.seed_rng(device, job.seed, _STREAM, positions[0])
            x, labels, indices = fetch_rows(job, positions)
            plain = replace(_asked(job), tally=way.tally)
            logits = read_clean(job, plain, x, labels)
            targets = targets_of(job, positions, logits, labels, indices)
            problem = Problem(x, labels, targets, indices, job.threat, job.seed, _STREAM, clean=logits)
            loop = Loop(
                job.batch_size,
                verify=lambda claimed, these, plain=plain: verify(claimed, these, plain, job.batch_size),
                tick=lambda *_: tick(),
            )
            verdicts = way.attack.run(problem, way.queries, loop)
            rows += _noted(job, way, problem, verdicts, positions, found)
    return rows


def _noted(
    job: Job, way: _Way, problem: Problem, verdicts: Verdicts, positions: list[int], found: Repairs
) -> list[Broken]:
    hit = verdicts.fooled.nonzero()[:, 0]
    if not len(hit):
        return []
    here, table = problem.take(hit), verdicts.take(hit)
    size = here.norm.size(table.adv - here.x)
    fragile = torch.zeros_like(table.fooled)
    if (second := job.second) is not None:
        asked = Queries(second.model, second.dtype, job.eot, way.tally)
        fragile = disagree(table.adv.to(second.device, second.image_dtype), here, asked, job.batch_size, table.fooled)
    for row, adv in zip(hit.tolist(), table.adv, strict=True):
        found.points[positions[row]] = adv.cpu()
    columns = (here.indices, table.prediction, table.margin, table.gap, size, table.steps, fragile)
    return [
        Broken(index, prediction, margin, gap, length, steps, int(Mark.FRAGILE) if shaky else 0)
        for index, prediction, margin, gap, length, steps, shaky in zip(*(c.tolist() for c in columns), strict=True)
    ]
