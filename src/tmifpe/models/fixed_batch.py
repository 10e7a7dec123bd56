"""A network that was saved for one batch size, used at any."""

from __future__ import annotations

__all__ = ["FixedBatch"]

import torch
from torch import Tensor, nn


class FixedBatch(nn.Module):
    """Runs `network`, which takes exactly `batch` images, on pieces of that size; the last piece is filled up.

    Right for every network, but slow for small batches: only for files whose batch size cannot be lifted.
    """

    def __init__(self, network: nn.Module, batch: int) -> None:
        super().__init__()
        self.network = network
        self.batch = batch

    def forward(self, x: Tensor) -> Tensor:
        pieces = list(x.split(self.batch)) or [x]
        short = self.batch - len(pieces[-1])
        if short:
            pieces[-1] = torch.cat([pieces[-1], x.new_zeros(short, *x.shape[1:])])
        return torch.cat([self.network(piece) for piece in pieces])[: len(x)]
