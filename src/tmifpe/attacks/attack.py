"""What an attack is: a frozen dataclass of plain values that turns a problem into verdicts."""

from __future__ import annotations

__all__ = ["Attack", "Budget", "Part", "as_problem", "check_box"]

from abc import ABC, abstractmethod
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from tmifpe.attacks.loop import Loop, Verdicts
from tmifpe.attacks.loop.frozen import dtype_of, frozen
from tmifpe.attacks.loop.queries import Queries
from tmifpe.attacks.loop.rows import Problem
from tmifpe.core import numerics
from tmifpe.core.errors import InputError
from tmifpe.core.numbers import MOST_SEED, extent, whole_number, whole_numbers
from tmifpe.core.types import Classifier, Model, Threat
from tmifpe.norms import get_norm

_FLOATING = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


class Budget(NamedTuple):
    """The most queries that an attack may spend on one example; verification comes on top."""

    forwards: int
    backwards: int


class Part(NamedTuple):
    """One of the attacks that an attack is made of, where it runs them by itself and tells which broke what."""

    name: str
    needs_gradient: bool = True


class Attack(ABC):
    """A frozen dataclass with a `name`; everything that changes during an attack is in its own local state.

    Attacks that move step by step inherit from `Stepwise` and write `init`, `objective` and `step`; any other
    writes `run`.
    """

    name: ClassVar[str]
    needs_gradient: ClassVar[bool] = True
    """Whether it looks at gradients; one that does not pays for no backward pass."""
    costly: ClassVar[bool] = False
    """Costs as much as dozens of others, so that a comparison over seeds measures it at the first one only."""

    every_radius: ClassVar[bool] = False
    """Looks for the smallest radius that breaks each example, instead of trying eps alone."""

    parts: ClassVar[tuple[Part, ...]] = ()
    """What `Verdicts.part` counts; empty for an attack of one piece."""

    @property
    @abstractmethod
    def budget(self) -> Budget:
        """Forward and backward passes per example, at most."""

    @abstractmethod
    def run(self, problem: Problem, queries: Queries, loop: Loop) -> Verdicts:
        """A verdict for every example of the problem, in its order. `loop` says how many rows a batch has, who
        verifies a claimed success and who is told of progress."""

    def check(self, threat: Threat, *, targeted: bool = False, eot: int = 1) -> None:  # noqa: ARG002
        """`InputError` where this attack is not defined, raised before anything is computed."""
        get_norm(threat.norm)

    @property
    def together(self) -> int | None:
        """How many examples it must be given at a time, where its answer depends on that; None where it does not."""
        return None

    @property
    def title(self) -> str:
        """What to call it in a sentence."""
        return self.name

    @property
    def stages(self) -> tuple[Attack, ...]:
        """The attacks that it runs one after another; itself, unless it is a sequence."""
        return (self,)

    @torch.inference_mode(False)  # an attack needs gradients, wherever it is called
    def __call__(
        self,
        model: Model | Classifier,
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
        problem = as_problem(x, labels, threat, targets, seed, indices)
        self.check(threat, targeted=targets is not None)
        network: Model = model.module if isinstance(model, Classifier) else model  # its parameters say device and dtype
        with frozen(network) as still:
            queries = Queries(still, dtype_of(network) or x.dtype)
            return self.run(problem, queries, Loop(batch_size, "strongest")).adv.to(x.dtype)


def check_box(x: Tensor, threat: Threat) -> Tensor:
    """The images, moved into the threat's box where rounding has led out of it; `InputError` where they are farther
    outside, since no attack could begin there."""
    if bool(((x >= threat.low) & (x <= threat.high)).all()):
        return x
    slack = numerics.box_slack(*threat.box)
    if not bool(((x >= threat.low - slack) & (x <= threat.high + slack)).all()):
        low, high = (float(edge) for edge in torch.aminmax(x.detach()))
        raise InputError(
            f"images must lie in [{threat.low:g}, {threat.high:g}] but reach {extent(low, high, threat.box)}; "
            "normalisation belongs inside the model, not in the data"
        )
    return x.clamp(threat.low, threat.high)


def as_problem(
    x: Tensor,
    labels: Tensor,
    threat: Threat,
    targets: Tensor | None = None,
    seed: int = 0,
    indices: Tensor | None = None,
) -> Problem:
    """What an attack is given, of tensors that a user gave; `InputError` where they make no sense."""
    if not isinstance(threat, Threat):
        raise InputError(f"the threat must be a Threat, e.g. Threat('linf', 8/255), got {type(threat).__name__}")
    if not isinstance(x, Tensor):
        raise InputError(f"x must be a tensor, got {type(x).__name__}")
    usual = x.dtype in _FLOATING and x.layout is torch.strided and not x.is_meta
    if not usual or x.dim() < 2 or not x.numel():
        what = f"{x.dtype} of shape {tuple(x.shape)}"
        raise InputError(f"x must be a floating tensor (n, ...) with values, not empty, got {what}")
    seed = whole_number("seed", seed, least=0, most=MOST_SEED)
    # Half-precision images are moved in float32; the model sees them in its own dtype.
    x = x.to(numerics.compute_dtype(x.dtype))
    x = check_box(x, threat)
    positions = torch.arange(len(x)) if indices is None else indices
    whole = {"labels": labels, "indices": positions} | ({} if targets is None else {"targets": targets})
    moved = {name: whole_numbers(name, numbers, len(x)).to(x.device).clone() for name, numbers in whole.items()}
    return Problem(x.detach().clone(), moved["labels"], moved.get("targets"), moved["indices"], threat, seed)
