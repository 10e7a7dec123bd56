"""One shard: fetch, read clean, attack in stages, verify, and a row per example."""

from __future__ import annotations

__all__ = ["Job", "ShardResult", "fetch_rows", "run_shard", "targets_of"]

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tmifpe.attacks.autoattack import AutoAttack
from tmifpe.attacks.frozen import preserved_state
from tmifpe.attacks.loop import Loop, Verdicts, check_box, run
from tmifpe.attacks.queries import Queries, Tally
from tmifpe.attacks.rows import Problem
from tmifpe.core import numerics
from tmifpe.core.errors import InputError
from tmifpe.core.rng import seed_rng
from tmifpe.core.types import Data, Threat
from tmifpe.norms import get_norm
from tmifpe.run.outcomes import Mark, Outcomes
from tmifpe.run.prepared_model import PreparedModel
from tmifpe.run.resolve import AnyAttack
from tmifpe.run.targets import choose_targets
from tmifpe.run.verify import disagree, verify


@dataclass(frozen=True)
class Job:
    """What stays the same from shard to shard."""

    prepared: PreparedModel
    data: Data
    threat: Threat
    attacks: tuple[AnyAttack, ...]
    targets: str | int | Tensor | None = None
    mode: str = "verdict"
    seed: int = 0
    batch_size: int = 256
    eot: int = 1
    second: PreparedModel | None = None
    """The model in another precision, for a second opinion on what was broken."""


@dataclass
class ShardResult:
    """What a shard gives back: outcomes in order, the points found, and what it cost."""

    shard: int
    outcomes: Outcomes
    adv: Tensor | None
    """None where it was left in the store."""
    tally: Tally = field(default_factory=Tally)
    seconds: float = 0.0


def run_shard(
    job: Job, shard: int, positions: range, tick: Callable[[int, int], None] = lambda *_: None
) -> ShardResult:
    """Evaluate the examples at `positions`; `tick(done, wrong)` is called at every look."""
    with preserved_state(job.prepared.model, job.prepared.device):
        # The draws of a randomised model belong to the shard, so that to run it again is to get the same outcomes.
        seed_rng(job.prepared.device, job.seed, shard)
        return _run_shard(job, shard, positions, tick)


def _run_shard(job: Job, shard: int, positions: range, tick: Callable[[int, int], None]) -> ShardResult:
    queries = Queries(job.prepared.model, job.prepared.dtype, job.eot)
    x, labels, indices = fetch_rows(job, positions)
    logits = _read_clean(job, queries, x, labels)
    outcomes = Outcomes.blank(len(x))
    outcomes.index[:] = indices.cpu().numpy()
    outcomes.label[:] = labels.cpu().numpy()
    predictions = logits.argmax(dim=1)
    outcomes.clean_pred[:] = outcomes.adv_pred[:] = predictions.cpu().numpy()

    targets = targets_of(job, positions, logits, labels, indices)
    outcomes.margin[:] = numerics.margin(logits, labels, targets).cpu().double().numpy()
    open_rows = predictions == labels
    if targets is not None:
        outcomes.target[:] = targets.cpu().numpy()
        given = (predictions == targets) | (labels == targets)
        outcomes.marks[given.cpu().numpy()] |= Mark.LEFT_OUT
        open_rows &= ~given
    problem = Problem(x, labels, targets, indices, job.threat, job.seed, clean=logits)
    attacked = open_rows.clone()
    adv = _attack(job, queries, problem, open_rows, outcomes, tick)
    _ask_second(job, queries, problem, adv, attacked, outcomes)
    return ShardResult(shard, outcomes, adv, queries.tally)


def fetch_rows(job: Job, positions: Sequence[int]) -> tuple[Tensor, Tensor, Tensor]:
    """Images, labels and indices in the full source, on the job's device."""
    x, labels = job.data.fetch(positions)
    device = job.prepared.device
    indices = torch.as_tensor(np.asarray([job.data.indices[p] for p in positions], dtype=np.int64), device=device)
    x = x.to(device, job.prepared.image_dtype)
    check_box(x, job.threat)
    return x, labels.to(device), indices


def _read_clean(job: Job, queries: Queries, x: Tensor, labels: Tensor) -> Tensor:
    logits = torch.cat([queries.logits(part) for part in x.split(job.batch_size)])
    logits = logits.to(numerics.compute_dtype(logits.dtype))
    if not bool(numerics.is_usable(logits).all()):
        bad = int((~numerics.is_usable(logits)).sum())
        raise InputError(
            f"the model returns NaN or infinite logits for {bad} of {len(x)} clean images; "
            f"check its weights, its normalisation and the precision ({job.prepared.precision})"
        )
    if int(labels.max()) >= logits.shape[1]:
        raise InputError(f"label {int(labels.max())} is out of range: the model has {logits.shape[1]} classes")
    return logits


def targets_of(job: Job, positions: Sequence[int], logits: Tensor, labels: Tensor, indices: Tensor) -> Tensor | None:
    """The target class of each example, from its clean logits; None for an untargeted job."""
    if job.targets is None:
        return None
    if isinstance(job.targets, Tensor):
        targets = job.targets[list(positions)].to(labels)
        if bool(((targets < 0) | (targets >= logits.shape[1])).any()):
            raise InputError(f"targets must be classes from 0 to {logits.shape[1] - 1}")
        return targets
    return choose_targets(job.targets, logits, labels, indices, job.seed)


def _attack(
    job: Job,
    queries: Queries,
    problem: Problem,
    open_rows: Tensor,
    outcomes: Outcomes,
    tick: Callable[[int, int], None],
) -> Tensor:
    """Every attack in turn on what the ones before it left standing; fills `outcomes`, returns the points."""
    adv = problem.x.clone()
    closed, broken = len(problem) - int(open_rows.sum()), 0
    tick(closed, closed)
    for stage, attack in enumerate(job.attacks):
        rows = open_rows.nonzero()[:, 0]
        if not len(rows):
            break
        last = stage == len(job.attacks) - 1
        part = problem.take(rows)
        part.stage = stage

        def told(done: int, more: int, last: bool = last, broken: int = broken) -> None:
            tick(closed + broken + (done if last else more), closed + broken + more)

        loop = Loop(
            job.batch_size, job.mode, lambda claimed, these: verify(claimed, these, queries, job.batch_size), told
        )
        if isinstance(attack, AutoAttack):
            verdicts = attack.verdicts(part, queries, loop)
        else:
            verdicts = run(attack, part, queries, loop)
        best = torch.from_numpy(_note(job, outcomes, rows.cpu().numpy(), part, verdicts, stage)).to(rows.device)
        adv[rows[best]] = verdicts.adv[best]
        broken += int(verdicts.fooled.sum())
        open_rows[rows[verdicts.fooled]] = False
    return adv


def _note(
    job: Job, outcomes: Outcomes, rows: NDArray[np.int64], part: Problem, verdicts: Verdicts, stage: int
) -> NDArray[np.bool_]:
    """Fill in what this attack found; returns whose point is the best so far: a later attack may be the weaker."""
    fooled, margin = verdicts.fooled.cpu().numpy(), verdicts.margin.cpu().double().numpy()
    best = fooled | (margin > outcomes.margin[rows]) | (stage == 0)
    outcomes.fooled[rows] = fooled
    outcomes.stage[rows[fooled]] = stage
    outcomes.steps_used[rows] += verdicts.steps.cpu().numpy().astype(np.int32)
    outcomes.adv_pred[rows[best]] = verdicts.prediction.cpu().numpy()[best]
    outcomes.margin[rows[best]] = margin[best]
    size = get_norm(job.threat.norm).size(verdicts.adv - part.x).cpu().double().numpy()
    outcomes.size[rows[best]] = size[best]
    zero, looks = verdicts.zero_grad.cpu().numpy(), np.maximum(verdicts.steps.cpu().numpy(), 1)
    before = outcomes.marks[rows]
    always = (zero >= looks) & ((before & Mark.ZERO_GRADIENT != 0) | (stage == 0))
    ever = (zero > 0) | (before & (Mark.ZERO_GRADIENT | Mark.SOME_ZERO_GRADIENTS) != 0)
    rising = ~fooled & ((verdicts.margin < 0) & (verdicts.rise >= -verdicts.margin / 2)).cpu().numpy()
    outcomes.marks[rows] = (
        (before & Mark.UNUSABLE_LOGITS)
        | np.where(verdicts.unusable.cpu().numpy() > 0, Mark.UNUSABLE_LOGITS, 0)
        | np.where(always, Mark.ZERO_GRADIENT, np.where(ever, Mark.SOME_ZERO_GRADIENTS, 0))
        | np.where(rising, Mark.RISING, 0)
    )
    return best


def _ask_second(
    job: Job, queries: Queries, problem: Problem, adv: Tensor, attacked: Tensor, outcomes: Outcomes
) -> None:
    """Read again, in the other precision, every point that an attack returned; mark those on which the two differ."""
    second = job.second
    if second is None:
        return
    fooled = torch.from_numpy(outcomes.fooled).to(attacked.device)
    rows = (fooled if job.mode == "verdict" else attacked).nonzero()[:, 0]
    asked = Queries(second.model, second.dtype, job.eot, queries.tally)
    differ = disagree(
        adv[rows].to(second.device, second.image_dtype), problem.take(rows), asked, job.batch_size, fooled[rows]
    )
    outcomes.marks[rows[differ].cpu().numpy()] |= Mark.FRAGILE
