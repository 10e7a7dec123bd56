"""What is asked around an evaluation so that its number can be trusted: checks and further draws."""

from __future__ import annotations

__all__ = ["Checks"]

from collections.abc import Callable
from typing import Any

import numpy as np
from torch import Tensor

from tmifpe.checks.attack import check_attack
from tmifpe.checks.model import ModelChecks
from tmifpe.checks.redraw import redraw
from tmifpe.checks.survivors import SecondAttacks, alarms
from tmifpe.checks.units import check_units
from tmifpe.run.evidence.evidence import Evidence, evidence_of
from tmifpe.run.outcomes import Outcomes
from tmifpe.run.result import Flag
from tmifpe.run.shard import Job, ShardResult


class Checks:
    """Flags, forwards and further draws, collected along a run."""

    def __init__(
        self, checks: bool, repeats: int, transfer_adv: Tensor | None, model: ModelChecks, second: SecondAttacks
    ) -> None:
        self.checks, self.repeats, self.transfer_adv, self.model = checks, repeats, transfer_adv, model
        self.second = second
        self.flags: tuple[Flag, ...] = ()
        self.evidence = self.known = Evidence()
        self.notes: tuple[str, ...] = ()
        self.forwards = 0
        self.robust = np.zeros(repeats, dtype=np.int64)

    def recall(self, finished: dict[str, Any] | None) -> None:
        """Reuse the flags of a finished run, as its JSON has them, if the same checks were requested."""
        self.known = evidence_of(finished or {})
        more = self.repeats > 1 or self.transfer_adv is not None
        if finished and self.checks and finished["check_forwards"] and not more and "repeated" not in finished:
            stated = {flag.name for flag in alarms(self.known.spot_check, self.known.from_model)}
            self.flags = tuple(Flag(**flag) for flag in finished["flags"] if flag["name"] not in stated)
            self.evidence = Evidence(self.known.layers)
            self.notes = tuple(finished.get("notes", ()))
            self.forwards = finished["check_forwards"]
            self.checks = False

    def before(self, job: Job) -> None:
        """Look at what was asked for, and at the model."""
        if self.checks:
            self._note((list(check_units(job)), 0))
            treated = job.eot > 1 and self.repeats > 1
            flags, forwards, layers = self.model.flags(job, treated)
            self._note((flags, forwards))
            self.evidence, self.notes = Evidence(layers.found), (layers.note,) if layers.note else ()

    def shard(self, job: Job, result: ShardResult) -> None:
        """Read the points of a finished shard again, if more than one draw is wanted."""
        if self.repeats > 1 and result.adv is not None:
            robust, forwards = redraw(job, result.shard, result.outcomes, result.adv, self.repeats)
            self.robust += robust
            self.forwards += forwards

    def after(self, job: Job, outcomes: Outcomes, tick: Callable[[], None]) -> None:
        """Look at what the attack left standing; `tick` is called at every look of a second attack."""
        if self.checks:
            self._note(check_attack(job, outcomes, self.transfer_adv))
        spot, led = self.second.run(job, outcomes, self.known, tick)
        self.evidence = self.evidence._replace(spot_check=spot, from_model=led)
        self.flags += tuple(alarms(spot, led))

    def repeated(self, n: int) -> tuple[float, ...]:
        """The robust accuracy in each draw."""
        return tuple((self.robust / n).tolist()) if self.repeats > 1 and n else ()

    def _note(self, found: tuple[list[Flag], int]) -> None:
        flags, forwards = found
        self.flags += tuple(flags)
        self.forwards += forwards
