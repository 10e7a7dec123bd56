"""What surrounds an evaluation so that its number can be trusted: checks and further draws."""

from __future__ import annotations

__all__ = ["Checks"]

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from tmifpe.attacks import is_full, quick
from tmifpe.attacks.loop.queries import Tally
from tmifpe.checks.advice import Ran, advised
from tmifpe.checks.allowance import Allowance
from tmifpe.checks.attack import check_early_exit, check_survivors
from tmifpe.checks.flags import MISLEADING, flag
from tmifpe.checks.model import ModelChecks
from tmifpe.checks.redraw import redraw
from tmifpe.checks.repairs.repairs import Repairs, probe, repair
from tmifpe.checks.survivors import SecondAttacks, alarms
from tmifpe.checks.transfer import check_transfer, try_given
from tmifpe.checks.units import check_units
from tmifpe.run.evidence.evidence import Evidence, evidence_of
from tmifpe.run.evidence.repair import Repair, repaired
from tmifpe.run.outcomes import Outcomes
from tmifpe.run.result import Flag, Result
from tmifpe.run.shard import Job, ShardResult
from tmifpe.run.verify import Transferred


class Checks:
    """Flags, forwards and further draws, collected along a run."""

    def __init__(
        self, checks: bool, repeats: int, transfer_adv: Tensor | None, model: ModelChecks, second: SecondAttacks
    ) -> None:
        self.checks, self.repeats, self.transfer_adv, self.model = checks, repeats, transfer_adv, model
        self.second = second
        self.flags: tuple[Flag, ...] = ()
        self.cut: tuple[str, ...] = ()
        self.transferred: Transferred | None = None
        self.evidence = self.known = Evidence()
        self.notes: tuple[str, ...] = ()
        self.tally, self.seconds = Tally(), 0.0
        self.repairs = Repairs()
        self._robust: dict[int, NDArray[np.int64]] = {}

    def recall(self, finished: dict[str, Any] | None, points: Mapping[int, Tensor]) -> None:
        """Reuse the flags of a finished run, as its JSON has them, if the same checks were requested; and in any case
        what its repairs found, at these points."""
        self.known = evidence_of(finished or {})
        self.repairs = Repairs([Repair.from_json(one) for one in (finished or {}).get("repairs", ())], dict(points))
        more = self.repeats > 1 or self.transfer_adv is not None or {"repeated", "transfer"} & set(finished or {})
        if finished and self.checks and finished["check_forwards"] and not more:
            stated = {flag.name for flag in alarms(self.known.spot_check, self.known.from_model)}
            self.flags = tuple(Flag(**flag) for flag in finished["flags"] if flag["name"] not in stated)
            self.cut = tuple(finished.get("checks_cut", ()))
            self.evidence = Evidence(self.known.layers)
            self.notes = tuple(finished.get("notes", ()))
            self.tally = Tally(finished["check_forwards"], finished.get("check_backwards", 0))
            self.seconds = float(finished.get("check_seconds", 0.0))
            self.checks = False

    def shard(self, job: Job, result: ShardResult) -> None:
        """Read the points of a finished shard again, if more than one draw is wanted."""
        if self.repeats > 1 and result.adv is not None:
            robust, forwards = redraw(job, result.shard, result.outcomes, result.adv, self.repeats)
            self._robust[result.shard] = robust
            self.tally.forwards += forwards

    def after(self, job: Job, result: Result, tick: Callable[[], None]) -> Result:
        """Look at what was asked for, at the model and at what the attack left standing; after it, since what it took
        is what checks may take a share of. Where `full` was misled it goes on by other means (`Repairs`). Second
        attacks were asked for by themselves, and take what they need; `tick` is called at each of their looks."""
        began = time.perf_counter()
        flags = self._checked(job, result, tick) if self.checks else []
        self.seconds += time.perf_counter() - began
        outcomes = repaired(result.outcomes, self.repairs.done, len(job.attack.stages), job.threat.eps)
        result = replace(result, outcomes=outcomes, repairs=tuple(self.repairs.done), adv=self._points(result.adv))
        if self.transfer_adv is not None:
            self.transferred, forwards = try_given(job, outcomes, self.transfer_adv)
            self.tally.forwards += forwards
            flags += check_transfer(self.transferred, result.robust_accuracy) if self.checks else ()
        spot, led = self.second.run(job, outcomes, self.known, tick)
        self.evidence = self.evidence._replace(spot_check=spot, from_model=led)
        flags += alarms(spot, led)
        ran = Ran.of(job, self.repeats)
        self.flags += tuple(advised(flag, ran) for flag in flags)
        found = replace(result, flags=self.flags, checks_cut=self.cut, check_seconds=self.seconds)
        return replace(found, **self.evidence._asdict())

    def _checked(self, job: Job, result: Result, tick: Callable[[], None]) -> list[Flag]:
        outcomes, mends = result.outcomes, is_full(job.attack) and self.repeats == 1
        named = is_full(job.attack) or job.attack == quick()  # whose cost is promised
        allowance = Allowance.of(result.tally, 0 if named else math.prod(job.data.shape), is_full(job.attack))
        treated = job.eot > 1 and self.repeats > 1
        said, layers = self.model.flags(job, outcomes, allowance, treated)
        flags = [*check_units(job), *check_early_exit(result), *said]
        found = Repairs()
        if job.attack.needs_gradient and not treated and not any(one.name == "randomised" for one in flags):
            flags += _probed(job, outcomes, allowance, found)
        flags += check_survivors(job, outcomes, allowance)
        if mends and any(one.name in MISLEADING for one in flags):
            repair(job, outcomes, layers, found, tick)
        if mends and found.done:
            self.repairs = found
            first = next((one for one in flags if one.name in MISLEADING), None)
            flags = [replace(one, seen=f"{one.seen} {found}") if one is first else one for one in flags]
        self.evidence, self.notes = Evidence(layers.found), (layers.note,) if layers.note else ()
        self.cut = tuple(allowance.cut)
        self.tally = self.tally + allowance.tally
        return flags

    def _points(self, adv: Tensor | None) -> Tensor | None:
        """The adversarial examples with those of the repairs."""
        if adv is None or not self.repairs.points:
            return adv
        adv = adv.clone()
        for position, point in self.repairs.points.items():
            adv[position] = point.to(adv)
        return adv

    def repeated(self, n: int) -> tuple[float, ...]:
        """The robust accuracy in each draw."""
        return tuple((np.sum(list(self._robust.values()), axis=0) / n).tolist()) if self.repeats > 1 and n else ()


def _probed(job: Job, outcomes: Outcomes, allowance: Allowance, found: Repairs) -> list[Flag]:
    """A flag if a few queries without gradients do what the attack did not; one lucky find means nothing."""
    broken = probe(job, outcomes, allowance, found)
    if broken < 2:
        return []
    seen = f"Square with few queries broke {broken} of the {found.done[0].examples} survivors nearest to the boundary."
    advice = None if is_full(job.attack) else 'The number is too high: run the default, `attack="full"`.'
    return [flag("black-box-beats-white-box", seen, advice)]
