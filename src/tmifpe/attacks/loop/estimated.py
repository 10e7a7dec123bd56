"""Gradients that are averaged or estimated, where the model's own says little about the loss a step away.

Their random numbers come from the seed and from the point itself, so that a row gets the same ones in every batch.
"""

from __future__ import annotations

__all__ = ["EstimatedQueries", "SmoothedQueries"]

from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from tmifpe.attacks.loop.queries import Evaluated, Objective, Queries
from tmifpe.core import rng
from tmifpe.core.types import Threat
from tmifpe.norms import Ball, get_norm

_STREAM = 0x5A0E
_COARSE = 16
"""Larger images are searched along coarse patterns of about so many pixels a side, too."""


@dataclass
class SmoothedQueries(Queries):
    """The mean of `source`'s gradient over `draws` points within half of eps: waves and noise average out."""

    source: Queries = None  # pyright: ignore[reportAssignmentType] - always given
    threat: Threat = None  # pyright: ignore[reportAssignmentType] - always given
    seed: int = 0
    draws: int = 8

    def look(self, x: Tensor, objective: Objective, smooth: Tensor | None = None) -> Evaluated:
        norm, keys = get_norm(self.threat.norm), _keys(x)
        total = torch.zeros_like(x)
        for draw in range(self.draws):
            size = self.threat.eps * (0.25 if draw % 2 else 0.5)
            ball = Ball(x, torch.full((len(x),), size, dtype=x.dtype, device=x.device), *self.threat.box)
            grad = self.source.look(norm.start(ball, self.seed, keys, _STREAM, draw), objective, smooth).grad
            assert grad is not None  # noqa: S101 - a look has one
            total += grad
        return replace(self.judge(x, objective), grad=total)


@dataclass
class EstimatedQueries(Queries):
    """No backward pass: the objective is read at `pairs` of points on either side of x, half of eps away."""

    threat: Threat = None  # pyright: ignore[reportAssignmentType] - always given
    seed: int = 0
    pairs: int = 24

    def look(self, x: Tensor, objective: Objective, smooth: Tensor | None = None) -> Evaluated:  # noqa: ARG002
        norm, keys = get_norm(self.threat.norm), _keys(x)
        total = torch.zeros_like(x)
        for pair in range(self.pairs):
            way = _pattern(x, self.seed, keys, pair)
            way = way * (self.threat.eps / 2 / norm.size(way).clamp(min=1e-12)).view(-1, *[1] * (x.dim() - 1))
            ahead, behind = ((x + step).clamp(*self.threat.box) for step in (way, -way))
            rise = self.judge(ahead, objective).value, self.judge(behind, objective).value
            assert rise[0] is not None and rise[1] is not None  # noqa: S101, PT018 - judged
            slope = torch.nan_to_num((rise[0] - rise[1]).to(x.dtype), 0.0, 0.0, 0.0)
            total += (ahead - behind) * slope.view(-1, *[1] * (x.dim() - 1))
        return replace(self.judge(x, objective), grad=total)


def _pattern(x: Tensor, seed: int, keys: Tensor, number: int) -> Tensor:
    """Random signs (n, ...); of larger images every other pattern is coarse, as what networks see is."""
    shape = tuple(x.shape[1:])
    if x.dim() == 4 and min(shape[1:]) > _COARSE and number % 2:
        size = tuple(max(4, length // 4) for length in shape[1:])
        few = rng.uniform(seed, keys, _STREAM + 1, number, (shape[0], *size)).to(x) - 0.5
        return F.interpolate(torch.sign(few), size=shape[1:], mode="bilinear", align_corners=False)
    return torch.sign(rng.uniform(seed, keys, _STREAM + 1, number, shape).to(x) - 0.5)


def _keys(x: Tensor) -> Tensor:
    """A whole number for each row (n,), made of its bits: exact, so that neither batch nor order matters."""
    bits = x.detach().float().contiguous().flatten(1).view(torch.int32).to(torch.int64)
    place = torch.arange(1, bits.shape[1] + 1, device=x.device) * 2654435761
    return (bits * (place * 2 + 1)).sum(dim=1)
