"""From a model and data to a robust accuracy, in one call."""

from __future__ import annotations

__all__ = ["Request", "evaluate"]

import hashlib
import math
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from tmifpe.attacks import PGD, Queries, Tally, attack_spelling
from tmifpe.attacks.autoattack import AutoAttack
from tmifpe.attacks.frozen import preserved_state
from tmifpe.checks.checks import Checks, second_opinion
from tmifpe.core.errors import InputError, shown
from tmifpe.core.extensions import require_identified
from tmifpe.core.rng import preserved_rng
from tmifpe.core.types import Classifier, Data, Model, Threat
from tmifpe.data import as_data, subset
from tmifpe.models import check_compatible, model_identity
from tmifpe.norms import NORMS
from tmifpe.run.outcomes import Outcomes
from tmifpe.run.prepared_model import PreparedModel, prepare_model
from tmifpe.run.recorder import NoRecorder, Recorder
from tmifpe.run.request import (
    MOST_DRAWS,
    as_targets,
    check_attacks,
    check_model,
    check_threat,
    check_whole,
)
from tmifpe.run.resolve import AnyAttack, resolve_attack
from tmifpe.run.result import Progress, Result
from tmifpe.run.shard import Job, ShardResult, run_shard
from tmifpe.run.spec import Plan, RunSpec
from tmifpe.store import Store

SHARD_SECONDS = 10.0
"""About how much work a shard should be: what a killed run loses at most, against what storing costs."""
SHARD_EXAMPLES, SHARD_VALUES = 2**13, 2**24
"""And how large at most, in examples and in input values: memory must not grow with the data."""


@dataclass(frozen=True)
class Request:
    """The options of an evaluation beside model, data, threat and attack; `evaluate` documents them."""

    targets: str | int | Tensor | None = None
    mode: str = "verdict"
    seed: int = 0
    precision: str | None = None
    eot: int = 1
    limit: int | None = None
    indices: Sequence[int] | None = None
    batch_size: int | None = None
    shard_size: int | None = None
    device: str | torch.device | None = None
    name: str | None = None
    keep_adv: bool = False
    checks: bool = True
    verify: str | None = None
    repeats: int = 1
    transfer_adv: Tensor | None = None
    progress: Callable[[Progress], None] = field(default=lambda _: None)

    def __post_init__(self) -> None:
        for option in ("limit", "batch_size", "shard_size"):
            if getattr(self, option) is not None:
                object.__setattr__(self, option, check_whole(option, getattr(self, option)))
        for option in ("eot", "repeats"):
            object.__setattr__(self, option, check_whole(option, getattr(self, option), most=MOST_DRAWS))
        object.__setattr__(self, "seed", check_whole("seed", self.seed, least=0, most=2**63 - 1))
        if self.mode not in ("verdict", "strongest"):
            raise InputError(f"mode must be 'verdict' or 'strongest', got {shown(self.mode)}")
        object.__setattr__(self, "targets", as_targets(self.targets))


@torch.inference_mode(False)  # an attack needs gradients, wherever it is called
def evaluate(
    model: Model | Classifier,
    data: Any,
    threat: Threat,
    attack: AnyAttack | str | Sequence[AnyAttack | str] = PGD(),  # noqa: B008 - frozen
    *,
    store: str | Path | Store | None = None,
    fresh: bool = False,
    recorder: Recorder | None = None,
    **options: Any,
) -> Result:
    """Attack every correctly classified example and say how many withstood.

    model: an `nn.Module`, any callable to logits, or what `load_model` returns; given back as it came.
    data: (images, labels), a Dataset, a DataLoader, or what `load_data` returns; images in [0, 1].
    attack: one attack, or several run in turn on what the ones before left standing; by name: an attack, a loss
        for PGD to climb, or `autoattack`.
    store: a folder; asking for the same again resumes it there, or returns it (`fresh` repeats it).
    options: targets (`second`, `least-likely`, `random`, a class, a tensor), mode (`verdict`, `strongest`), seed,
        precision (`fp64`, `fp32`, `bf16`, `fp16`), eot, limit, indices, batch_size, device, name, keep_adv, progress,
        checks (of model and attack, on at most 64 examples: the result's flags), verify (`float64`: read what was
        broken in that precision too), repeats (further draws of a randomised model), transfer_adv (adversarial
        examples of another model, one per example: do they break what this attack did not?).

    >>> import torch, tmifpe
    >>> model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(4, 3))
    >>> x, y = torch.rand(8, 1, 2, 2), torch.zeros(8, dtype=torch.long)
    >>> tmifpe.evaluate(model, (x, y), tmifpe.Threat("linf", 0.0)).broken
    0
    """
    request = _request(options)
    if store is not None:
        recorder = (store if isinstance(store, Store) else Store(store)).recorder(fresh)
    classifier = model if isinstance(model, Classifier) else None
    network: Model = classifier.module if classifier is not None else model
    check_model(network)
    check_threat(threat)
    source = _select(as_data(data), request)
    if classifier is not None:
        check_compatible(classifier, source)
    threat = replace(threat, norm=NORMS.canonical(threat.norm))
    attacks = _attacks(attack)
    with ExitStack() as stack:
        prepared = stack.enter_context(prepare_model(network, request.precision, request.device))
        stack.enter_context(preserved_rng(prepared.device))
        second = stack.enter_context(second_opinion(network, prepared, request.verify, source))
        spec = replace(
            _spec(source, threat, attacks, request, prepared),
            model=request.name or (classifier.name if classifier else type(network).__name__),
            model_identity=classifier.identity if classifier else "",
        )
        if recorder is not None:
            spec = _identified(spec, network, source, request)
        job = Job(prepared, source, threat, attacks, request.targets, request.mode, request.seed, eot=request.eot)
        job = replace(job, second=second)
        return _run(spec, job, request, recorder or NoRecorder(), classifier.notes if classifier else ())


def _run(spec: RunSpec, job: Job, request: Request, recorder: Recorder, notes: tuple[str, ...]) -> Result:
    began = time.perf_counter()
    try:
        plan = recorder.begin(spec, lambda: _plan(job, request), str(job.prepared.device))
        job = replace(job, batch_size=plan.batch_size)
        done, doubts = _Total(plan, request), Checks(request.checks, request.repeats, request.transfer_adv)
        doubts.recall(recorder.finished())
        doubts.before(job)
        for recalled in recorder.recall(request.keep_adv or request.repeats > 1):
            done.add(recalled)
            doubts.shard(job, recalled)
        resumed, earlier = done.done, done.seconds
        for shard in done.missing():
            since = time.perf_counter()
            result = run_shard(job, shard, plan.positions(shard), done.tick)
            result.seconds = time.perf_counter() - since
            recorder.save(result)
            done.add(result)
            doubts.shard(job, result)
        if not done.outcomes.counted.any():
            raise InputError("every example is labelled or predicted as its target already; there is nothing to attack")
        seconds = time.perf_counter() - began + earlier
        result = Result(spec, plan, done.outcomes, done.tally, seconds, resumed, adv=done.joined_adv(), notes=notes)
        doubts.after(job, result.outcomes)
        result = replace(result, flags=doubts.flags, check_forwards=doubts.forwards, repeated=doubts.repeated(result.n))
        recorder.end(result)
        return result
    finally:
        recorder.close()


class _Total:
    """What the finished shards add up to, and the progress bar's arithmetic."""

    def __init__(self, plan: Plan, request: Request) -> None:
        self.plan, self.n, self.request = plan, plan.n, request
        # One table for all, filled in place: many small arrays that stay would keep the heap from shrinking.
        self.outcomes = Outcomes.blank(plan.n)
        self.adv: dict[int, Tensor] = {}
        self.shards: set[int] = set()
        self.tally = Tally()
        self.done = self.robust = 0
        self.seconds = 0.0

    def missing(self) -> list[int]:
        return [shard for shard in range(len(self.plan)) if shard not in self.shards]

    def add(self, shard: ShardResult) -> None:
        self.shards.add(shard.shard)
        self.outcomes.put(self.plan.positions(shard.shard), shard.outcomes)
        self.seconds += shard.seconds
        self.tally = self.tally + shard.tally
        self.done += len(shard.outcomes)
        self.robust += int(shard.outcomes.robust.sum())
        if self.request.keep_adv and shard.adv is not None:
            self.adv[shard.shard] = shard.adv.cpu()
        self.request.progress(Progress(self.n, self.done, self.robust, self.done - self.robust))

    def tick(self, done: int, wrong: int) -> None:
        """Within a shard: `done` of its examples have a verdict, `wrong` of them are misclassified or broken."""
        robust = self.robust + done - wrong
        self.request.progress(Progress(self.n, self.done + done, robust, self.done - self.robust + wrong))

    def joined_adv(self) -> Tensor | None:
        return torch.cat([self.adv[shard] for shard in sorted(self.adv)]) if self.adv else None


def _request(options: dict[str, Any]) -> Request:
    known = set(Request.__dataclass_fields__)
    for name in options:
        if name not in known:
            raise InputError(f"evaluate has no option {name!r}; it takes {', '.join(sorted(known))}")
    return Request(**options)


def _attacks(attack: AnyAttack | str | Sequence[AnyAttack | str]) -> tuple[AnyAttack, ...]:
    several: Sequence[AnyAttack | str] = (
        attack if isinstance(attack, Sequence) and not isinstance(attack, str) else [attack]
    )
    attacks = tuple(resolve_attack(one) if isinstance(one, str) else one for one in several)
    check_attacks(attacks)
    return attacks


def _select(data: Data, request: Request) -> Data:
    if request.indices is not None:
        data = subset(data, request.indices)
    if request.limit is not None and request.limit < len(data):
        data = subset(data, range(request.limit))
    if isinstance(request.targets, Tensor) and request.targets.shape != (len(data),):
        raise InputError(f"targets must be {len(data)} classes, one per example, got {tuple(request.targets.shape)}")
    given = request.transfer_adv
    if given is not None and not isinstance(given, Tensor):
        raise InputError(f"transfer_adv must be a tensor of images, got {type(given).__name__}")
    if given is not None and given.shape != (len(data), *data.shape):
        raise InputError(f"transfer_adv must be of shape {(len(data), *data.shape)}, got {tuple(given.shape)}")
    return data


def _spec(
    data: Data, threat: Threat, attacks: tuple[AnyAttack, ...], request: Request, prepared: PreparedModel
) -> RunSpec:
    targets = request.targets
    if isinstance(targets, Tensor):
        targets = "given:" + _digest(targets)
    return RunSpec(
        model="",
        model_identity="",
        data=data.name,
        data_identity="",
        threat=threat,
        attacks=tuple(attack_spelling(one) for one in attacks),
        targets="none" if targets is None else str(targets),
        mode=request.mode,
        seed=request.seed,
        precision=prepared.precision,
        eot=request.eot,
        verify=request.verify or "none",
        subset=_digest(torch.as_tensor(list(data.indices))),
        n=len(data),
        total=getattr(data, "total", len(data)),
    )


def _identified(spec: RunSpec, network: Model, data: Data, request: Request) -> RunSpec:
    """With what tells this model and data apart from others: needed only to store, and costs a pass over both."""
    require_identified(*spec.attacks, spec.threat.norm)
    # What a source said of its file, and the tensors as they are now: they may have been changed since.
    said = [text for text in (spec.model_identity or request.name,) if text]
    identity = model_identity(network, said) if isinstance(network, nn.Module) or not spec.model_identity else said[0]
    if identity is None:
        raise InputError(
            "a function cannot be told apart from others like it; give it a name= to store its runs (on the command "
            "line: let the factory return an nn.Module, or say --no-store)"
        )
    return replace(spec, model_identity=identity, data_identity=data.identity)


def _digest(numbers: Tensor) -> str:
    return hashlib.sha256(numbers.to(torch.int64).cpu().numpy().tobytes()).hexdigest()[:16]


def _plan(job: Job, request: Request) -> Plan:
    n = len(job.data)
    batch = min(request.batch_size or _batch_size(job), n)
    own = [attack.batch_size for attack in job.attacks if isinstance(attack, AutoAttack)]
    if own:  # its draws belong to its batches, so what is in them must not hang on a stopwatch
        return Plan(n, batch, min(*own, n))
    if request.shard_size is not None:
        return Plan(n, batch, min(request.shard_size, n))
    seconds = _seconds_per_look(job, batch) * sum(attack.budget for attack in job.attacks)
    most = max(batch, min(SHARD_EXAMPLES, SHARD_VALUES // math.prod(job.data.shape)))
    size = max(4 * batch, batch * math.ceil(SHARD_SECONDS / seconds / batch)) if seconds > 0 else most
    return Plan(n, batch, min(size, most, n))


def _batch_size(job: Job) -> int:
    """Larger images, smaller batches: about 2^20 input values, between 16 and 512 images."""
    pixels = max(1, math.prod(job.data.shape))
    return max(16, min(512, 2 ** round(math.log2(2**20 / pixels))))


def _seconds_per_look(job: Job, batch: int) -> float:
    """Time of one forward and backward per example, by doing it (the second time, when caches are warm)."""
    x, labels = job.data.fetch(range(min(batch, len(job.data))))
    x = x.to(job.prepared.device, job.prepared.image_dtype)
    queries = Queries(job.prepared.model, job.prepared.dtype)
    best = math.inf
    with preserved_state(job.prepared.model, job.prepared.device):
        for _ in range(2):
            since = time.perf_counter()
            seen = queries.look(x, lambda logits: logits.sum(dim=1))
            (seen.logits if seen.grad is None else seen.grad).sum().item()  # a GPU answers before it is done
            best = min(best, time.perf_counter() - since)
    return best / len(labels)
