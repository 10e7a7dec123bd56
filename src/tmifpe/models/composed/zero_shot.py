"""Classifiers that compare an image with the text of each class."""

from __future__ import annotations

__all__ = ["ZeroShot"]

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from tmifpe.core.errors import InputError
from tmifpe.core.types import Model


class ZeroShot(nn.Module):
    """`scale` × cosine of an image's features and those of each class's text, which are computed once.

    encoder: from images (n, ...) to features (n, d), as CLIP's image side. text: features (classes, d), of any length.

    >>> model = ZeroShot(nn.Flatten(), text=torch.tensor([[3.0, 0.0], [0.0, 2.0]]), scale=100)
    >>> model(torch.tensor([[[0.6, 0.8]]])).round().tolist()
    [[60.0, 80.0]]
    """

    text: Tensor
    scale: Tensor

    def __init__(self, encoder: Model, text: Any, scale: float = 100.0) -> None:
        super().__init__()
        text = torch.as_tensor(text).detach()
        if text.dim() != 2 or not text.is_floating_point() or len(text) < 2:
            raise InputError(
                f"text must be features (classes, d) of at least two classes, got shape {tuple(text.shape)}"
            )
        self.encoder = encoder
        self.register_buffer("text", normalize(text, dim=1))
        self.register_buffer("scale", torch.as_tensor(scale, dtype=text.dtype).detach().clone())

    def forward(self, x: Tensor) -> Tensor:
        return self.scale * (normalize(self.encoder(x), dim=1) @ self.text.T)
