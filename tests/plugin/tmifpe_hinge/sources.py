"""A model and data, each made by a function."""

from __future__ import annotations

from torch import Tensor, nn

import tmifpe


class Sharp(nn.Module):
    """The bundled robust model with its logits scaled up."""

    def __init__(self, scale: float) -> None:
        super().__init__()
        self.network = tmifpe.load_model("digits-robust").module
        self.scale = scale

    def forward(self, x: Tensor) -> Tensor:
        return self.scale * self.network(x)


def sharp(scale: str = "2") -> nn.Module:
    """`digits-sharp`, or `digits-sharp:5` for another scale."""
    return Sharp(float(scale))


def dim() -> tuple[Tensor, Tensor]:
    """The bundled digits at 80 % of their brightness."""
    images, labels = tmifpe.load_data("digits", limit=200).fetch(range(200))
    return 0.8 * images, labels
