"""Targeted ascent on one class after another: what an untargeted loss, which follows one rival, may never try."""

from __future__ import annotations

__all__ = ["MultiTargeted"]

from dataclasses import dataclass, fields
from typing import ClassVar

import torch
from torch import Tensor

from tmifpe.attacks.ascent import Ascent, AscentState
from tmifpe.attacks.attack import Budget
from tmifpe.attacks.loop import Loop, Verdicts
from tmifpe.attacks.loop.queries import Objective, Queries
from tmifpe.attacks.loop.rows import Problem
from tmifpe.core.errors import InputError
from tmifpe.core.numbers import whole_number
from tmifpe.core.types import Threat
from tmifpe.losses import AnyLoss, get_loss, spelling
from tmifpe.losses.catalogue import spelled_loss

_CONJUGATE = {"linf": 1.0, "l2": 2.0, "l1": torch.inf}


@dataclass
class Ranked(Problem):
    """A problem with the classes of each row in the order in which they are tried (n, k)."""

    order: Tensor = None  # pyright: ignore[reportAssignmentType]


@dataclass(frozen=True)
class MultiTargeted(Ascent):
    """`targets` times `steps` of targeted ascent on `loss`, each towards another class; any wrong class is a success.

    The order is that of MALT (Melamed et al. 2024): by (z_y - z_c)/‖∇(z_c - z_y)‖*, the distance to class c if the
    model were linear, for the `candidates` classes with the largest logits; they cost a forward and a backward pass
    each. `candidates=0` takes the order of the logits. Fewer classes than targets begin again, from another start.

    >>> MultiTargeted(targets=2, steps=10, candidates=0).budget
    Budget(forwards=23, backwards=21)
    """

    loss: AnyLoss = "tmifpe"  # kept as its canonical text
    targets: int = 9
    candidates: int = 20
    steps: int = 100
    schedule: str = "cosine"
    step_size: float = 2.0
    momentum: float = 0.75
    momentum_on: str = "iterate"
    smooth: float = 0.0

    name: ClassVar[str] = "multi-targeted"
    reads_clean: ClassVar[bool] = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "targets", whole_number("targets", self.targets))
        object.__setattr__(self, "candidates", whole_number("candidates", self.candidates, least=0))
        self.check_options()
        object.__setattr__(self, "loss", spelling(get_loss(self.loss)))

    @property
    def restarts(self) -> int:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.targets

    @property
    def budget(self) -> Budget:
        forwards, backwards = super().budget
        return Budget(forwards + self.candidates, backwards + self.candidates)

    def check(self, threat: Threat, *, targeted: bool = False, eot: int = 1) -> None:
        super().check(threat, targeted=targeted, eot=eot)
        if targeted:
            raise InputError("multi-targeted tries one class after another; for a class of your own use pgd or apgd")

    def run(self, problem: Problem, queries: Queries, loop: Loop) -> Verdicts:
        self.check(problem.threat, targeted=problem.targets is not None)
        return super().run(self.ranked(problem, queries, loop), queries, loop)

    def ranked(self, problem: Problem, queries: Queries, loop: Loop) -> Ranked:
        """The problem with the classes that its rows try, which `run` then need not look for."""
        if isinstance(problem, Ranked):
            return problem
        given = {field.name: getattr(problem, field.name) for field in fields(Problem)}
        if problem.clean is None:
            given["clean"] = torch.cat([queries.logits(part) for part in problem.x.split(loop.batch_size)])
        rows = torch.arange(len(problem), device=problem.labels.device).split(loop.batch_size)
        known = Problem(**given)
        order = torch.cat([self._order(known.take(part), queries) for part in rows])
        return Ranked(**given, order=order)

    def objective(self, problem: Problem, state: AscentState) -> Objective:
        loss = spelled_loss(self.loss)
        order = problem.order if isinstance(problem, Ranked) else _by_logits(problem)
        which = state.looks // (self.steps + 1) % order.shape[1]
        targets = order.gather(1, which[:, None])[:, 0]
        return lambda logits: loss(logits, problem.labels, targets)

    def start(self, problem: Problem, restart: int) -> Tensor:
        return problem.norm.start(problem.ball, problem.seed, problem.indices, problem.stage, restart)

    def _order(self, problem: Problem, queries: Queries) -> Tensor:
        """The classes that these rows try, (n, k)."""
        order = _by_logits(problem)
        most = min(self.candidates, order.shape[1])
        if most < 2:
            return order[:, : self.targets]
        assert problem.clean is not None  # noqa: S101 - run has seen to it
        own = problem.clean.gather(1, problem.labels[:, None])
        conjugate = _CONJUGATE.get(problem.threat.norm, 2.0)
        far = torch.empty_like(own.expand(-1, most))
        for k in range(most):
            rival = order[:, k : k + 1]

            def lead(logits: Tensor, rival: Tensor = rival) -> Tensor:
                return (logits.gather(1, rival) - logits.gather(1, problem.labels[:, None]))[:, 0]

            grad = queries.look(problem.x, lead).grad
            assert grad is not None  # noqa: S101 - a look has one
            steep = torch.linalg.vector_norm(torch.nan_to_num(grad).flatten(1), ord=conjugate, dim=1)
            gap = (own - problem.clean.gather(1, rival))[:, 0]
            far[:, k] = torch.where(steep > 0, gap / torch.where(steep > 0, steep, 1.0), torch.inf)
        nearest = torch.nan_to_num(far, nan=torch.inf).argsort(dim=1, stable=True)
        return order[:, :most].gather(1, nearest)[:, : self.targets]


def _by_logits(problem: Problem) -> Tensor:
    """All classes but the label, the largest logit first (n, K - 1)."""
    assert problem.clean is not None  # noqa: S101 - the loop sees to it, by reads_clean
    if problem.clean.shape[1] < 2:
        raise InputError("multi-targeted needs at least 2 classes, the model has 1; there is no class to aim at")
    order = problem.clean.argsort(dim=1, descending=True, stable=True)
    return order[order != problem.labels[:, None]].reshape(len(order), -1)
