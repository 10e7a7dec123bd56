"""Defences that mask or lie: each around a network that it leaves about as accurate as it was, and none more robust
than the network or its own noise makes it.

`DEFENCES[name](network)` returns the defended network; the network itself is what an adaptive attacker would follow.
"""

from __future__ import annotations

__all__ = ["DEFENCES"]

import copy
import hashlib
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Change = Callable[[Tensor], Tensor]


class Around(nn.Module):
    """Something before the images, in the forward pass itself, and something after the logits."""

    def __init__(self, network: nn.Module, before: Change = lambda x: x, after: Change = lambda z: z) -> None:
        super().__init__()
        self.network, self.before, self.after = network, before, after

    def forward(self, x: Tensor) -> Tensor:
        return self.after(self.network(self.before(x)))


class Fused(nn.Module):
    """The same without a seam: the parts of the network are called one by one, so that no module is the network."""

    def __init__(self, network: nn.Module, before: Change = lambda x: x, within: Change = lambda h: h) -> None:
        super().__init__()
        self.features, self.head = network.features, network.head
        self.before, self.within = before, within

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.within(self.features(self.before(x))))


class Named(nn.Module):
    """A change as a module of its own."""

    def __init__(self, change: Change) -> None:
        super().__init__()
        self.change = change

    def forward(self, x: Tensor) -> Tensor:
        return self.change(x)


class _Backward(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, change: Change) -> Tensor:
        ctx.change = change
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        return ctx.change(grads[0]), None


def backward(change: Change) -> Change:
    """The identity, with a backward pass of its own."""
    return lambda x: _Backward.apply(x, change)


def checkerboard(x: Tensor) -> Tensor:
    rows, columns = (torch.arange(n, device=x.device) for n in x.shape[-2:])
    return ((rows[:, None] + columns) % 2).to(x.dtype)


def levels(n: int) -> Change:
    return lambda x: torch.round(n * x) / n


def thermometer(x: Tensor) -> Tensor:
    """Ten bits per pixel, one per threshold; the network reads how many are set."""
    steps = torch.arange(1, 11, device=x.device, dtype=x.dtype).view(1, 10, 1, 1, 1) / 10
    return (x[:, None] >= steps - 0.05).to(x.dtype).mean(dim=1)


def few_bits(x: Tensor) -> Tensor:
    return (8 * x).to(torch.uint8).to(x.dtype) / 8


def drowned(g: Tensor) -> Tensor:
    return g + 10 * g.abs().mean() * torch.randn_like(g)


def turned(network: nn.Module) -> nn.Module:
    """A backward hook on the first layer turns half of the gradient."""
    network = copy.deepcopy(network)
    first = network.features[0]
    first.register_full_backward_hook(lambda m, given, got: tuple(g * (2 * checkerboard(g) - 1) for g in given))
    return network


def hooked(x: Tensor) -> Tensor:
    x = x + 0.0
    if x.requires_grad:
        x.register_hook(drowned)
    return x


def hashed(x: Tensor) -> Tensor:
    """Noise that the image itself seeds: the same whenever it is read, and another one a hair away."""
    rows = []
    for row in x.detach().cpu():
        seed = int.from_bytes(hashlib.sha256(row.numpy().tobytes()).digest()[:7], "big")
        rows.append(torch.randn(row.shape, generator=torch.Generator().manual_seed(seed)))
    return x + 0.05 * torch.stack(rows).to(x)


def moved(x: Tensor) -> Tensor:
    """Enlarged by a random size and put at a random place."""
    size = int(torch.randint(8, 10, ()))
    large = F.interpolate(x, size=(size, size), mode="bilinear", align_corners=False)
    down, right = (int(torch.randint(0, size - 7, ())) for _ in range(2))
    return large[..., down : down + 8, right : right + 8]


class Votes(nn.Module):
    """How many of nine noisy copies are called what."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, x: Tensor) -> Tensor:
        calls = [self.network(x + 0.08 * torch.randn_like(x)).argmax(dim=1) for _ in range(9)]
        return F.one_hot(torch.stack(calls), 10).sum(dim=0).to(x.dtype)


def _cosines() -> Tensor:
    k = torch.arange(8.0)
    table = torch.cos((2 * k[None, :] + 1) * k[:, None] * torch.pi / 16) / 2
    table[0] /= 2**0.5
    return table


def jpeg(x: Tensor) -> Tensor:
    table = _cosines().to(x)
    steps = 0.1 * (1 + torch.arange(8.0)[:, None] / 4 + torch.arange(8.0) / 4).to(x)
    return table.T @ (torch.round((table @ x @ table.T) / steps) * steps) @ table


def waves(x: Tensor) -> Tensor:
    return x + 0.003 * torch.sin(2000 * x)


def median(x: Tensor) -> Tensor:
    """Of each pixel and its four neighbours, mixed with the pixel: alone it would blur these small images."""
    wide = F.pad(x, (1, 1, 1, 1), mode="replicate")
    near = [wide[..., 1:-1, 1:-1], wide[..., :-2, 1:-1], wide[..., 2:, 1:-1], wide[..., 1:-1, :-2], wide[..., 1:-1, 2:]]
    return 0.6 * x.detach() + 0.4 * torch.stack(near).median(dim=0).values


class Liar(nn.Module):
    """With gradients, other logits: the same answer, far from the boundary, and a slope that means nothing."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network
        self.register_buffer("decoy", torch.randn(10, 64, generator=torch.Generator().manual_seed(5)))

    def forward(self, x: Tensor) -> Tensor:
        if not torch.is_grad_enabled():
            return self.network(x)
        answer = F.one_hot(self.network(x.detach()).argmax(dim=1), 10).to(x.dtype)
        return 30 * answer + F.linear(x.flatten(1), self.decoy)


class Watchful(nn.Module):
    """The same, but it looks at the images: whoever wants their gradient gets the network's on other images."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, x: Tensor) -> Tensor:
        return self.network(x.flip(-1).round() + 0 * x) if x.requires_grad else self.network(x)


class Winners(nn.Module):
    """k-winners-take-all (Xiao et al. 2020) in the place of a ReLU."""

    def forward(self, h: Tensor) -> Tensor:
        flat = h.flatten(1)
        least = flat.topk(max(1, flat.shape[1] * 3 // 10), dim=1).values[:, -1]
        return h * (h >= least.view(-1, *[1] * (h.dim() - 1))).to(h.dtype)


def winners(network: nn.Module) -> nn.Module:
    network = copy.deepcopy(network)
    for part in (network.features, network.head):
        for number, layer in enumerate(part):
            if isinstance(layer, nn.ReLU):
                part[number] = Winners()
    return network


class Caching(nn.Module):
    """Remembers its answers by content; what is remembered has no gradient."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network, self.known = network, dict[bytes, Tensor]()

    def forward(self, x: Tensor) -> Tensor:
        keys = [row.tobytes() for row in x.detach().cpu().numpy()]
        if any(key not in self.known for key in keys):
            if len(self.known) > 10_000:
                self.known.clear()
            self.known.update(zip(keys, self.network(x).detach(), strict=True))
        return torch.stack([self.known[key] for key in keys]) + 0 * x.sum()


def without_gradients(x: Tensor) -> Tensor:
    with torch.no_grad():
        return 0.9 * x + 0.1 * F.avg_pool2d(F.pad(x, (1, 1, 1, 1), mode="replicate"), 3, stride=1)


def steep(x: Tensor) -> Tensor:
    """Tanhs in a row, far out where they are flat; their sum is about the pixel."""
    parts = [torch.tanh(400 * (x - (k + 0.5) / 16)) for k in range(16)]
    return 0.5 + torch.stack(parts).sum(dim=0) / 32


def halves(h: Tensor) -> Tensor:
    half = h.shape[1] // 2
    return torch.cat([h[:, :half].detach(), h[:, half:]], dim=1)


def decided(z: Tensor) -> Tensor:
    return 10 * F.one_hot(z.argmax(dim=1), z.shape[1]).to(z.dtype)


DEFENCES: dict[str, Callable[[nn.Module], nn.Module]] = {
    "lies with gradients": Liar,
    "lies to whoever asks": Watchful,
    "ripple in forward": lambda net: Fused(net, before=waves),
    "ripple as a module": lambda net: nn.Sequential(Named(waves), net),
    "half of the signs turned": lambda net: Around(net, backward(lambda g: g * (2 * checkerboard(g) - 1))),
    "forgotten flip": lambda net: Fused(net, before=backward(lambda g: g.flip(-1))),
    "random gradient": lambda net: Around(net, backward(torch.randn_like)),
    "hook turns the gradient": turned,
    "hook drowns the gradient": lambda net: Fused(net, before=hooked),
    "zero gradient": lambda net: Around(net, after=backward(torch.zeros_like)),
    "rounding in forward": lambda net: Fused(net, before=levels(8)),
    "rounding in a module": lambda net: nn.Sequential(Named(levels(8)), net),
    "thermometer": lambda net: Around(net, thermometer),
    "bit depth": lambda net: Fused(net, before=few_bits),
    "JPEG": lambda net: Around(net, jpeg),
    "median filter": lambda net: Around(net, median),
    "no_grad inside": lambda net: Fused(net, before=without_gradients),
    "steep tanh": lambda net: nn.Sequential(Named(steep), net),
    "k-winners": winners,
    "detached halves": lambda net: Fused(net, within=halves),
    "rounded features": lambda net: Fused(net, within=levels(4)),
    "integer outputs": lambda net: Around(net, after=torch.round),
    "one-hot outputs": lambda net: Around(net, after=decided),
    "saturated outputs": lambda net: Around(net, after=lambda z: (1000 * z).softmax(dim=1)),
    "noise": lambda net: Around(net, lambda x: x + 0.05 * torch.randn_like(x)),
    "hash noise": lambda net: Around(net, hashed),
    "random resizing": lambda net: Around(net, moved),
    "votes": Votes,
    "caching": Caching,
}
"""By name."""
