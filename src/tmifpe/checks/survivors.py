"""A second attack on what the first one left standing: a stronger one on a sample, or one led by another model."""

from __future__ import annotations

__all__ = ["SecondAttacks", "Source", "alarms", "led_stages"]

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from tmifpe.attacks import Attack, Loop, Queries, as_attack, attack_spelling
from tmifpe.attacks.loop.frozen import preserved_state
from tmifpe.attacks.loop.queries import TransferQueries
from tmifpe.attacks.loop.rows import Problem
from tmifpe.checks.flags import flag
from tmifpe.core import rng
from tmifpe.core.numbers import MOST_SEED
from tmifpe.run.cut.plan import make_plan
from tmifpe.run.evidence.evidence import Evidence
from tmifpe.run.evidence.spot_check import SpotCheck
from tmifpe.run.evidence.transfer import Transfer
from tmifpe.run.outcomes import Outcomes
from tmifpe.run.prepared_model import PreparedModel
from tmifpe.run.result import Flag
from tmifpe.run.shard import Job, fetch_rows, read_clean, targets_of
from tmifpe.run.verify import verify

_STREAM = 0x5A07  # keeps the draw of the sample apart from the starts of attacks, whose stages count from 0


@dataclass(frozen=True)
class Source:
    """The model whose gradients are followed, and what it is called; without an `identity` nothing is recalled."""

    prepared: PreparedModel
    name: str
    identity: str


@dataclass(frozen=True)
class SecondAttacks:
    """What else is tried on the survivors: `attack` on `count` of them, and the gradients of another model."""

    count: int = 0
    attack: Attack | None = None
    source: Source | None = None

    def run(
        self, job: Job, outcomes: Outcomes, known: Evidence, tick: Callable[[], None]
    ) -> tuple[SpotCheck | None, Transfer | None]:
        """What they find; what is known of the very same request is not computed again."""
        spot, led = known.spot_check, known.from_model
        if self.attack is None:
            spot = None
        elif spot is None or (spot.asked, spot.attack) != (self.count, attack_spelling(self.attack)):
            spot = _spot_check(job, outcomes, self.count, self.attack, tick)
        if self.source is None:
            led = None
        elif led is None or not led.identity or led.identity != self.source.identity:
            led = _transfer_from(job, outcomes, self.source, tick)
        return spot, led


def _spot_check(job: Job, outcomes: Outcomes, count: int, attack: Attack, tick: Callable[[], None]) -> SpotCheck:
    """`attack` on `count` survivors, drawn by their own random numbers. Its starts come from the next seed: those of
    this one have been tried."""
    began, survivors = time.perf_counter(), _survivors(outcomes)
    draw = rng.uniform(job.seed, torch.from_numpy(outcomes.index[survivors].copy()), _STREAM, 0, (1,))[:, 0]
    chosen = np.sort(survivors[np.argsort(draw.numpy(), kind="stable")[:count]])
    prepared = job.prepared
    queries = Queries(prepared.model, prepared.dtype, job.eot, straight_through=prepared.straight_through)
    broken = _attack(job, chosen, attack, queries, (job.seed + 1) % MOST_SEED, tick)
    return SpotCheck(
        attack_spelling(attack),
        count,
        len(survivors),
        len(chosen),
        int(broken.sum()),
        int(outcomes.counted.sum()),
        tuple(outcomes.index[chosen[broken]].tolist()),
        queries.tally.forwards,
        queries.tally.backwards,
        time.perf_counter() - began,
    )


def _transfer_from(job: Job, outcomes: Outcomes, source: Source, tick: Callable[[], None]) -> Transfer:
    """The run's own gradient attacks on the survivors, along the gradients of `source`; every point on their way is
    judged by the evaluated model."""
    began, survivors, prepared, led = time.perf_counter(), _survivors(outcomes), job.prepared, source.prepared
    queries = TransferQueries(prepared.model, prepared.dtype, job.eot, source=Queries(led.model, led.dtype))
    broken = _attack(job, survivors, as_attack(led_stages(job.attack)), queries, job.seed, tick)
    tally = queries.tally + queries.source.tally
    return Transfer(
        source.name,
        source.identity,
        len(survivors),
        int(broken.sum()),
        int(outcomes.counted.sum()),
        tuple(outcomes.index[survivors[broken]].tolist()),
        tally.forwards,
        tally.backwards,
        time.perf_counter() - began,
    )


def led_stages(attack: Attack) -> tuple[Attack, ...]:
    """The stages that follow gradients and can be led by another model's; AutoAttack asks the model by itself."""
    return tuple(stage for stage in attack.stages if stage.needs_gradient and not stage.costly)


def alarms(spot: SpotCheck | None, led: Transfer | None) -> Iterator[Flag]:
    """What follows from them."""
    if spot is not None and spot.broken:
        yield flag("spot-check", f"{spot.title}: {spot}.")
    if led is not None and led.broken:
        yield flag("transfer-failure", f"Led by the gradients of {led.model}: {led}.")


def _survivors(outcomes: Outcomes) -> NDArray[np.int64]:
    """Their positions."""
    return np.flatnonzero(outcomes.robust & outcomes.counted)


def _attack(
    job: Job, positions: NDArray[np.int64], attack: Attack, queries: Queries, seed: int, tick: Callable[[], None]
) -> NDArray[np.bool_]:
    """Which of the examples at these positions `attack` breaks, as a mask."""
    if not len(positions):
        return np.zeros(0, dtype=bool)
    plan = make_plan(len(positions), job.data.shape, attack, job.batch_size)
    broken: list[NDArray[np.bool_]] = []
    for shard in range(len(plan)):
        rows = positions[plan.positions(shard).start : plan.positions(shard).stop].tolist()
        with preserved_state(job.prepared.model, job.prepared.device):
            rng.seed_rng(job.prepared.device, seed, shard)
            x, labels, indices = fetch_rows(job, rows)
            logits = read_clean(job, queries, x, labels)
            targets = targets_of(job, rows, logits, labels, indices)
            problem = Problem(x, labels, targets, indices, job.threat, seed, clean=logits)
            loop = Loop(
                job.batch_size,
                verify=lambda claimed, these: verify(claimed, these, queries, job.batch_size),
                tick=lambda *_: tick(),
            )
            broken.append(attack.run(problem, queries, loop).fooled.cpu().numpy())
    return np.concatenate(broken)
