"""Projected gradient ascent (eq:pgd) with the paper's schedule and APGD's momentum, and its old special cases."""

from __future__ import annotations

__all__ = ["PGD", "bim", "fgsm", "mim"]

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar, TypedDict

from torch import Tensor

from tmifpe.attacks.ascent import Ascent, AscentState
from tmifpe.attacks.loop.early_exit import linear_gain
from tmifpe.attacks.loop.queries import Objective
from tmifpe.attacks.loop.rows import Problem
from tmifpe.core.errors import InputError, shown
from tmifpe.losses import AnyLoss, get_loss, spelling
from tmifpe.losses.catalogue import spelled_loss

if TYPE_CHECKING:
    from typing_extensions import Unpack


@dataclass(frozen=True)
class PGD(Ascent):
    """Projected gradient ascent on `loss`; the defaults are the paper's protocol.

    u = P(x + a_i d),  x⁺ = P(x + m (u − x) + (1 − m)(x − x₋)), the first step plain; d is the steepest direction.
    The paper gives no formula for its momentum; this one, APGD's, reproduces its numbers.

    `step_size` is the first step in units of eps; `momentum_on="gradient"` accumulates normalised gradients with
    decay `momentum` instead (MI-FGSM); `momentum=0` switches momentum off. `smooth` > 0 lets dead rectifiers pass
    some gradient on at first (`SmoothBackward`): 3 suits all networks that were tried.

    >>> attack = PGD(loss="tmifpe", steps=100)
    >>> attack.budget
    Budget(forwards=101, backwards=100)
    """

    loss: AnyLoss = "tmifpe"  # kept as its canonical text
    steps: int = 100
    restarts: int = 1
    schedule: str = "cosine"
    step_size: float = 2.0
    momentum: float = 0.75
    momentum_on: str = "iterate"
    random_start: bool = True
    smooth: float = 0.0

    name: ClassVar[str] = "pgd"

    def __post_init__(self) -> None:
        self.check_options()
        # The canonical text: one loss, one spelling, one key in the store. A function or class is adopted under one.
        object.__setattr__(self, "loss", spelling(get_loss(self.loss)))
        if not isinstance(self.random_start, bool):
            raise InputError(f"random_start must be true or false, got {shown(self.random_start)}")

    def objective(self, problem: Problem, state: AscentState) -> Objective:  # noqa: ARG002
        loss = spelled_loss(self.loss)
        return lambda logits: loss(logits, problem.labels, problem.targets)

    @property
    def may_stop_early(self) -> bool:
        return self.restarts == 1  # another would begin elsewhere, whatever this one can still reach

    def gain(self, problem: Problem, state: AscentState, grad: Tensor) -> Tensor:
        return linear_gain(problem.norm, grad, state.x, problem.ball, state.region)

    def start(self, problem: Problem, restart: int) -> Tensor:
        if not self.random_start:
            return problem.x.clone()
        return problem.norm.start(problem.ball, problem.seed, problem.indices, problem.stage, restart)


class AscentOptions(TypedDict, total=False):
    """What the special cases below take beside their loss and steps; see `PGD`."""

    restarts: int
    schedule: str
    step_size: float
    momentum: float
    momentum_on: str
    random_start: bool
    smooth: float


def fgsm(loss: AnyLoss = "ce", **options: Unpack[AscentOptions]) -> PGD:
    """One step of size eps from the image itself (Goodfellow et al. 2015)."""
    plain = PGD(loss, steps=1, schedule="constant", step_size=1.0, momentum=0.0, random_start=False)
    return replace(plain, **options)


def bim(loss: AnyLoss = "ce", steps: int = 10, **options: Unpack[AscentOptions]) -> PGD:
    """Small constant steps from the image itself (Kurakin et al. 2017)."""
    return replace(fgsm(loss), **({"steps": steps, "step_size": 1.0 / max(1, steps)} | options))


def mim(loss: AnyLoss = "ce", steps: int = 10, **options: Unpack[AscentOptions]) -> PGD:
    """As `bim`, along an accumulated normalised gradient (Dong et al. 2018)."""
    return replace(bim(loss, steps, momentum=1.0, momentum_on="gradient"), **options)
