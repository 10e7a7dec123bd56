"""What is asked around an evaluation so that its number can be trusted: checks, further draws, a second precision."""

from __future__ import annotations

__all__ = ["SECOND_OPINIONS", "Checks", "second_opinion"]

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tmifpe.attacks.queries import Queries
from tmifpe.checks.attack import check_attack
from tmifpe.checks.model import check_model
from tmifpe.checks.redraw import redraw
from tmifpe.core.errors import InputError, ModelError, did_you_mean, first_line
from tmifpe.core.rng import preserved_rng
from tmifpe.core.types import Data, Model
from tmifpe.run.outcomes import Outcomes
from tmifpe.run.prepared_model import PreparedModel, prepare_model
from tmifpe.run.result import Flag
from tmifpe.run.shard import Job, ShardResult

SECOND_OPINIONS = {"fp64": "fp64", "float64": "fp64"}
"""What `verify` may be (`float64` is the spelling of 0.1), and which precision that is."""


class Checks:
    """Flags, forwards and further draws, collected along a run."""

    def __init__(self, checks: bool, repeats: int, transfer_adv: Tensor | None) -> None:
        self.checks, self.repeats, self.transfer_adv = checks, repeats, transfer_adv
        self.flags: tuple[Flag, ...] = ()
        self.forwards = 0
        self.robust = np.zeros(repeats, dtype=np.int64)

    def recall(self, finished: dict[str, Any] | None) -> None:
        """Take over what a finished run found, as its JSON says, if it was asked the same: the model rests then."""
        asked_more = self.repeats > 1 or self.transfer_adv is not None
        if finished and self.checks and finished["check_forwards"] and not asked_more and "repeated" not in finished:
            self.flags = tuple(Flag(**flag) for flag in finished["flags"])
            self.forwards = finished["check_forwards"]
            self.checks = False

    def before(self, job: Job) -> None:
        """Look at the model."""
        if self.checks:
            treated = job.eot > 1 and self.repeats > 1
            self._note(check_model(job, treated))

    def shard(self, job: Job, result: ShardResult) -> None:
        """Read the points of a finished shard again, if more than one draw is wanted."""
        if self.repeats > 1 and result.adv is not None:
            robust, forwards = redraw(job, result.shard, result.outcomes, result.adv, self.repeats)
            self.robust += robust
            self.forwards += forwards

    def after(self, job: Job, outcomes: Outcomes) -> None:
        """Look at what the attack left standing."""
        if self.checks:
            self._note(check_attack(job, outcomes, self.transfer_adv))

    def repeated(self, n: int) -> tuple[float, ...]:
        """The robust accuracy in each draw."""
        return tuple((self.robust / n).tolist()) if self.repeats > 1 and n else ()

    def _note(self, found: tuple[list[Flag], int]) -> None:
        flags, forwards = found
        self.flags += tuple(flags)
        self.forwards += forwards


@contextmanager
def second_opinion(
    model: Model, prepared: PreparedModel, verify: str | None, data: Data
) -> Iterator[PreparedModel | None]:
    """The model in the precision of the second opinion; tried on one image, to fail now and not after the attack."""
    if verify is None:
        yield None
        return
    if verify not in SECOND_OPINIONS:
        raise did_you_mean("second opinion", verify, SECOND_OPINIONS)
    precision = SECOND_OPINIONS[verify]
    if prepared.precision == precision:
        raise InputError(f"the run is in {precision} already: a second opinion in {precision} would be the first again")
    place = torch.device("cpu") if prepared.device.type == "mps" else prepared.device  # Apple's GPUs have no float64
    with prepare_model(model, precision, place) as second:
        x, _ = data.fetch(range(1))
        try:
            with preserved_rng(place):
                Queries(second.model, second.dtype).logits(x.to(place, second.image_dtype))
        except ModelError as error:  # any network may fail in any way on a dtype it was not made for
            reason = first_line(error.__cause__ or error)
            raise InputError(f"the model cannot be read in {precision} for a second opinion: {reason}") from error
        yield second
