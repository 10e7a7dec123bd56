"""One shard: fetch, read clean, attack in stages, verify, and a row per example."""

from __future__ import annotations

__all__ = ["Job", "ShardFailure", "ShardResult", "fetch_rows", "read_clean", "run_shard", "targets_of"]

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tmifpe.attacks import Attack, Loop, Verdicts
from tmifpe.attacks.attack import check_box
from tmifpe.attacks.loop.early_exit import EarlyExit
from tmifpe.attacks.loop.frozen import preserved_state
from tmifpe.attacks.loop.queries import Queries, StageCost, Tally
from tmifpe.attacks.loop.rows import Problem
from tmifpe.attacks.radius.several import run_radii
from tmifpe.attacks.sequence import Sequence as Stages
from tmifpe.certificates.certifier import BATCH, Certifier
from tmifpe.core import numerics
from tmifpe.core.errors import InputError, InternalError
from tmifpe.core.outputs import check_clean
from tmifpe.core.rng import seed_rng
from tmifpe.core.types import Data, Threat
from tmifpe.run.clean import CleanLogits
from tmifpe.run.outcomes import Mark, Outcomes
from tmifpe.run.prepared_model import PreparedModel
from tmifpe.run.shown.progress import Look, look_at
from tmifpe.run.targets import choose_targets
from tmifpe.run.tune.executor import followed
from tmifpe.run.tune.tuning import Tuning
from tmifpe.run.verify import disagree, verify

_EXIT_MARKS = np.array([Mark.NONE, Mark.STOPPED_EARLY, Mark.EXIT_CHECKED, Mark.EXIT_CHECKED | Mark.EXIT_WRONG])
"""By `Exit`."""


@dataclass(frozen=True)
class Job:
    """What stays the same from shard to shard."""

    prepared: PreparedModel
    data: Data
    threat: Threat
    attack: Attack
    targets: str | int | Tensor | None = None
    mode: str = "verdict"
    seed: int = 0
    batch_size: int = 256
    eot: int = 1
    second: PreparedModel | None = None
    """The model in another precision, for a second opinion on what was broken."""
    certify: bool = False
    """Bound the margin of every example that the attack is given."""
    radii: tuple[float, ...] = ()
    """The radii to attack one after another, the threat's eps last; empty for that alone."""
    clean: CleanLogits = field(default_factory=CleanLogits)
    """Shared by the runs of one model on the same data, so that the clean pass happens once."""
    tuning: Tuning | None = None
    """How the model is run; `prepared` has the copy for it, where this process computes."""
    stops_early: bool = True
    """Whether examples may stop early, predicted robust."""
    keeps_batches: bool = False
    """Whether the batch size is part of the question, as it is for a randomised model."""

    @property
    def early_exit(self) -> EarlyExit | None:
        """Which examples stop early: none where the gradients are noisy, coarse or not the model's own, nor at L1 and
        norms of others, where few would and of these too many wrongly (docs/cost.md)."""
        prepared = self.prepared
        noisy = self.eot > 1 or self.keeps_batches or prepared.dtype not in (torch.float32, torch.float64)
        able = self.threat.norm in ("linf", "l2") and not noisy and not prepared.straight_through
        return EarlyExit() if self.stops_early and able else None


@dataclass
class ShardResult:
    """What a shard gives back: outcomes in order, the points found, and what it cost."""

    shard: int
    outcomes: Outcomes
    adv: Tensor | None
    """None where it was left in the store."""
    tally: Tally = field(default_factory=Tally)
    seconds: float = 0.0
    stages: tuple[StageCost, ...] = ()
    """What each stage of the attack cost; empty in shards of 0.1.0."""
    notes: frozenset[str] = frozenset()
    """What a reader should know about how the model was queried; not stored."""
    batch_size: int | None = None
    """The batch that memory sufficed for, if it is smaller than the one asked for; not stored."""


@dataclass(frozen=True)
class ShardFailure:
    """A shard without outcomes: how often it was tried, and how the last attempt ended."""

    shard: int
    attempts: int
    error: str
    """One sentence."""
    traceback: str = field(default="", repr=False)
    """Empty where the process was killed and could not say."""


def run_shard(job: Job, shard: int, positions: range, tick: Callable[[Look], None] = lambda _: None) -> ShardResult:
    """Evaluate the examples at `positions`; `tick` is called at every look."""
    with preserved_state(job.prepared.model, job.prepared.device):
        # The draws of a randomised model belong to the shard, so that to run it again is to get the same outcomes.
        seed_rng(job.prepared.device, job.seed, shard)
        return _run_shard(job, shard, positions, tick)


def _run_shard(job: Job, shard: int, positions: range, tick: Callable[[Look], None]) -> ShardResult:
    prepared = job.prepared
    queries = Queries(prepared.model, prepared.dtype, job.eot, straight_through=prepared.straight_through)
    given, labels, indices = _read_rows(job, positions)
    x = check_box(given, job.threat)
    if x is not given:
        queries.notes.add("images that reached out of the box by the rounding of float32 were moved to its edge")
    logits = job.clean.at(positions, lambda: read_clean(job, queries, x, labels)).to(x.device)
    targets = targets_of(job, positions, logits, labels, indices)
    outcomes = _clean_outcomes(logits, labels, targets, indices)
    problem = Problem(x, labels, targets, indices, job.threat, job.seed, clean=logits)
    attacked = torch.from_numpy(outcomes.correct & outcomes.counted).to(x.device)

    def told(done: int, wrong: int) -> None:
        tick(look_at(job, queries, len(problem), done, wrong))

    adv = _attack(job, queries, followed(prepared, queries), problem, attacked, outcomes, told)
    _ask_second(job, queries, problem, adv, attacked, outcomes)
    if job.certify:
        _certify(job, problem, attacked, outcomes, lambda: told(len(problem), int((~outcomes.robust).sum())))
    stages, notes = tuple(queries.stages), frozenset(queries.notes)
    return ShardResult(shard, outcomes, adv, queries.tally, stages=stages, notes=notes)


def _clean_outcomes(logits: Tensor, labels: Tensor, targets: Tensor | None, indices: Tensor) -> Outcomes:
    """One row per example, as it is before any attack."""
    outcomes = Outcomes.blank(len(labels))
    outcomes.index[:] = indices.cpu().numpy()
    outcomes.label[:] = labels.cpu().numpy()
    predictions = logits.argmax(dim=1)
    outcomes.clean_pred[:] = outcomes.adv_pred[:] = predictions.cpu().numpy()
    outcomes.margin[:] = outcomes.clean_margin[:] = _column(numerics.margin(logits, labels, targets))
    outcomes.adv_gap[:] = outcomes.clean_gap[:] = _column(numerics.top_gap(logits))
    outcomes.broken_at[:], outcomes.withstood[:] = np.where(outcomes.correct, np.inf, 0.0), 0.0
    if targets is not None:
        outcomes.target[:] = targets.cpu().numpy()
        given = (predictions == targets) | (labels == targets)
        outcomes.marks[given.cpu().numpy()] |= Mark.LEFT_OUT
    return outcomes


def _column(values: Tensor) -> NDArray[np.float64]:
    """As outcomes keep it: float64, with the one NaN that a database gives back."""
    numbers = values.cpu().double().numpy()
    return np.where(np.isnan(numbers), np.nan, numbers)


def fetch_rows(job: Job, positions: Sequence[int]) -> tuple[Tensor, Tensor, Tensor]:
    """Images, in their box, labels and indices in the full source, on the job's device."""
    x, labels, indices = _read_rows(job, positions)
    return check_box(x, job.threat), labels, indices


def _read_rows(job: Job, positions: Sequence[int]) -> tuple[Tensor, Tensor, Tensor]:
    x, labels = job.data.fetch(positions)
    device = job.prepared.device
    indices = torch.as_tensor(np.asarray([job.data.indices[p] for p in positions], dtype=np.int64), device=device)
    return x.to(device, job.prepared.image_dtype), labels.to(device), indices


def read_clean(job: Job, queries: Queries, x: Tensor, labels: Tensor) -> Tensor:
    """The logits of clean images, in at least float32, or `InputError` where they make no sense."""
    logits = torch.cat([queries.logits(part, fresh=True) for part in x.split(job.batch_size)])
    logits = logits.to(numerics.compute_dtype(logits.dtype))
    if not bool(numerics.is_usable(logits).all()):
        bad = int((~numerics.is_usable(logits)).sum())
        raise InputError(
            f"the model returns NaN or infinite logits for {bad} of {len(x)} clean images; "
            f"check its weights, its normalisation and the precision ({job.prepared.precision})"
        )
    check_clean(logits, queries.notes)
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
    leading: Queries,
    problem: Problem,
    attacked: Tensor,
    outcomes: Outcomes,
    tick: Callable[[int, int], None],
) -> Tensor:
    """Attack these rows by way of `leading`, verified by `queries`; fills `outcomes`, returns the points."""
    adv = problem.x.clone()
    rows = attacked.nonzero()[:, 0]
    closed = len(problem) - len(rows)
    tick(closed, closed)
    if len(rows):
        part = problem.take(rows)
        loop = Loop(
            job.batch_size,
            job.mode,
            lambda claimed, these: verify(claimed, these, queries, job.batch_size),
            lambda done, broken: tick(closed + done, closed + broken),
            job.early_exit,
        )
        stages = Stages(job.attack.stages)
        several = job.radii
        verdicts = run_radii(stages, several, part, leading, loop) if several else stages.run(part, leading, loop)
        adv[rows] = verdicts.adv
        _note(outcomes, rows.cpu().numpy(), part, verdicts)
    return adv


def _note(outcomes: Outcomes, rows: NDArray[np.int64], part: Problem, verdicts: Verdicts) -> None:
    """Fill in what the attack found."""
    fooled = verdicts.fooled.cpu().numpy()
    outcomes.fooled[rows] = fooled
    outcomes.stage[rows] = verdicts.stage.cpu().numpy()
    outcomes.part[rows] = verdicts.part.cpu().numpy()
    steps = verdicts.steps.cpu().numpy()
    outcomes.steps_used[rows] = steps
    outcomes.adv_pred[rows] = verdicts.prediction.cpu().numpy()
    outcomes.margin[rows] = _column(verdicts.margin)
    outcomes.adv_gap[rows] = _column(verdicts.gap)
    outcomes.size[rows] = _column(part.norm.size(verdicts.adv - part.x))
    eps, at, held = _column(part.eps), _column(verdicts.broken_at), _column(verdicts.withstood)
    outcomes.broken_at[rows] = np.where(fooled, np.where(np.isnan(at), eps, at), np.inf)
    outcomes.withstood[rows] = np.where(np.isnan(held), np.where(fooled, 0.0, eps), held)
    zero = verdicts.zero_grad.cpu().numpy()
    rising = ~fooled & ((verdicts.margin < 0) & (verdicts.rise >= -verdicts.margin / 2)).cpu().numpy()
    always = zero >= np.maximum(verdicts.plain.cpu().numpy(), 1)
    outcomes.marks[rows] |= (
        np.where(verdicts.unusable.cpu().numpy() > 0, Mark.UNUSABLE_LOGITS, 0)
        | np.where(always, Mark.ZERO_GRADIENT, np.where(zero > 0, Mark.SOME_ZERO_GRADIENTS, 0))
        | np.where(rising, Mark.RISING, 0)
        | _EXIT_MARKS[verdicts.exit.cpu().numpy()]
    )


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


def _certify(job: Job, problem: Problem, attacked: Tensor, outcomes: Outcomes, tick: Callable[[], None]) -> None:
    """Bound the margin of the rows that were attacked, and compare: what is proved cannot have been broken."""
    outcomes.certified[:], outcomes.margin_bound[:], outcomes.certified_to[:] = 0, np.inf, 0.0
    rows = attacked.nonzero()[:, 0]
    if not len(rows):
        return
    certifier = Certifier.of(job.prepared.model, problem.x[:1], job.threat)
    for part in rows.split(BATCH):
        here, taken = part.cpu().numpy(), problem.take(part)
        bounds = _column(certifier.margin_bounds(taken.x, taken.labels, taken.eps))
        outcomes.margin_bound[here], outcomes.certified[here] = bounds, bounds < 0
        outcomes.certified_to[here] = np.where(bounds < 0, _column(taken.eps), 0.0)
        if left := (bounds >= 0).nonzero()[0].tolist():
            rest = torch.tensor(left, device=part.device)
            broken_at = torch.from_numpy(outcomes.broken_at[here[left]]).to(taken.eps)
            outcomes.certified_to[here[left]] = _column(_largest(job, certifier, taken.take(rest), broken_at))
        tick()
    if (wrong := (outcomes.certified_to >= outcomes.broken_at) & outcomes.fooled).any():
        raise InternalError(
            f"certified and broken at index {', '.join(map(str, outcomes.index[wrong].tolist()))}: the certificate or "
            "the attack is wrong; please report this as a bug, with the model if you can"
        )


def _largest(job: Job, certifier: Certifier, problem: Problem, broken_at: Tensor) -> Tensor:
    """The largest radius below eps, of those that the run tried or by bisection, at which each row is certified."""
    if job.attack.every_radius:
        return certifier.radii(problem.x, problem.labels, torch.minimum(problem.eps, broken_at))
    proved = torch.zeros_like(problem.eps)
    for radius in job.radii[:-1]:
        bounds = certifier.margin_bounds(problem.x, problem.labels, torch.full_like(proved, radius))
        proved = torch.where(bounds < 0, radius, proved)
    return proved
