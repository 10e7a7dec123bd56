"""The gradient at the images, which attacks need and training never does, as a matrix product."""

from __future__ import annotations

__all__ = ["ImageConv"]

from typing import Any

from torch import Tensor, autograd, nn
from torch.nn import functional

_MOST_CHANNELS = 4
"""Of images. On a CPU, libraries pad the channels of a gradient to eight or more, which for one channel took four times
as long as a product and its sums (docs/cost.md)."""


class ImageConv(nn.Module):
    """A convolution over few channels whose weights are fixed: the same on the way forward, and on the way back the
    product of the transposed weights and the gradient, summed up where the windows overlap.

    >>> import torch
    >>> layer, x = nn.Conv2d(1, 2, 3, padding=1).requires_grad_(False), torch.rand(1, 1, 4, 4, requires_grad=True)
    >>> grads = [torch.autograd.grad(net(x).square().sum(), x)[0] for net in (layer, ImageConv(layer))]
    >>> torch.allclose(*grads, atol=1e-5)
    True
    """

    transposed: Tensor

    def __init__(self, layer: nn.Conv2d) -> None:
        super().__init__()
        self.layer = layer
        self.register_buffer("transposed", layer.weight.detach().flatten(1).t().contiguous())

    @staticmethod
    def fits(layer: nn.Module | None) -> bool:
        return (
            isinstance(layer, nn.Conv2d)
            and layer.in_channels <= _MOST_CHANNELS
            and layer.groups == 1
            and layer.padding_mode == "zeros"
            and not isinstance(layer.padding, str)
            and layer.weight.device.type == "cpu"
        )

    def forward(self, x: Tensor) -> Tensor:
        # Where the image does not ask for its gradient there is none to compute, and without a batch no product.
        return _Conv.apply(x, self) if x.requires_grad and x.dim() == 4 else self.layer(x)


class _Conv(autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, conv: ImageConv) -> Tensor:
        ctx.conv, ctx.size = conv, x.shape[2:]
        return conv.layer(x)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Any) -> tuple[Tensor, None]:
        grad, layer = grad_outputs[0].flatten(2), ctx.conv.layer
        windows = ctx.conv.transposed @ grad
        size, stride, padding, dilation = layer.kernel_size, layer.stride, layer.padding, layer.dilation
        return functional.fold(windows, ctx.size, size, dilation, padding, stride), None
