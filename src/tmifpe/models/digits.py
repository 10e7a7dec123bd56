"""The network of the bundled models `digits-robust` and `digits-distilled`."""

from __future__ import annotations

__all__ = ["DigitsCNN"]

from torch import Tensor, nn


class DigitsCNN(nn.Module):
    """A small CNN from 1x8x8 images in [0, 1] to 10 logits; 47,530 parameters, the same in train and eval mode.

    No BatchNorm and no dropout, so that what the demo shows is the loss and not the mode of the network.

    >>> import torch
    >>> DigitsCNN()(torch.zeros(2, 1, 8, 8)).shape
    torch.Size([2, 10])
    """

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, 16, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(16, 32, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(32, 32, 3, stride=2, padding=1),
            nn.ReLU(),
        )
        self.head = nn.Sequential(nn.Flatten(), nn.Linear(32 * 4 * 4, 64), nn.ReLU(), nn.Linear(64, 10))

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.features(x))
