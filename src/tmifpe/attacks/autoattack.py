"""The real AutoAttack (Croce and Hein 2020), standard version, through `pyautoattack`: never anything weaker."""

from __future__ import annotations

__all__ = ["AutoAttack"]

import contextlib
import io
import logging
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from tmifpe.attacks.attack import Attack, Budget, Part
from tmifpe.attacks.hooks.straight_through import through_identity
from tmifpe.attacks.loop import Loop, Verdicts
from tmifpe.attacks.loop.queries import Queries
from tmifpe.attacks.loop.rows import Problem
from tmifpe.core import numerics
from tmifpe.core.errors import InputError
from tmifpe.core.extras import import_extra
from tmifpe.core.numbers import whole_number
from tmifpe.core.rng import preserved_rng
from tmifpe.core.types import UNIT, Threat

_NORMS = {"linf": "Linf", "l2": "L2", "l1": "L1"}


@dataclass(frozen=True)
class AutoAttack(Attack):
    """APGD-CE, targeted APGD-DLR, targeted FAB and Square, each on what the ones before left standing.

    Its random draws belong to its batches, not to examples, so `batch_size` is part of the answer (250 is its own
    default), and so is the version of the package. What it finds is read again like any other claim.
    """

    batch_size: int = 250
    pyautoattack: str = ""
    """The version of the package; empty for the one that is installed."""

    name: ClassVar[str] = "autoattack"
    costly: ClassVar[bool] = True
    parts: ClassVar[tuple[Part, ...]] = (Part("apgd-ce"), Part("apgd-t"), Part("fab-t"), Part("square", False))

    def __post_init__(self) -> None:
        installed = import_extra("pyautoattack", "AutoAttack columns", "autoattack").__version__
        if self.pyautoattack not in ("", installed):
            raise InputError(f"this is a run of pyautoattack {self.pyautoattack}, but {installed} is installed")
        object.__setattr__(self, "pyautoattack", installed)
        object.__setattr__(self, "batch_size", whole_number("batch_size", self.batch_size))

    @property
    def budget(self) -> Budget:
        """What a robust example costs with nine targets: APGD-CE 100 steps, APGD-T and FAB-T 900 each, 5000 queries."""
        return Budget(8000, 2000)

    @property
    def together(self) -> int:
        return self.batch_size

    def check(self, threat: Threat, *, targeted: bool = False, eot: int = 1) -> None:
        """`InputError` where the standard version of AutoAttack is not defined."""
        if targeted:
            raise InputError(
                "AutoAttack has no targeted form; leave the autoattack column out of a targeted comparison"
            )
        if threat.norm not in _NORMS:
            raise InputError("AutoAttack knows linf, l2 and l1")
        if eot > 1:
            raise InputError("AutoAttack's standard version takes no eot; leave the autoattack column out")

    def run(self, problem: Problem, queries: Queries, loop: Loop) -> Verdicts:
        self.check(problem.threat, targeted=problem.targets is not None, eot=queries.eot)
        if len(torch.unique(problem.eps)) > 1:
            raise InputError("AutoAttack takes one radius for all examples")
        if problem.x.dim() != 4 or (problem.threat.norm != "linf" and min(problem.x.shape[2:]) < 5):
            raise InputError("AutoAttack takes images (n, C, H, W), for l2 and l1 of at least 5x5 pixels")
        if problem.x.shape[2] != problem.x.shape[3]:
            queries.notes.add("AutoAttack's Square attack was made for images as wide as high, which these are not")
        # It clips in its own dtype, so a point may leave the ball by a rounding; the projection takes that back.
        found, part = self._run(problem, queries, loop)
        adv = problem.norm.project(found.to(problem.x.dtype), problem.ball)
        rows = (part >= 0).nonzero()[:, 0]
        fooled = torch.zeros_like(part, dtype=torch.bool)
        if len(rows):
            fooled[rows] = loop.verify(adv[rows], problem.take(rows)) if loop.verify is not None else True
        adv = torch.where(fooled.reshape(-1, *[1] * (adv.dim() - 1)), adv, problem.x)
        logits = torch.cat([queries.logits(part) for part in adv.split(loop.batch_size)])
        logits = logits.to(numerics.compute_dtype(logits.dtype))
        margin = numerics.margin(logits, problem.labels)
        zero = torch.zeros_like(problem.labels)
        loop.tick(len(problem), int(fooled.sum()))
        return Verdicts(
            fooled,
            logits.argmax(dim=1),
            margin,
            steps=zero,
            unusable=zero.clone(),
            plain=zero.clone(),
            zero_grad=zero.clone(),
            rise=torch.zeros_like(margin),
            gap=numerics.top_gap(logits),
            stage=torch.where(fooled, 0, -1),
            adv=adv,
            best=adv.clone(),
            part=torch.where(fooled, part, -1),
        )

    def _run(self, problem: Problem, queries: Queries, loop: Loop) -> tuple[Tensor, Tensor]:
        """The points AutoAttack returns, and which of its parts says that it broke an example; -1 where none does.

        Its parts are called one by one, since it does not tell which broke what: each on what is left, seeded anew, as
        it calls them itself. It knows images in [0, 1], and sees every other box through that one.
        """
        from pyautoattack import AutoAttack as Standard

        device, low, width = problem.x.device, problem.threat.low, problem.threat.high - problem.threat.low
        scaled = problem.threat.box != UNIT
        model = _Counted(queries, lambda: loop.tick(0, 0), (lambda u: low + width * u) if scaled else (lambda u: u))
        with _quiet(device):
            attack = Standard(
                model,  # its own float32 throughout; the model sees its own dtype
                norm=_NORMS[problem.threat.norm],  # pyright: ignore[reportArgumentType]
                eps=float(problem.eps[0]) / width,
                seed=problem.seed,
                version="standard",
                device=device,
            )
            _fit_classes(attack, _classes(problem, queries))
            x = ((problem.x - low) / width).clamp(0, 1).float() if scaled else problem.x.float()
            adv, part = x.clone(), torch.full_like(problem.labels, -1)
            for number, one in enumerate(self.parts):
                left = (part < 0).nonzero()[:, 0]
                if not len(left):
                    break
                attack.attacks_to_run = [one.name]
                found, predictions = attack.run_standard_evaluation(
                    x[left], problem.labels[left], batch_size=self.batch_size
                )
                broken = predictions != problem.labels[left]
                adv[left[broken]], part[left[broken]] = found[broken], number
        return (low + width * adv if scaled else adv), part


class _Counted(nn.Module):
    """The model as AutoAttack sees it, on images in [0, 1]: every pass is counted, and none happens without a sign of
    life."""

    def __init__(self, queries: Queries, tick: Callable[[], None], to_box: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.queries, self.tick, self.to_box = queries, tick, to_box

    def forward(self, x: Tensor) -> Tensor:
        self.tick()
        self.queries.tally.forwards += len(x)
        x, asked = self.to_box(x), self.queries
        through = asked.straight_through if torch.is_grad_enabled() else ()
        with through_identity(asked.model, through):
            output = asked.model(x if asked.dtype is None else x.to(asked.dtype))
        logits = asked.read(output, len(x)).float()
        if logits.requires_grad:
            logits.register_hook(self._backward)
        return logits

    def _backward(self, grad: Tensor) -> None:
        self.queries.tally.backwards += len(grad)


def _classes(problem: Problem, queries: Queries) -> int:
    return (problem.clean if problem.clean is not None else queries.logits(problem.x[:1])).shape[1]


def _fit_classes(attack: Any, classes: int) -> None:
    """With fewer classes than the standard version has targets (nine, for APGD at l1 five), it takes them all."""
    if classes < 4:
        raise InputError(f"AutoAttack's targeted DLR loss needs at least 4 classes, the model has {classes}")
    for part in (attack.apgd_targeted, attack.fab):
        part.n_target_classes = min(part.n_target_classes, classes - 1)


@contextlib.contextmanager
def _quiet(device: torch.device) -> Iterator[None]:
    """Within, AutoAttack may seed the global generators, set the tracer, print and warn; after, all is as before.

    What it would say is said by our own flags, which do not point to its files.
    """
    trace, logger = sys.gettrace(), logging.getLogger("auto-attack")
    disabled = logger.disabled
    logger.disabled = True
    try:
        with preserved_rng(device), contextlib.redirect_stdout(io.StringIO()):
            yield
    finally:
        logger.disabled = disabled
        sys.settrace(trace)
