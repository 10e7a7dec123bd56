"""A row of the batch with all that belongs to it: its problem, what the attack remembers, and the loop's own notes."""

from __future__ import annotations

__all__ = ["Seat", "Slots", "blank", "gap_of"]

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from tmifpe.attacks.loop.rows import Problem, Rows, Verdicts
from tmifpe.core import numerics


@dataclass
class Slots(Rows):
    """The loop's own notes on each row of the batch."""

    position: Tensor
    margin: Tensor
    gap: Tensor
    """Between the two largest logits, for targeted rows and those that have been broken; see `gap_of`."""
    early: Tensor
    """The margin before the last tenth of the looks."""
    prediction: Tensor
    unusable: Tensor
    plain: Tensor
    zero_grad: Tensor
    best: Tensor
    exit: Tensor
    """An `Exit`."""
    fresh: Tensor
    """The best point is the one last looked at, and is copied to `best` only once a worse one follows."""

    @classmethod
    def open(cls, problem: Problem, position: Tensor) -> Slots:
        zero = torch.zeros_like(problem.labels)
        dtype = numerics.compute_dtype(problem.x.dtype)
        margin = torch.full(zero.shape, -torch.inf, dtype=dtype, device=zero.device)
        return cls(
            position,
            margin,
            gap=torch.full_like(margin, torch.nan),
            early=margin.clone(),
            prediction=problem.labels.clone(),
            unusable=zero,
            plain=zero.clone(),
            zero_grad=zero.clone(),
            best=problem.x.clone(),
            exit=zero.clone(),
            fresh=torch.zeros_like(zero, dtype=torch.bool),
        )


@dataclass
class Seat:
    """A row of the batch with all that belongs to it, so that it can leave and come back."""

    problem: Problem
    state: Any
    slots: Slots

    def take(self, rows: Tensor) -> Seat:
        return Seat(self.problem.take(rows), self.state.take(rows), self.slots.take(rows))

    def put(self, rows: Tensor, other: Seat) -> None:
        self.problem.put(rows, other.problem)
        self.state.put(rows, other.state)
        self.slots.put(rows, other.slots)

    def split(self, count: int) -> tuple[Seat, Seat]:
        problem, state, slots = self.problem.split(count), self.state.split(count), self.slots.split(count)
        return Seat(problem[0], state[0], slots[0]), Seat(problem[1], state[1], slots[1])

    def join(self, other: Seat) -> Seat:
        return Seat(self.problem.join(other.problem), self.state.join(other.state), self.slots.join(other.slots))

    def __len__(self) -> int:
        return len(self.problem)


def gap_of(seat: Seat) -> Tensor:
    """Between the two largest logits (n,); an untargeted row that still has its label is -margin away by definition."""
    slots, problem = seat.slots, seat.problem
    if problem.targets is not None:
        return slots.gap
    return torch.where(slots.prediction == problem.labels, -slots.margin, slots.gap)


def blank(problem: Problem) -> Verdicts:
    """Verdicts of rows that nobody has attacked: robust, with no margin to show for it."""
    slots = Slots.open(problem, problem.labels)
    fooled = torch.zeros_like(problem.labels, dtype=torch.bool)
    return Verdicts(
        fooled,
        slots.prediction,
        slots.margin,
        steps=torch.zeros_like(problem.labels),
        unusable=slots.unusable,
        plain=slots.plain,
        zero_grad=slots.zero_grad,
        rise=torch.zeros_like(slots.margin),
        gap=slots.gap,
        stage=torch.full_like(problem.labels, -1),
        adv=slots.best,
        best=problem.x.clone(),
    )
