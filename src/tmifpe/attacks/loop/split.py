"""Queries in parts: the rows of a batch are cut up, and each part goes through a copy of the model in its own thread.

On a CPU, torch cuts every single operation among its threads, which wait for each other after each. To cut the rows
once, and to let every thread take its part from the images to the logits and back, is faster on some networks, and
where other programs want the cores, too (docs/cost.md).
"""

from __future__ import annotations

__all__ = ["FEWEST", "SplitQueries"]

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import torch
from torch import Tensor

from tmifpe.attacks.loop.queries import Objective, Queries
from tmifpe.core.types import Model
from tmifpe.losses.loss import as_values

FEWEST = 8
"""Rows in a part; fewer are not worth a thread."""


def _workers(count: int) -> ThreadPoolExecutor:
    """Threads that each use as many of torch's as the one that makes them: torch keeps the number by thread."""
    given = (torch.get_num_threads(),)
    return ThreadPoolExecutor(count, "tmifpe-rows", initializer=torch.set_num_threads, initargs=given)


@dataclass
class SplitQueries(Queries):
    """Queries that follow `copies` of a model, each with its part of the rows; `model` answers where rows are few.

    The objective sees all logits at once, and the gradient goes back from there part by part. For one draw per query
    only, and without modules to pass straight through.
    """

    copies: tuple[Model, ...] = ()

    def __post_init__(self) -> None:
        self._workers = _workers(len(self.copies))

    def _look_once(self, x: Tensor, objective: Objective, smooth: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        if len(x) < FEWEST * len(self.copies):
            return super()._look_once(x, objective, smooth)
        parts = [Queries(copy, self.dtype) for copy in self.copies]
        pieces = x.tensor_split(len(parts))
        shares = [None] * len(parts) if smooth is None else smooth.tensor_split(len(parts))
        traced = list(self._workers.map(Queries.trace, parts, pieces, shares))
        logits = torch.cat([found.detach() for _, found in traced])
        with torch.enable_grad():
            logits.requires_grad_()
            value = as_values(objective(logits), logits)
            slope = torch.autograd.grad(value.sum(), logits)[0]
        leaves, ends = zip(*traced, strict=True)
        grads = self._workers.map(Queries.follow_back, parts, leaves, ends, ends, slope.tensor_split(len(parts)))
        grad = torch.cat(list(grads))
        for part in parts:
            self.tally.forwards += part.tally.forwards
            self.tally.backwards += part.tally.backwards
            self.notes |= part.notes
        return logits.detach(), value.detach(), grad
