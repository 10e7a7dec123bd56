"""A model made ready once, to be attacked many times: what depends on neither attack nor seed is done once."""

from __future__ import annotations

__all__ = ["Prepared", "prepare"]

import hashlib
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from tmifpe.attacks import Attack, attack_spelling
from tmifpe.checks.checks import Checks
from tmifpe.checks.model import ModelChecks
from tmifpe.checks.sample import is_randomised
from tmifpe.core.errors import InputError
from tmifpe.core.extensions import require_identified
from tmifpe.core.rng import preserved_rng
from tmifpe.core.types import Classifier, Data, Model, Threat
from tmifpe.data import as_data, coverage, stratified, subset
from tmifpe.engines import Engine, Local, Parcel, Processes, find_places
from tmifpe.evaluation.total import Total
from tmifpe.models import check_compatible, model_identity
from tmifpe.norms import NORMS
from tmifpe.run.clean import CleanLogits
from tmifpe.run.part import parse_part
from tmifpe.run.plan import make_plan
from tmifpe.run.prepared_model import PreparedModel, prepare_model
from tmifpe.run.recorder import NoRecorder, Recorder
from tmifpe.run.request import Request, require_model, require_threat
from tmifpe.run.result import Progress, Result
from tmifpe.run.second_opinion import second_opinion
from tmifpe.run.shard import Job, ShardFailure
from tmifpe.run.spec import Plan, RunSpec
from tmifpe.store import Store


@contextmanager
def prepare(model: Model | Classifier, data: Any, threat: Threat, request: Request) -> Iterator[Prepared]:
    """The model on its device, the data chosen, the second opinion at hand; given back as it came."""
    classifier = model if isinstance(model, Classifier) else None
    network: Model = classifier.module if classifier is not None else model
    require_model(network)
    require_threat(threat)
    source = _select(as_data(data), request)
    if classifier is not None:
        check_compatible(classifier, source)
    threat = replace(threat, norm=NORMS.canonical(threat.norm))
    with ExitStack() as stack:
        prepared = stack.enter_context(prepare_model(network, request.precision, request.device))
        stack.enter_context(preserved_rng(prepared.device))
        second = stack.enter_context(second_opinion(network, prepared, request.verify, source))
        engine = stack.enter_context(_engine(network, classifier, prepared, request))
        yield Prepared(network, classifier, source, threat, request, prepared, second, engine)


@dataclass
class Prepared:
    """What the runs of one model on the same data and threat share: clean logits, checks of the model, identities."""

    network: Model
    classifier: Classifier | None
    data: Data
    threat: Threat
    request: Request
    model: PreparedModel
    second: PreparedModel | None
    engine: Engine = field(default_factory=Local)
    clean: CleanLogits = field(default_factory=CleanLogits)
    model_checks: ModelChecks = field(default_factory=ModelChecks)

    def share_clean_logits(self) -> None:
        """For several runs: the clean pass happens once, unless the model draws other logits each time."""
        self.clean.shared = not self.randomised

    def run(
        self,
        attack: Attack,
        *,
        seed: int | None = None,
        recorder: Recorder | None = None,
        progress: Callable[[Progress], None] | None = None,
    ) -> Result:
        """One attack, with the seed and the progress of the request unless others are given."""
        request = self.request
        seed = request.seed if seed is None else seed
        attack.check(self.threat, targeted=request.targets is not None, eot=request.eot)
        plan = make_plan(len(self.data), self.data.shape, attack, request.batch_size, request.shard_size)
        if recorder is None and request.store is not None:
            keeper = Store(_folder(request)) if isinstance(request.store, str | Path) else request.store
            recorder = keeper.recorder(request.fresh)
        spec = self._spec(attack, seed)
        if recorder is not None:
            spec = self._identified(spec, plan, recorder)
        job = Job(
            self.model,
            self.data,
            self.threat,
            attack,
            request.targets,
            request.mode,
            seed,
            eot=request.eot,
            second=self.second,
            clean=self.clean,
        )
        return self._run(spec, job, plan, recorder or NoRecorder(), progress or request.progress)

    @cached_property
    def randomised(self) -> bool:
        """Whether the same images give other logits the second time."""
        return is_randomised(self.model, self.data)

    def _run(
        self, spec: RunSpec, job: Job, cut: Plan, recorder: Recorder, progress: Callable[[Progress], None]
    ) -> Result:
        request, began = self.request, time.perf_counter()
        try:
            plan = recorder.begin(spec, cut, str(job.prepared.device))
            job = replace(job, batch_size=plan.batch_size, keeps_batches=bool(spec.cut))
            total = Total(plan, request.keep_adv, progress)
            checks = Checks(request.checks, request.repeats, request.transfer_adv, self.model_checks)
            checks.recall(recorder.finished())
            checks.before(job)
            for recalled in recorder.recall(request.keep_adv or request.repeats > 1):
                total.add(recalled)
                checks.shard(job, recalled)
            resumed, earlier = total.done, total.seconds
            part = parse_part(request.shard) if request.shard is not None else None
            for result in self.engine.map(job, plan, total.missing(part), total.tick):
                if isinstance(result, ShardFailure):
                    recorder.fail(result)
                    total.failures.append(result)
                    continue
                recorder.save(result)
                total.add(result)
                checks.shard(job, result)
            missing = sum(len(plan.positions(shard)) for shard in total.missing(part))
            if not missing and part is None and not total.outcomes.counted.any():
                raise InputError(
                    "every example is labelled or predicted as its target already; there is nothing to attack"
                )
            seconds = time.perf_counter() - began + earlier
            adv = total.joined_adv()
            notes = (*self._notes(), *sorted(total.notes))
            found = Result(
                spec,
                plan,
                total.found(),
                total.tally,
                seconds,
                resumed,
                adv=adv,
                notes=notes,
                missing=missing,
                failures=tuple(sorted(total.failures, key=lambda failure: failure.shard)),
                part=str(part or ""),
            )
            checks.after(job, total.outcomes)
            found = replace(
                found, flags=checks.flags, check_forwards=checks.forwards, repeated=checks.repeated(found.n)
            )
            if not total.missing():
                recorder.end(found)
            return found
        finally:
            recorder.close()

    def _notes(self) -> Iterator[str]:
        if self.classifier is not None:
            yield from self.classifier.notes
        if said := coverage(self.data):
            yield said

    def _spec(self, attack: Attack, seed: int) -> RunSpec:
        request, data = self.request, self.data
        targets = request.targets
        if isinstance(targets, Tensor):
            targets = "given:" + _digest(targets)
        return RunSpec(
            model=request.name or (self.classifier.name if self.classifier else type(self.network).__name__),
            model_identity=self.classifier.identity if self.classifier else "",
            data=data.name,
            data_identity="",
            threat=self.threat,
            attacks=tuple(attack_spelling(stage) for stage in attack.stages),
            targets="none" if targets is None else str(targets),
            mode=request.mode,
            seed=seed,
            precision=self.model.precision,
            eot=request.eot,
            verify=request.verify or "none",
            subset=self._subset,
            n=len(data),
            total=getattr(data, "total", len(data)),
        )

    def _identified(self, spec: RunSpec, plan: Plan, recorder: Recorder) -> RunSpec:
        """With what tells this run apart from others: needed only to store, and costs a pass over model and data."""
        require_identified(*spec.attacks, spec.threat.norm)
        spec = replace(spec, model_identity=self._model_identity, data_identity=self.data.identity)
        return recorder.settled(spec, plan) or replace(spec, cut=plan.cut if self.randomised else "")

    @cached_property
    def _subset(self) -> str:
        return _digest(torch.as_tensor(list(self.data.indices)))

    @cached_property
    def _model_identity(self) -> str:
        # What a source said of its file, and the tensors as they are now: they may have been changed since.
        said = self.classifier.identity if self.classifier else self.request.name
        parts = [said] if said else []
        if self.classifier and said and not isinstance(self.network, nn.Module):
            return said
        identity = model_identity(self.network, parts)
        if identity is None:
            raise InputError(
                "a function cannot be told apart from others like it; give it a name= to store its runs (on the "
                "command line: let the factory return an nn.Module, or say --no-store)"
            )
        return identity


def _engine(
    network: Model, classifier: Classifier | None, prepared: PreparedModel, request: Request
) -> AbstractContextManager[Engine]:
    if request.workers is None:
        return nullcontext(Local())
    parcel = Parcel.of(network, classifier, prepared, request.verify)
    places = find_places(request.workers, prepared.device)
    return Processes(parcel, places, request.retries, request.shard_timeout)


def _folder(request: Request) -> Path:
    """Of the store. An array job has its own within it: one database must not be written from several machines."""
    folder = Path(str(request.store))
    return folder / parse_part(request.shard).folder if request.shard is not None else folder


def _select(data: Data, request: Request) -> Data:
    if request.indices is not None:
        data = subset(data, request.indices)
    if request.limit is not None and request.limit < len(data):
        data = subset(data, range(request.limit))
    if request.sample is not None:
        data = stratified(data, request.sample)
    if isinstance(request.targets, Tensor) and request.targets.shape != (len(data),):
        raise InputError(f"targets must be {len(data)} classes, one per example, got {tuple(request.targets.shape)}")
    given = request.transfer_adv
    if given is not None and not isinstance(given, Tensor):
        raise InputError(f"transfer_adv must be a tensor of images, got {type(given).__name__}")
    if given is not None and given.shape != (len(data), *data.shape):
        raise InputError(f"transfer_adv must be of shape {(len(data), *data.shape)}, got {tuple(given.shape)}")
    return data


def _digest(numbers: Tensor) -> str:
    return hashlib.sha256(numbers.to(torch.int64).cpu().numpy().tobytes()).hexdigest()[:16]
