"""A model made ready once, to be attacked many times: what depends on neither attack nor seed is done once."""

from __future__ import annotations

__all__ = ["Prepared", "prepare"]

import hashlib
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from tmifpe.attacks import Attack, attack_spelling
from tmifpe.attacks.loop.queries import Tally
from tmifpe.attacks.sequence import fitting
from tmifpe.certificates.certifier import METHOD, Certifier
from tmifpe.checks.checks import Checks
from tmifpe.checks.model import ModelChecks
from tmifpe.checks.sample import is_randomised
from tmifpe.checks.survivors import SecondAttacks, Source, led_stages
from tmifpe.core.errors import InputError
from tmifpe.core.extensions import is_external, require_identified
from tmifpe.core.rng import preserved_rng
from tmifpe.core.types import Classifier, Data, Model, Threat
from tmifpe.data import as_data, coverage, in_box, stratified, subset
from tmifpe.engines import Engine, Local, Parcel, Processes, RayActors, find_places
from tmifpe.evaluation.passed_modules import passed_modules
from tmifpe.evaluation.source_model import source_model
from tmifpe.evaluation.total import Total
from tmifpe.models import check_compatible, model_identity, whole_steps
from tmifpe.models.check import resizing_note
from tmifpe.norms import NORMS
from tmifpe.run.bar import AnyProgress, reported
from tmifpe.run.clean import CleanLogits
from tmifpe.run.cut.part import RunPart, parse_part
from tmifpe.run.cut.plan import make_plan
from tmifpe.run.evidence.spot_check import as_spot_check
from tmifpe.run.prepared_model import PreparedModel, prepare_model
from tmifpe.run.recorder import NoRecorder, Recorder
from tmifpe.run.request import Request, require_model, require_threat, split_engine
from tmifpe.run.resolve import resolve_attack
from tmifpe.run.result import Result
from tmifpe.run.second_opinion import second_opinion
from tmifpe.run.shard import Job, ShardFailure
from tmifpe.run.shown.progress import Progress, budget_of
from tmifpe.run.shown.sheets import stage_name
from tmifpe.run.spec import FailedExits, Plan, RunSpec
from tmifpe.run.tune.choose import choose
from tmifpe.run.tune.executor import tuned, using_threads
from tmifpe.run.tune.tuning import Tuning
from tmifpe.store import Store


@contextmanager
def prepare(model: Model | Classifier, data: Any, threat: Threat, request: Request) -> Iterator[Prepared]:
    """The model on its device, the data selected, the second opinion ready; the model is restored afterwards."""
    classifier = model if isinstance(model, Classifier) else None
    network: Model = classifier.module if classifier is not None else model
    require_model(network)
    require_threat(threat)
    if (largest := max(request.smaller_radii, default=0.0)) > threat.eps:
        raise InputError(f"radii must not be larger than eps {threat.eps:g}, got {largest:g}")
    with ExitStack() as stack:
        stack.enter_context(preserved_rng())  # data may draw, too
        source = _select(in_box(as_data(data), threat.box), request)
        if classifier is not None:
            check_compatible(classifier, source, threat.box)
        threat = replace(threat, norm=NORMS.canonical(threat.norm))
        notes: tuple[str, ...] = ()
        if classifier is not None and classifier.takes_bytes:
            threat, notes = whole_steps(threat)
        prepared = stack.enter_context(prepare_model(network, request.precision, request.device))
        prepared = replace(prepared, straight_through=passed_modules(prepared, request.straight_through, source))
        second = stack.enter_context(second_opinion(network, prepared, request.verify, source))
        if request.certify:
            _try_certificate(prepared, source, threat)
        led = stack.enter_context(source_model(request.from_model, prepared, source))
        engine = stack.enter_context(_engine(network, classifier, prepared, request))
        yield Prepared(network, classifier, source, threat, request, prepared, second, notes, led, engine)


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
    notes: tuple[str, ...] = ()
    """Remarks on what was asked for."""
    source: Source | None = None
    engine: Engine = field(default_factory=Local)
    clean: CleanLogits = field(default_factory=CleanLogits)
    model_checks: ModelChecks = field(default_factory=ModelChecks)
    tuning: Tuning | None = None
    """What was chosen for an earlier run."""

    def share_clean_logits(self) -> None:
        """For several runs: the clean pass happens once, unless the model is randomised."""
        self.clean.shared = not self.randomised

    def run(
        self,
        attack: Attack,
        *,
        seed: int | None = None,
        recorder: Recorder | None = None,
        progress: AnyProgress = None,
        title: str | None = None,
    ) -> Result:
        """One attack, with the seed and the progress of the request unless others are given."""
        request = self.request
        seed = request.seed if seed is None else seed
        attack, skipped = fitting(attack, self.threat, targeted=request.targets is not None, eot=request.eot)
        after = self._second_attacks(attack)
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
            certify=request.certify,
            radii=self.radii,
            clean=self.clean,
            stops_early=request.early_exit,
        )
        with reported(progress or request.progress, title or spec.model) as told:
            found = self._run(spec, job, plan, recorder or NoRecorder(), told, after)
        return replace(found, notes=(*skipped, *found.notes))

    @cached_property
    def radii(self) -> tuple[float, ...]:
        """The radii to attack in turn, eps last; empty if there is no other."""
        smaller = self.request.smaller_radii
        if self.classifier is not None and self.classifier.takes_bytes:
            smaller = tuple(whole_steps(replace(self.threat, eps=radius))[0].eps for radius in smaller)
        several = tuple(sorted({*smaller, self.threat.eps}))
        return several if len(several) > 1 else ()

    @cached_property
    def randomised(self) -> bool:
        """Whether the same images give different logits the second time."""
        return is_randomised(self.model, self.data)

    def _second_attacks(self, attack: Attack) -> SecondAttacks:
        """What is asked of the survivors; what cannot work fails before any compute."""
        request = self.request
        if self.source is not None and not led_stages(attack):
            raise InputError("from_model leads attacks that follow a gradient step by step, and this one does not")
        asked = as_spot_check(request.spot_check)
        if asked is None:
            return SecondAttacks(source=self.source)
        count, text = asked
        try:
            targeted = request.targets is not None
            stronger, _ = fitting(resolve_attack(text), self.threat, targeted=targeted, eot=request.eot)
        except InputError as error:
            raise InputError(f"the spot check cannot be done by {text}: {error}") from error
        return SecondAttacks(count, stronger, self.source)

    def _run(
        self,
        spec: RunSpec,
        job: Job,
        cut: Plan,
        recorder: Recorder,
        progress: Callable[[Progress], None],
        after: SecondAttacks,
    ) -> Result:
        request, began = self.request, time.perf_counter()
        try:
            plan = recorder.begin(spec, cut, str(job.prepared.device))
            job = replace(job, batch_size=plan.batch_size, keeps_batches=bool(spec.cut))
            names = tuple(map(stage_name, spec.attacks))
            total = Total(plan, request.keep_adv, progress, names, budget_of(job))
            checks = Checks(request.checks, request.repeats, request.transfer_adv, self.model_checks, after)
            checks.recall(recorder.finished(), recorder.points())
            for recalled in recorder.recall(request.keep_adv or request.repeats > 1):
                total.add(recalled)
                checks.shard(job, recalled)
            resumed, earlier = total.done, total.seconds
            part = parse_part(request.shard) if request.shard is not None else None
            total.expect(total.missing(part))
            if not total.shards and (chosen := self._chosen(job, plan)) is not None:
                plan = replace(plan, tuning=chosen)
                recorder.replan(plan)
            job = self._as_planned(job, plan)
            if plan.failed_exits is None:
                self._compute(job, plan, total, part, recorder, checks)
                plan = self._judge_exits(plan, total, recorder)
            if (failed := plan.failed_exits) is not None:  # now, or before this run was resumed
                again = total.stopped_early()
                recorder.discard(again)
                total.discard(again)
                total.thrown_away = Tally(failed.forwards, failed.backwards)
                total.expect(total.missing(part))
                self._compute(replace(job, stops_early=False), plan, total, part, recorder, checks)
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
                stages=tuple(total.stages),
                notes=notes,
                missing=missing,
                failures=tuple(sorted(total.failures, key=lambda failure: failure.shard)),
                part=str(part or ""),
            )
            if not total.missing():  # a part cannot be judged by itself: what is checked and stated is the whole run
                if request.checks:
                    total.show("checks")
                found = checks.after(job, found, partial(total.show, "checks"))
                if checks.repairs.points:
                    recorder.keep(checks.repairs.points)
            given = checks.transferred
            files, class_names = self._names(total)
            found = replace(
                found,
                check_forwards=checks.tally.forwards,
                check_backwards=checks.tally.backwards,
                transferred=given,
                notes=tuple(dict.fromkeys((*notes, *checks.notes, *(given.remarks(self.threat) if given else ())))),
                repeated=checks.repeated(found.n),
                files=files,
                class_names=class_names,
                key=recorder.key(),
            )
            if not total.missing():
                recorder.end(found)
            return found
        finally:
            recorder.close()

    def _compute(
        self, job: Job, plan: Plan, total: Total, part: RunPart | None, recorder: Recorder, checks: Checks
    ) -> None:
        """The shards that are missing."""
        with using_threads(job.tuning.threads if job.tuning and isinstance(self.engine, Local) else None):
            for result in self.engine.map(job, plan, total.missing(part), total.tick, len(total.shards)):
                if isinstance(result, ShardFailure):
                    recorder.fail(result)
                    total.failures.append(result)
                    continue
                recorder.save(result)
                total.add(result)
                checks.shard(job, result)

    @staticmethod
    def _judge_exits(plan: Plan, total: Total, recorder: Recorder) -> Plan:
        """Once all shards are there: with the reason why early exit is off for this run, if it was wrong for one of the
        examples that were checked. Not before, so that engine and order do not matter."""
        checked, wrong = total.exits()
        if total.missing() or not wrong:
            return plan
        lost = sum((total.tallies[shard] for shard in total.stopped_early()), Tally())
        failed = replace(plan, failed_exits=FailedExits(checked, wrong, lost.forwards, lost.backwards))
        recorder.replan(failed)
        return failed

    def _chosen(self, job: Job, plan: Plan) -> Tuning | None:
        """How to run the model, unless that is known. An array job measures nothing: its sisters would choose anew."""
        mode = str(self.request.tune)
        if plan.tuning is not None or mode == "off":
            return None
        if self.tuning is None:
            chosen, here = None, isinstance(self.engine, Local)
            if mode == "full" or self.request.shard is None:
                grows = self.request.batch_size is None and not job.keeps_batches
                chosen = choose(self.model, self.data, plan, job.attack, mode, here=here, grows=grows)
            self.tuning = chosen or Tuning()
        return self.tuning

    def _as_planned(self, job: Job, plan: Plan) -> Job:
        """With the copy of the model that the attack follows, and its batches."""
        tuning = plan.tuning
        if tuning is None:
            return job
        if is_external(attack_spelling(job.attack)):  # chosen for another column, whose code may run in several threads
            tuning = replace(tuning, parts=None, threads=None)
        size = tuning.batch_size if tuning.batch_size is not None and not job.keeps_batches else job.batch_size
        return replace(job, prepared=tuned(self.model, tuning), tuning=tuning, batch_size=size)

    def _names(self, total: Total) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """What the data calls its examples that are there and its classes, where it has names for them."""
        files = getattr(self.data, "files", None) or ()
        return tuple(files[row] for row in total.rows()) if files else (), tuple(getattr(self.data, "class_names", ()))

    def _notes(self) -> Iterator[str]:
        yield from (*self.notes, *self.model.notes)
        if self.classifier is not None:
            yield from self.classifier.notes
            yield from resizing_note(self.classifier, self.data.shape)
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
            model_options=self.classifier.options if self.classifier else (),
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
            certify=METHOD if request.certify else "none",
            subset=self._subset,
            n=len(data),
            total=getattr(data, "total", len(data)),
            straight_through=self.model.straight_through,
            radii=self.radii,
            early_exit=request.early_exit,
            tune=str(request.tune),
        )

    def _identified(self, spec: RunSpec, plan: Plan, recorder: Recorder) -> RunSpec:
        """With the identities of model and data: needed only for storing, and costs a pass over both."""
        require_identified(*spec.attacks, spec.threat.norm)
        spec = replace(spec, model_identity=self.model_identity, data_identity=self.data.identity)
        return recorder.settled(spec, plan) or replace(spec, cut=plan.cut if self.randomised else "")

    @cached_property
    def _subset(self) -> str:
        # Not by way of a list, which for a million examples takes more memory than all their outcomes.
        return _digest(torch.from_numpy(np.fromiter(self.data.indices, np.int64, len(self.data))))

    @cached_property
    def model_identity(self) -> str:
        # What a source said of its file, and the tensors as they are now: they may have been changed since.
        said = self.classifier.identity if self.classifier else self.request.name
        parts = [said] if said else []
        if self.classifier and said and not isinstance(self.network, nn.Module):
            return said
        identity = model_identity(self.network, parts)
        if identity is None:
            raise InputError(
                "a function cannot be told apart from others like it; to store its runs give it a name=, or make it an "
                "nn.Module"
            )
        return identity


def _try_certificate(prepared: PreparedModel, data: Data, threat: Threat) -> None:
    """On one image: a model without known bounds fails now and not after the attack."""
    x, labels = (values.to(prepared.device) for values in data.fetch(range(1)))
    x = x.to(prepared.dtype)
    Certifier.of(prepared.model, x, threat).margin_bounds(x, labels, torch.zeros(1, device=prepared.device))


def _engine(
    network: Model, classifier: Classifier | None, prepared: PreparedModel, request: Request
) -> AbstractContextManager[Engine]:
    name, address = split_engine(request.engine)
    if name == "local" or (not name and request.workers is None):
        return nullcontext(Local())
    parcel, workers = Parcel.of(network, classifier, prepared, request.verify), request.workers or "auto"
    if name == "ray":
        return RayActors(parcel, workers, address, request.retries, request.shard_timeout)
    places = find_places(workers, prepared.device)
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
