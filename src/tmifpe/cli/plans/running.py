"""Running a plan: what runs share is loaded once, failures stay with the run that fails, and the store continues."""

from __future__ import annotations

__all__ = ["PlanRow", "run_all"]

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from tmifpe.cli.options import AttackOptions, EngineOptions
from tmifpe.cli.plans.file import GATES, PlannedRun
from tmifpe.core.errors import InputError, first_line

if TYPE_CHECKING:
    from tmifpe.report.gates import Gates
    from tmifpe.run.result import Result
    from tmifpe.run.shown.progress import Progress


@dataclass(frozen=True)
class PlanRow:
    """What became of a planned run: a result, complete or not, or the reason why there is none."""

    run: PlannedRun
    result: Result | None = None
    error: str = ""
    refused: bool = False
    """Whether the plan asked for what cannot work, as against a run that failed on its way."""

    @property
    def state(self) -> str:
        if self.result is None:
            return "failed"
        return "incomplete" if self.result.missing else "done"

    @property
    def gates(self) -> Gates:
        """What the plan asks of the accuracies."""
        from tmifpe.report.gates import Gates

        return Gates(self.run.fail_below, self.run.fail_below_clean, self.run.fail_below_lower)

    @property
    def missed(self) -> list[str]:
        """In which way it is below what the plan asks for; never said of a part."""
        found = self.result
        if found is None or not found.complete or found.part:
            return []
        return [case.said for case in self.gates.missed(found)]

    @property
    def flagged(self) -> bool:
        return self.run.trust.strict and self.result is not None and bool(self.result.flags)

    def to_json(self) -> dict[str, Any]:
        plain: dict[str, Any] = {"name": self.run.name, "state": self.state}
        plain |= {gate: getattr(self.run, gate) for gate in GATES}
        plain |= {"missed": bool(self.missed), "error": self.error or None}
        return plain | (self.result.to_json() if self.result is not None else {})


def run_all(
    runs: list[PlannedRun],
    store: str | None,
    fresh: bool,
    engine: EngineOptions,
    progress: Callable[[PlannedRun, Progress | None], None],
) -> list[PlanRow]:
    """A row per run, in the order of the plan; `progress(run, None)` says that a run is over."""
    rows: dict[str, PlanRow] = {}
    groups: dict[str, list[PlannedRun]] = {}
    for run in runs:
        groups.setdefault(_shared(run), []).append(run)
    with _cluster(engine):
        for group in groups.values():
            for row in _run_group(group, store, fresh, engine, progress):
                rows[row.run.name] = row
                progress(row.run, None)
    return [rows[run.name] for run in runs]


def _cluster(options: EngineOptions) -> AbstractContextManager[object]:
    """Ray, connected once for all runs of the plan, if they run on it."""
    from tmifpe.cli import parse
    from tmifpe.engines import ray_cluster
    from tmifpe.run.request import Request, split_engine

    request = Request.of(parse.engine_from(options))
    name, address = split_engine(request.engine)
    if name != "ray":
        return nullcontext()
    return ray_cluster(address, request.workers if isinstance(request.workers, int) else None)


def _shared(run: PlannedRun) -> str:
    """What a model is prepared for: everything but the attack and the seed."""
    plain = AttackOptions()
    own = {name: getattr(plain, name) for name in ("steps", "restarts", "schedule", "momentum", "seed")}
    kept = run.certify, run.save_adv is not None
    return repr((run.source, replace(run.how, **own), replace(run.trust, strict=False), kept))


def _run_group(
    group: list[PlannedRun],
    store: str | None,
    fresh: bool,
    engine: EngineOptions,
    progress: Callable[[PlannedRun, Progress | None], None],
) -> Iterator[PlanRow]:
    from tmifpe.cli import parse
    from tmifpe.cli.attack import attack_from
    from tmifpe.evaluation.prepare import prepare
    from tmifpe.run.request import Request

    first, left = group[0], list(group)
    try:
        classifier, data, device = parse.load_sources(first.source)
        options = parse.request_from(first.how, data) | parse.checks_from(first.trust, data, device)
        options |= parse.engine_from(engine) | {"device": device, "store": store, "fresh": fresh}
        options |= {"certify": first.certify, "keep_adv": first.save_adv is not None}
        threat = parse.threat_from(first.how, first.source.box)
        with prepare(classifier, data, threat, Request.of(options)) as prepared:
            if len(group) > 1:
                prepared.share_clean_logits()
            while left:
                run = left.pop(0)
                attack = attack_from(run.how, run.attack, run.loss)
                try:
                    found = prepared.run(attack, seed=run.how.seed, progress=lambda step, run=run: progress(run, step))
                    if run.save_adv is not None:
                        found = _saved(found, run.save_adv)
                    yield PlanRow(run, found)
                except (InputError, MemoryError, RuntimeError) as error:
                    yield PlanRow(run, error=_said(error), refused=isinstance(error, InputError))
    except (InputError, MemoryError, RuntimeError) as error:  # of the model or the data: no run of the group can be
        for run in left:
            yield PlanRow(run, error=_said(error), refused=isinstance(error, InputError))


def _saved(result: Result, path: str) -> Result:
    """The result without its adversarial examples, which are in a file now."""
    from tmifpe.cli import parse
    from tmifpe.cli.console import wrote
    from tmifpe.store.adversarial import adv_file, check_ending

    if result.adv is not None:  # a part may have no shard
        parse.write_file(path, adv_file(result, check_ending(path)))
        wrote(path)
    return replace(result, adv=None)


def _said(error: BaseException) -> str:
    return str(error) if isinstance(error, InputError) else f"{type(error).__name__}: {first_line(error)}"
