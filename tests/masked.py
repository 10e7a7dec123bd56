"""Tiny models that give flattering numbers in every way the literature knows, and one honest model they wrap."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tmifpe import PGD
from tmifpe.attacks.ascent import AscentState
from tmifpe.attacks.loop.queries import Evaluated
from tmifpe.attacks.loop.rows import Problem
from tmifpe.core import rng
from tmifpe.norms import column

PIXELS = 16


class Honest(nn.Module):
    """A smooth linear classifier of 1x4x4 images; `scale` multiplies its logits and changes no prediction."""

    def __init__(self, classes: int = 4, scale: float = 1.0) -> None:
        super().__init__()
        weight = torch.randn(classes, PIXELS, generator=torch.Generator().manual_seed(3))
        self.weight = nn.Parameter(scale * weight)
        self.bias = nn.Parameter(-0.5 * scale * weight.sum(dim=1))

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x.flatten(1), self.weight, self.bias)


def images(n: int = 24) -> Tensor:
    """Spread over the box, but not up to its ends."""
    return 0.1 + 0.8 * torch.rand(n, 1, 4, 4, generator=torch.Generator().manual_seed(4))


class Wrapped(nn.Module):
    """The honest model with something before its input and something after its logits."""

    def __init__(
        self,
        before: Callable[[Tensor], Tensor] = lambda x: x,
        after: Callable[[Tensor], Tensor] = lambda z: z,
        inner: nn.Module | None = None,
    ) -> None:
        super().__init__()
        self.inner = inner or Honest()
        self.before, self.after = before, after

    def forward(self, x: Tensor) -> Tensor:
        return self.after(self.inner(self.before(x)))


class Remembering(nn.Module):
    """Computes what it is asked a gradient for, and remembers the rest by a key of the images; with none, computes."""

    def __init__(self, key: Callable[[Tensor], Hashable] | None, inner: nn.Module | None = None) -> None:
        super().__init__()
        self.inner, self.key, self.known = inner or Honest(), key, dict[Hashable, Tensor]()

    def forward(self, x: Tensor) -> Tensor:
        if self.key is None or x.requires_grad:
            return self.inner(x)
        return self.known.setdefault(self.key(x), self.inner(x))


def quantise(x: Tensor) -> Tensor:
    """Thermometer-like input quantisation (Buckman et al. 2018): no gradient."""
    return torch.round(8 * x) / 8


def straight_through(x: Tensor) -> Tensor:
    """The same with the gradient of the identity: what an adaptive attacker uses (BPDA, Athalye et al. 2018)."""
    return x + (quantise(x) - x).detach()


def shatter(x: Tensor) -> Tensor:
    """Invisible fast waves: a gradient that is there, and says nothing about the loss a step away."""
    return x + 0.02 * torch.sin(5000 * x)


def noise(x: Tensor) -> Tensor:
    return x + 0.15 * torch.randn_like(x)


def drop(x: Tensor) -> Tensor:
    return F.dropout(x, 0.3, training=True)


def purify(x: Tensor) -> Tensor:
    """One inner gradient step at inference, as test-time defences do."""
    with torch.enable_grad():
        inner = x.detach().requires_grad_()
        (grad,) = torch.autograd.grad((inner - 0.5).square().sum(), inner)
    return x - 0.01 * grad


def recentred(z: Tensor) -> Tensor:
    """Batch-dependent without any BatchNorm."""
    return z - z.mean(dim=0, keepdim=True)


def overflowing(x: Tensor) -> Tensor:
    """Fine on the images, NaN (the square root of a negative number) outside their range."""
    return x + 0 * torch.sqrt(0.95 - x.amax(dim=(1, 2, 3), keepdim=True))


def cancelling(z: Tensor) -> Tensor:
    """Exact in float64; in float32 what is below 2 is lost."""
    return (z + 2.0**24) - 2.0**24


class Named(nn.Module):
    """A function as a module, so that it has a name in the model and a class of its own."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)


def binarise(x: Tensor) -> Tensor:
    """Black and white, as in bit-depth reduction taken to its end (Xu et al. 2018)."""
    return (x > 0.5).to(x.dtype)


def squash(x: Tensor) -> Tensor:
    """Sigmoids far out where they are flat."""
    return torch.sigmoid(400 * (x - 0.5))


def poison(x: Tensor) -> Tensor:
    """Adds nothing, but the square root of zero has an infinite slope: NaN on the way back."""
    return x + torch.sqrt((x - x).abs())


def sharpen(z: Tensor) -> Tensor:
    """Probabilities so sure that the softmax is one-hot in floating point (defensive distillation)."""
    return (1000 * z).softmax(dim=1)


def decide(z: Tensor) -> Tensor:
    """Nothing but the answer, as behind a label-only interface."""
    return F.one_hot(z.argmax(dim=1), z.shape[1]).to(z.dtype)


KILLERS: dict[str, tuple[str, Callable[[Tensor], Tensor]]] = {
    "quantise": ("before", quantise),
    "detach": ("before", lambda x: x.detach().clone()),
    "shatter": ("before", shatter),
    "binarise": ("before", binarise),
    "squash": ("before", squash),
    "poison": ("before", poison),
    "sharpen": ("after", sharpen),
    "decide": ("after", decide),
}
"""What kills a gradient, and where in `Wrapped` it does so."""


def killed(kind: str) -> Wrapped:
    """The honest model with one of the killers, as a module."""
    place, function = KILLERS[kind]
    return Wrapped(**{place: Named(function)})


class Remote(nn.Module):
    """Class 0 by a constant lead with a weak slope; but a pixel far from grey speaks loudly, which few small changes
    to all pixels never reach and one large change does. So do networks that were trained to ignore small changes."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = Honest()

    def forward(self, x: Tensor) -> Tensor:
        far = torch.relu((x - 0.5).abs() - 0.35).flatten(1)
        return torch.eye(4)[0] + 0.1 * self.inner(x) + 20 * F.linear(far, self.inner.weight)


class Normed(nn.Module):
    """BatchNorm in front, in train or eval mode whatever its owner says."""

    def __init__(self, train: bool) -> None:
        super().__init__()
        self.norm = nn.BatchNorm2d(1, affine=False)
        self.inner, self.forced = Honest(), train
        self.norm.running_mean.fill_(0.5)
        self.norm.running_var.fill_(0.25**2)

    def forward(self, x: Tensor) -> Tensor:
        mean, var = self.norm.running_mean, self.norm.running_var
        return self.inner(0.5 + 0.25 * F.batch_norm(x, mean, var, training=self.forced))


class Dropping(nn.Module):
    """A dropout layer that eval mode switches off, as it should."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.layer = Honest(), nn.Dropout(0.5)

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(self.layer(x))


@dataclass(frozen=True)
class Corners(PGD):
    """Gradient-free: a random corner of the ball at every step."""

    name: ClassVar[str] = "corners"
    needs_gradient: ClassVar[bool] = False

    def step(self, problem: Problem, state: AscentState, evaluated: Evaluated) -> AscentState:
        k = int(state.looks.max())
        draw = rng.uniform(problem.seed, problem.indices, problem.stage, k, tuple(problem.x.shape[1:]))
        ball = problem.ball
        corner = problem.x + column(ball.radius, problem.x) * torch.sign(draw - 0.5)
        moved = problem.norm.project(corner, ball)
        return AscentState(moved, state.x, state.velocity, state.looks + 1)
