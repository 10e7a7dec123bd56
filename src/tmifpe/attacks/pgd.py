"""Projected gradient ascent (eq:pgd) with the paper's schedule and APGD's momentum, and its old special cases."""

from __future__ import annotations

__all__ = ["PGD", "PGDState", "bim", "fgsm", "mim"]

import math
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from tmifpe.attacks.loop import strongest
from tmifpe.attacks.queries import Evaluated, Objective
from tmifpe.attacks.rows import Problem, Rows
from tmifpe.attacks.schedules import get_schedule
from tmifpe.core.errors import InputError
from tmifpe.core.types import Model, Threat
from tmifpe.losses import get_loss
from tmifpe.norms import get_norm


@dataclass
class PGDState(Rows):
    """Changes at every step: the point, the one before, the accumulated gradient, the looks taken so far."""

    x: Tensor
    previous: Tensor
    velocity: Tensor | None
    looks: Tensor


@dataclass(frozen=True)
class PGD:
    """Projected gradient ascent on `loss`; the defaults are the paper's protocol.

    u = P(x + a_i d),  x⁺ = P(x + m (u − x) + (1 − m)(x − x₋)), the first step plain; d is the steepest direction.
    The paper gives no formula for its momentum; this one, APGD's, reproduces its numbers.

    `step_size` is the first step in units of eps; `momentum_on="gradient"` accumulates normalised gradients with
    decay `momentum` instead (MI-FGSM); `momentum=0` switches momentum off.

    >>> attack = PGD(loss="tmifpe", steps=100)
    >>> attack.budget
    101
    """

    loss: str = "tmifpe"
    steps: int = 100
    restarts: int = 1
    schedule: str = "cosine"
    step_size: float = 2.0
    momentum: float = 0.75
    momentum_on: str = "iterate"
    random_start: bool = True

    name: ClassVar[str] = "pgd"

    def __post_init__(self) -> None:
        for field in ("steps", "restarts"):
            value = getattr(self, field)
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise InputError(f"{field} must be a whole number of at least 1, got {value!r}")
        if not (_is_number(self.momentum) and 0 <= self.momentum <= 1):
            raise InputError(f"momentum must lie in [0, 1], got {self.momentum!r}")
        if not (_is_number(self.step_size) and 0 < self.step_size < math.inf):
            raise InputError(f"step_size must be positive (in units of eps), got {self.step_size!r}")
        if self.momentum_on not in ("iterate", "gradient"):
            raise InputError(f"momentum_on must be 'iterate' or 'gradient', got {self.momentum_on!r}")
        get_schedule(self.schedule)
        get_loss(self.loss)

    @property
    def budget(self) -> int:
        """Looks at the model per example: every step, and one more per restart to judge the last point."""
        return self.restarts * (self.steps + 1)

    def init(self, problem: Problem) -> PGDState:
        x = self._start(problem, 0)
        velocity = torch.zeros_like(x) if self.momentum_on == "gradient" else None
        return PGDState(x, x.clone(), velocity, torch.zeros_like(problem.labels))

    def objective(self, problem: Problem, state: PGDState) -> Objective:  # noqa: ARG002
        loss = get_loss(self.loss)
        return lambda logits: loss(logits, problem.labels, problem.targets)

    def step(self, problem: Problem, state: PGDState, evaluated: Evaluated) -> PGDState:
        """One step of every row, each at its own step number."""
        if evaluated.grad is None:  # every row has been judged for the last time
            return replace(state, looks=state.looks + 1)
        norm, threat = get_norm(problem.threat.norm), problem.threat
        number = state.looks % (self.steps + 1)
        share = get_schedule(self.schedule)((number / self.steps).to(state.x.dtype))
        ascent, velocity = self._ascent(state, evaluated.grad, number)
        size = _column(threat.eps * self.step_size * share, state.x)
        moved = norm.project(torch.addcmul(state.x, size, norm.direction(ascent)), problem.x, threat)
        if self.momentum_on == "iterate" and 0 < self.momentum < 1:
            weight = _column(torch.where(number == 0, 1.0, self.momentum).to(state.x.dtype), state.x)
            # x + m (u - x) + (1 - m)(x - x_) as a blend of u and 2x - x_.
            coast = torch.sub(2 * state.x, state.previous)
            moved = norm.project(torch.lerp(coast, moved, weight), problem.x, threat)
        state = PGDState(moved, state.x, velocity, state.looks + 1)
        return self._restarted(problem, state) if self.restarts > 1 else state

    def _ascent(self, state: PGDState, grad: Tensor, number: Tensor) -> tuple[Tensor, Tensor | None]:
        """The vector to climb along, and the accumulated gradient if there is one."""
        if state.velocity is None:
            return grad, None
        # MI-FGSM: normalised by the mean absolute value, so that steps with small gradients count as much.
        size = grad.abs().flatten(1).mean(dim=1)
        unit = grad / _column(torch.where(size > 0, size, 1.0), grad)
        decay = _column(torch.where(number == 0, 0.0, self.momentum).to(grad.dtype), grad)
        velocity = decay * state.velocity + unit
        return velocity, velocity

    def _start(self, problem: Problem, restart: int) -> Tensor:
        if not self.random_start:
            return problem.x.clone()
        norm = get_norm(problem.threat.norm)
        return norm.start(problem.x, problem.threat, problem.seed, problem.indices, problem.stage, restart)

    def _restarted(self, problem: Problem, state: PGDState) -> PGDState:
        """Rows whose restart has been judged begin the next one."""
        restart, number = state.looks // (self.steps + 1), state.looks % (self.steps + 1)
        for k in torch.unique(restart[number == 0]).tolist():
            rows = ((number == 0) & (restart == k)).nonzero()[:, 0]
            state.x[rows] = self._start(problem.take(rows), int(k))
        return state

    def __call__(
        self,
        model: Model,
        x: Tensor,
        labels: Tensor,
        threat: Threat,
        *,
        targets: Tensor | None = None,
        seed: int = 0,
        indices: Tensor | None = None,
        batch_size: int = 256,
    ) -> Tensor:
        """Attack a batch and return, for every example, the strongest point found (largest margin)."""
        return strongest(
            self, model, x, labels, threat, targets=targets, seed=seed, indices=indices, batch_size=batch_size
        )


def fgsm(loss: str = "ce", **options: Any) -> PGD:
    """One step of size eps from the image itself (Goodfellow et al. 2015)."""
    plain = PGD(loss, steps=1, schedule="constant", step_size=1.0, momentum=0.0, random_start=False)
    return replace(plain, **options)


def bim(loss: str = "ce", steps: int = 10, **options: Any) -> PGD:
    """Small constant steps from the image itself (Kurakin et al. 2017)."""
    return replace(fgsm(loss, steps=steps, step_size=1.0 / max(1, steps)), **options)


def mim(loss: str = "ce", steps: int = 10, **options: Any) -> PGD:
    """As `bim`, along an accumulated normalised gradient (Dong et al. 2018)."""
    return replace(bim(loss, steps, momentum=1.0, momentum_on="gradient"), **options)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _column(values: Tensor, like: Tensor) -> Tensor:
    return values.reshape(-1, *([1] * (like.dim() - 1)))
