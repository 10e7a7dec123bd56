"""Linear classifiers, whose distance to the boundary is known exactly: the honest yardstick of an attack."""

from __future__ import annotations

__all__ = ["SHAPE", "Linear", "distance", "examples", "examples_at"]

import torch
from torch import Tensor, nn

SHAPE = (1, 4, 5)


class Linear(nn.Module):
    def __init__(self, classes: int, seed: int = 0, dtype: torch.dtype = torch.float64, scale: float = 1.0) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        pixels = SHAPE[0] * SHAPE[1] * SHAPE[2]
        weight = torch.randn(classes, pixels, generator=generator, dtype=torch.float64) * scale
        self.weight = nn.Parameter(weight.to(dtype))
        # The boundary passes near the middle of the box, so that the box is never what stops an attack.
        self.bias = nn.Parameter((-0.5 * weight.sum(dim=1)).to(dtype))

    def forward(self, x: Tensor) -> Tensor:
        return x.flatten(1) @ self.weight.t() + self.bias


def examples(model: Linear, n: int, seed: int = 0, spread: float = 0.02) -> tuple[Tensor, Tensor]:
    """Images near the middle of the box, labelled as the model sees them."""
    generator = torch.Generator().manual_seed(seed + 1000)
    noise = torch.randn(n, *SHAPE, generator=generator, dtype=torch.float64)
    x = (0.5 + spread * noise).to(model.weight.dtype)
    return x, model(x).detach().argmax(dim=1)


def examples_at(model: Linear, n: int, norm: str, far: float, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Images whose exact distance to the boundary is `far`: in x = 1/2 + s v the distance is linear in s."""
    x, labels = examples(model, 20 * n, seed)
    exact, _ = distance(model, x, labels, norm)
    x = 0.5 + (x - 0.5) * (far / exact).reshape(-1, 1, 1, 1)
    clear = ((x - 0.5).abs() < 0.45).flatten(1).all(dim=1).nonzero()[:n, 0]
    if len(clear) < n:
        raise ValueError(f"only {len(clear)} of {n} images lie clear of the box at distance {far}")
    return x[clear], labels[clear]


def distance(model: Linear, x: Tensor, labels: Tensor, norm: str) -> tuple[Tensor, Tensor]:
    """The exact distance to the nearest other class, and which it is: |margin| / dual norm of the difference."""
    z = model(x).detach()
    rows = torch.arange(len(x))
    gap = z[rows, labels][:, None] - z
    difference = model.weight.detach()[None] - model.weight.detach()[labels][:, None]
    dual = difference.norm(p={"linf": 1, "l1": torch.inf}.get(norm, 2), dim=2)
    far = torch.where(dual > 0, gap / dual, torch.inf)
    return far.min(dim=1)
