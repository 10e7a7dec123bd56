"""The only place that queries the model, so that queries are counted exactly."""

from __future__ import annotations

__all__ = ["Evaluated", "Objective", "Queries", "StageCost", "Tally", "TransferQueries", "added_costs"]

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import astuple, dataclass, field, fields, replace
from functools import partial
from typing import TypeAlias, cast

import torch
from torch import Tensor, nn

from tmifpe.attacks.hooks.layer_gradient import LayerGradient
from tmifpe.attacks.hooks.layer_gradients import layer_gradients
from tmifpe.attacks.hooks.smooth import SmoothBackward
from tmifpe.attacks.hooks.straight_through import through_identity
from tmifpe.attacks.hooks.uncompiled import uncompiled
from tmifpe.attacks.loop.unseen import given, unseen
from tmifpe.core.errors import InputError, ModelError, first_line, is_out_of_memory
from tmifpe.core.outputs import read_output
from tmifpe.core.types import Model
from tmifpe.losses.loss import as_values

_ONE_VALUE = "Expected more than 1 value per channel when training"
"""What torch says where BatchNorm has no statistics."""
_NOT_ALONE = "the model normalises by the batch: a single image was read beside its mirror image"

Objective: TypeAlias = Callable[[Tensor], Tensor]
"""From logits (n, K) to one value per example (n,), which the attacker ascends."""


@dataclass(frozen=True)
class Evaluated:
    """One query: logits (n, K) and, where requested, the objective's value (n,) and the gradient of its sum; `slope`
    (n, K) is that at the logits, where the gradient is the model's own."""

    logits: Tensor
    value: Tensor | None = None
    grad: Tensor | None = None
    slope: Tensor | None = None

    def take(self, rows: Tensor) -> Evaluated:
        """What it says of the rows at these positions."""
        parts = {one.name: getattr(self, one.name) for one in fields(self)}
        return replace(self, **{name: part.index_select(0, rows) for name, part in parts.items() if part is not None})


@dataclass
class Tally:
    """How many queries the model answered, counted in examples."""

    forwards: int = 0
    backwards: int = 0

    def __add__(self, other: Tally) -> Tally:
        return Tally(self.forwards + other.forwards, self.backwards + other.backwards)


@dataclass(frozen=True)
class StageCost:
    """What one stage of an attack was given, what it broke, and what that took; verification included."""

    examples: int
    broken: int
    forwards: int
    backwards: int
    seconds: float

    def __add__(self, other: StageCost) -> StageCost:
        return StageCost(*(mine + yours for mine, yours in zip(astuple(self), astuple(other), strict=True)))


def added_costs(some: Sequence[StageCost], more: Sequence[StageCost]) -> list[StageCost]:
    """Stage by stage; later stages may have had nothing left to attack in one of them."""
    longer, shorter = sorted((some, more), key=len, reverse=True)
    return [a + b for a, b in zip(longer, shorter, strict=False)] + list(longer[len(shorter) :])


@dataclass
class Queries:
    """Queries `model` in `dtype` (attack arithmetic stays in the dtype of x) and counts.

    `eot` > 1 averages logits and gradients over that many draws of a randomised model.
    """

    model: Model
    dtype: torch.dtype | None = None
    eot: int = 1
    tally: Tally = field(default_factory=Tally)
    stages: list[StageCost] = field(default_factory=list)
    """What each stage of the attack cost, in order."""
    notes: set[str] = field(default_factory=set)
    """What a reader of the result should know of how the model was asked."""
    straight_through: tuple[str, ...] = ()
    """Modules that gradients pass as if they were the identity; looks without a gradient never know of it."""

    def logits(self, x: Tensor, *, fresh: bool = False) -> Tensor:
        """Logits without a gradient. `fresh`: read where no model has seen images before, for what is to be stated."""
        ask = partial(self._ask, fresh=fresh)
        with torch.no_grad():
            total = self._in_company(x, ask)
            for _ in range(self.eot - 1):
                total = total + self._in_company(x, ask)
        return total / self.eot if self.eot > 1 else total

    def logits_with_gradient(self, x: Tensor, of_images: bool = True) -> Tensor:
        """Logits while gradients are recorded, of images that want one or do not: to see whether the model minds."""
        with torch.enable_grad():
            return self._ask(x.detach().requires_grad_(of_images)).detach()

    def look(self, x: Tensor, objective: Objective, smooth: Tensor | None = None) -> Evaluated:
        """Logits at x and d sum(objective) / d x. Values are summed, never averaged: a mean shrinks the
        gradient with the batch size, until it underflows. `smooth` (n,): see `SmoothBackward`."""
        logits, value, grad, slope = self._look_once(x, objective, smooth)
        if self.eot == 1:
            own = smooth is None and not self.straight_through
            return Evaluated(logits, value, grad, slope if own else None)
        for _ in range(self.eot - 1):
            more = self._look_once(x, objective, smooth)
            logits, value, grad = logits + more[0], value + more[1], grad + more[2]
        # The scale of the gradient does not matter to any norm's direction; that of logits and value does.
        return Evaluated(logits / self.eot, value / self.eot, grad)

    def judge(self, x: Tensor, objective: Objective) -> Evaluated:
        """Logits and value without a gradient, for attacks that need none."""
        logits = self.logits(x)
        with torch.no_grad():
            return Evaluated(logits, as_values(objective(logits), logits))

    def layers(self, x: Tensor, objective: Objective) -> tuple[Tensor, tuple[LayerGradient, ...]]:
        """Logits at x, and what becomes of the plain gradient at every module on its way back; of a model without
        modules, nothing."""
        seen: list[Tensor] = []

        def ask(given: Tensor) -> Tensor:
            logits = self._in_company(given, self._ask)
            seen.append(logits.detach())
            return as_values(objective(logits), logits)

        with uncompiled(), _failing_clearly(len(x)):
            found = layer_gradients(self.model, x, ask) if isinstance(self.model, nn.Module) else ()
        self.tally.backwards += len(x)
        return seen[0], found

    def _look_once(
        self, x: Tensor, objective: Objective, smooth: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
        with torch.enable_grad():
            leaf, logits = self._trace(x, smooth)
            value = as_values(objective(logits), logits)
            grad, slope = self._follow_back(leaf, logits, value.sum())
        return logits.detach(), value.detach(), grad, slope

    def _trace(self, x: Tensor, smooth: Tensor | None) -> tuple[Tensor, Tensor]:
        """The images as a leaf, and their logits with the way back to it; counted as a forward pass."""
        leaf = x.detach().requires_grad_()

        def ask(given: Tensor) -> Tensor:
            return self._ask(given) if smooth is None else self._ask_smoothly(given, smooth.expand(len(given)))

        with through_identity(self.model, self.straight_through):
            return leaf, self._in_company(leaf, ask)

    def _follow_back(self, leaf: Tensor, logits: Tensor, end: Tensor) -> tuple[Tensor, Tensor | None]:
        """d end / d leaf and d end / d logits; counted, unless there is no way back."""
        if not logits.requires_grad:
            return torch.zeros_like(leaf), None
        with _failing_clearly(len(leaf)):
            found = torch.autograd.grad(end, (leaf, logits), allow_unused=True)
        self.tally.backwards += len(leaf)
        grad, slope = cast("tuple[Tensor | None, Tensor | None]", found)
        return torch.zeros_like(leaf) if grad is None else grad, slope

    def _in_company(self, x: Tensor, ask: Callable[[Tensor], Tensor]) -> Tensor:
        """Logits of x; of a single image beside its mirror image, where the model normalises by the batch and cannot
        read it alone."""
        if len(x) == 1 and _NOT_ALONE in self.notes:
            return ask(torch.cat([x, x.detach().flip(tuple(range(1, x.dim())))]))[:1]
        try:
            return ask(x)
        except ModelError as error:
            if len(x) != 1 or _ONE_VALUE not in str(error):
                raise
        self.notes.add(_NOT_ALONE)
        return self._in_company(x, ask)

    def _ask_smoothly(self, x: Tensor, share: Tensor) -> Tensor:
        with uncompiled(), SmoothBackward(share) as seen:
            logits = self._ask(x)
        if not seen.smoothed:
            self.notes.add("no rectifier was seen in the model, so that its backward pass could not be smoothed")
        elif seen.left:
            self.notes.add(f"{seen.left} rectifiers whose first dimension is not the batch were not smoothed")
        return logits

    def _ask(self, x: Tensor, fresh: bool = False) -> Tensor:
        self.tally.forwards += len(x)
        x = x if self.dtype is None else x.to(self.dtype)
        x = given(unseen(x) if fresh else x)
        before = x._version
        with _failing_clearly(len(x)):
            output = self.model(x)
        if x._version != before:  # the attack would go on from another image than it chose
            raise ModelError(
                "the model changes the images that it is given, in place; let it work on a copy (x.clone())"
            )
        return self.read(output, len(x))

    def read(self, output: object, n: int) -> Tensor:
        """What the model returned for n images as logits, with a note where it returned something else."""
        logits, said = read_output(output, n)
        if said:
            self.notes.add(said)
        return logits


@dataclass
class TransferQueries(Queries):
    """Follows the gradients of another model, `source`; every verdict is the evaluated model's own."""

    source: Queries = None  # pyright: ignore[reportAssignmentType] - always given

    def look(self, x: Tensor, objective: Objective, smooth: Tensor | None = None) -> Evaluated:
        led = self.source.look(x, objective, smooth)
        return replace(self.judge(x, objective), grad=led.grad)


@contextmanager
def _failing_clearly(n: int) -> Iterator[None]:
    """The model is the user's code and may fail in any way, which is reported in one sentence."""
    try:
        yield
    except InputError:
        raise
    except (Exception, SystemExit) as error:
        if is_out_of_memory(error):
            raise
        raise ModelError(f"the model failed on {n} images: {type(error).__name__}: {first_line(error)}") from error
