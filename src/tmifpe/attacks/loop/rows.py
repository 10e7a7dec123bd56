"""Tables of tensors with one row per example: what the loop moves in and out of the batch."""

from __future__ import annotations

__all__ = ["Problem", "Rows", "Verdicts"]

import dataclasses
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor

from tmifpe.core import numerics
from tmifpe.core.types import Threat
from tmifpe.norms import Ball, Norm, column, get_norm

R = TypeVar("R", bound="Rows")


@dataclass
class Rows:
    """A dataclass whose tensors all count examples along dimension 0; other fields are shared by all rows."""

    def take(self: R, rows: Tensor) -> R:
        """The rows at these positions (or where this mask is true), as a new table."""
        if rows.dtype == torch.bool:
            rows = rows.nonzero()[:, 0]
        # index_select and index_copy_ move whole rows; indexing by brackets moves numbers one by one.
        return self._each(lambda tensor: tensor.index_select(0, rows))

    def split(self: R, count: int) -> tuple[R, R]:
        """The first `count` rows and the others, as views."""
        return self._each(lambda tensor: tensor[:count]), self._each(lambda tensor: tensor[count:])

    def put(self: R, rows: Tensor, other: R) -> None:
        """Overwrite the rows at these positions by those of `other`, in place."""
        for name, tensor in self._tensors():
            tensor.index_copy_(0, rows, getattr(other, name))

    def join(self: R, other: R) -> R:
        """The rows of both tables, these first."""
        mine = {name: torch.cat([tensor, getattr(other, name)]) for name, tensor in self._tensors()}
        return dataclasses.replace(self, **mine)

    def _each(self: R, change: Any) -> R:
        return dataclasses.replace(self, **{name: change(tensor) for name, tensor in self._tensors()})

    def _tensors(self) -> list[tuple[str, Tensor]]:
        pairs = ((f.name, getattr(self, f.name)) for f in dataclasses.fields(self))
        return [(name, value) for name, value in pairs if isinstance(value, Tensor)]


@dataclass
class Problem(Rows):
    """What an attack is given: clean images in the box, true labels, targets if it is targeted, a radius for every
    row, and where its random numbers come from (seed, example index, stage).

    `threat` says the norm and the box; its eps is only the default of `eps` (n,), which decides. `clean` are the
    logits at x, where known; `start` the points to begin at, where the attack's own start is not wanted; `reached`
    and `best` the margins and points of the stages before, where there were any, and `spread` by how much the last
    stage that attacked a row came out differently.
    """

    x: Tensor
    labels: Tensor
    targets: Tensor | None
    indices: Tensor
    threat: Threat
    seed: int = 0
    stage: int = 0
    clean: Tensor | None = None
    start: Tensor | None = None
    reached: Tensor | None = None
    spread: Tensor | None = None
    best: Tensor | None = None
    eps: Tensor = None  # pyright: ignore[reportAssignmentType] - set below where the caller has not

    def __post_init__(self) -> None:
        if self.eps is None:  # pyright: ignore[reportUnnecessaryComparison]
            self.eps = Ball.of(self.x, self.threat).eps

    def __len__(self) -> int:
        return len(self.x)

    @property
    def norm(self) -> Norm:
        return get_norm(self.threat.norm)

    @property
    def ball(self) -> Ball:
        return Ball(self.x, self.eps, self.threat.low, self.threat.high)

    def at(self, eps: float | Tensor) -> Problem:
        """The same problem with another radius, for all rows or for each."""
        radii = torch.as_tensor(eps, dtype=self.eps.dtype, device=self.eps.device)
        return dataclasses.replace(self, eps=radii.expand(len(self)).clone())

    def succeeded(self, predictions: Tensor) -> Tensor:
        """Untargeted: any class but the label. Targeted: the target."""
        return predictions != self.labels if self.targets is None else predictions == self.targets


@dataclass
class Verdicts(Rows):
    """One row per example of the problem: was it fooled, where, after how many steps, and how clearly."""

    fooled: Tensor
    prediction: Tensor
    margin: Tensor
    steps: Tensor
    unusable: Tensor
    """Looks at which the logits held NaN or +inf; they never count as success."""
    plain: Tensor
    """Looks at which the gradient was the true one; see `SmoothBackward`."""
    zero_grad: Tensor
    """Those among them at which it was exactly zero."""
    rise: Tensor
    """How much of the margin was gained in the last tenth of the looks."""
    gap: Tensor
    """Between the two largest logits, where the margin is."""
    stage: Tensor
    """Which attack of a sequence broke it; -1 if none did."""
    adv: Tensor
    """The adversarial example if fooled; else the clean image (`verdict`) or the strongest point (`strongest`)."""
    best: Tensor
    """The adversarial example if fooled, else the point with the largest margin, in either mode."""
    part: Tensor = None  # pyright: ignore[reportAssignmentType] - set below
    """Which of `Attack.parts` broke it; -1 if none did, or the attack is of one piece."""
    broken_at: Tensor = None  # pyright: ignore[reportAssignmentType] - set below
    """The smallest radius at which it is broken, of an attack that tries several; NaN where eps is the only one."""
    withstood: Tensor = None  # pyright: ignore[reportAssignmentType] - set below
    """The largest radius below that at which it was not; NaN likewise."""
    exit: Tensor = None  # pyright: ignore[reportAssignmentType] - set below
    """What early exit did with it, an `Exit`."""

    def __post_init__(self) -> None:
        if self.part is None:  # pyright: ignore[reportUnnecessaryComparison]
            self.part = torch.full_like(self.stage, -1)
        if self.exit is None:  # pyright: ignore[reportUnnecessaryComparison]
            self.exit = torch.zeros_like(self.stage)
        for name in ("broken_at", "withstood"):
            if getattr(self, name) is None:
                wide = numerics.wide_dtype(self.stage.device)
                setattr(self, name, torch.full(self.stage.shape, torch.nan, dtype=wide, device=self.stage.device))

    def followed_by(self, now: Verdicts, better: Tensor) -> Verdicts:
        """What two attacks found on the same rows: the point of the later one where it is `better` (n,); costs add up,
        and the rest is what the later one says."""
        points = ("fooled", "prediction", "margin", "gap", "part", "adv", "best")
        kept = {
            name: torch.where(column(better, new), new, getattr(self, name))
            for name, new in ((name, getattr(now, name)) for name in points)
        }
        counts = ("steps", "unusable", "plain", "zero_grad")
        exits = torch.maximum(self.exit, now.exit)
        added = {name: getattr(self, name) + getattr(now, name) for name in counts}
        return dataclasses.replace(now, **kept, **added, exit=exits)
