"""What surrounds an evaluation so that its number can be trusted: checks and further draws."""

from __future__ import annotations

__all__ = ["Checks"]

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from tmifpe.checks.advice import Ran, advised
from tmifpe.checks.allowance import Allowance
from tmifpe.checks.attack import check_early_exit, check_survivors
from tmifpe.checks.model import ModelChecks
from tmifpe.checks.redraw import redraw
from tmifpe.checks.survivors import SecondAttacks, alarms
from tmifpe.checks.transfer import check_transfer, try_given
from tmifpe.checks.units import check_units
from tmifpe.run.evidence.evidence import Evidence, evidence_of
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
        self.forwards = 0
        self._robust: dict[int, NDArray[np.int64]] = {}

    def recall(self, finished: dict[str, Any] | None) -> None:
        """Reuse the flags of a finished run, as its JSON has them, if the same checks were requested."""
        self.known = evidence_of(finished or {})
        more = self.repeats > 1 or self.transfer_adv is not None or {"repeated", "transfer"} & set(finished or {})
        if finished and self.checks and finished["check_forwards"] and not more:
            stated = {flag.name for flag in alarms(self.known.spot_check, self.known.from_model)}
            self.flags = tuple(Flag(**flag) for flag in finished["flags"] if flag["name"] not in stated)
            self.cut = tuple(finished.get("checks_cut", ()))
            self.evidence = Evidence(self.known.layers)
            self.notes = tuple(finished.get("notes", ()))
            self.forwards = finished["check_forwards"]
            self.checks = False

    def shard(self, job: Job, result: ShardResult) -> None:
        """Read the points of a finished shard again, if more than one draw is wanted."""
        if self.repeats > 1 and result.adv is not None:
            robust, forwards = redraw(job, result.shard, result.outcomes, result.adv, self.repeats)
            self._robust[result.shard] = robust
            self.forwards += forwards

    def after(self, job: Job, result: Result, tick: Callable[[], None]) -> None:
        """Look at what was asked for, at the model and at what the attack left standing; after it, since what it took
        is what checks may take a share of. Second attacks were asked for by themselves, and take what they need;
        `tick` is called at each of their looks."""
        flags: list[Flag] = []
        if self.checks:
            allowance = Allowance.of(result.tally.forwards, len(result.outcomes))
            treated = job.eot > 1 and self.repeats > 1
            flags += [*check_units(job), *check_early_exit(result)]
            said, layers = self.model.flags(job, result.outcomes, allowance, treated)
            flags += [*said, *check_survivors(job, result.outcomes, allowance)]
            self.evidence, self.notes = Evidence(layers.found), (layers.note,) if layers.note else ()
            self.cut = tuple(allowance.cut)
            self.forwards += allowance.tally.forwards
        if self.transfer_adv is not None:
            self.transferred, forwards = try_given(job, result.outcomes, self.transfer_adv)
            self.forwards += forwards
            flags += check_transfer(self.transferred, result.robust_accuracy) if self.checks else ()
        spot, led = self.second.run(job, result.outcomes, self.known, tick)
        self.evidence = self.evidence._replace(spot_check=spot, from_model=led)
        flags += alarms(spot, led)
        ran = Ran.of(job, self.repeats)
        self.flags += tuple(advised(flag, ran) for flag in flags)

    def repeated(self, n: int) -> tuple[float, ...]:
        """The robust accuracy in each draw."""
        return tuple((np.sum(list(self._robust.values()), axis=0) / n).tolist()) if self.repeats > 1 and n else ()
