"""A smoother backward pass: the forward pass stays as it is, and dead units pass some gradient on.

Near an image the units that matter may be off, and 1[z > 0] then passes nothing back: what looks like robustness is a
dead gradient. Here the step function of every rectifier is replaced, on the way back only, by a ramp as wide as the
unit's layer varies: clamp(z/(4 s) + 1/2, 0, 1), a piecewise linear sigmoid with s = share/L · std(z), where std(z) is
the deviation of the row's own activations in that layer and L the number of rectifiers in the network. At share 0 it is
the true gradient, so an attack whose share falls to 0 ends with honest steps. Success is judged by the forward pass, no
bit of which changes.

Sharing it among the rectifiers makes one value fit all: errors of the backward pass add up from layer to layer, so that
a deep network bears less in each (measured: a ResNet-18 with 17 of them wants at most 0.25, small networks about 1).

Related work: BPDA (Athalye et al. 2018) replaces the backward pass of parts that have no gradient; LinBP (Guo et al.
2020) passes the gradient through all ReLUs of the later layers, for transfer; smooth adversarial training (Xie et al.
2020) changes the network itself. What is new here is the width, which follows each row's own activations and the depth
of the network and shrinks to 0 during the attack, so that nothing has to be tuned to a network and the last steps climb
the true loss.
"""

from __future__ import annotations

__all__ = ["SmoothBackward"]

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from tmifpe.core.numerics import compute_dtype
from tmifpe.norms import column

_STEP = 1e30
"""A ramp so steep that it is a step."""


class SmoothBackward(TorchFunctionMode):
    """Within: rectifiers of tensors whose first dimension counts the rows of the batch get the smoother backward.

    `share` (n,) is each row's own, divided by the number of rectifiers; rows at 0 get the true gradient. `smoothed`
    and `left` count the rectifiers that were treated and those that were not, since their first dimension is another.
    Compiled TorchScript is not seen. A clamp of the images themselves, before the first layer with weights, is none.

    >>> x = torch.tensor([[-0.1, 2.0]], requires_grad=True)
    >>> with SmoothBackward(torch.tensor([1.0])):
    ...     y = torch.relu(x)
    >>> y.sum().backward(); y.tolist(), bool(x.grad[0, 0] > 0)
    ([[0.0, 2.0]], True)
    """

    def __init__(self, share: Tensor) -> None:
        super().__init__()
        self.share = share
        self.left = 0
        self.spreads: list[Tensor] = []
        """Of every rectifier that was treated, the deviation of each row's activations (n,)."""

    @property
    def smoothed(self) -> int:
        return len(self.spreads)

    @cached_property
    def ramps(self) -> tuple[Tensor, Tensor]:
        """How steep the ramp of each rectifier is in each row and where it stands, both (L, n); to be read on the way
        back, when it is known how many rectifiers share the smoothing. A row that has no part in it, or whose
        activations are all the same, has a step instead: 1[z > 0] for all but the smallest numbers."""
        spreads = torch.stack([spread.to(self.share.device) for spread in self.spreads])
        wide = spreads * (self.share / self.smoothed)
        smooth = wide > 0  # false for NaN, too
        steep = torch.where(smooth, 0.25 / torch.where(smooth, wide, 1.0), _STEP)
        return steep, torch.where(smooth, 0.5, 0.0)

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        named = kwargs or {}
        corners, curved = _corners(func, args, named), _curved(func, named)
        z = args[0] if args else named.get("input")
        if (corners is None and not curved) or not isinstance(z, Tensor) or not z.requires_grad:
            return func(*args, **named)
        if corners is not None and corners.clips and _is_image(z):
            return func(*args, **named)
        if z.dim() < 2 or len(z) != len(self.share):
            self.left += 1
            return func(*args, **named)
        rest = {name: value for name, value in named.items() if name != "input"}

        def unit(inner: Tensor) -> Tensor:
            return func(inner, *args[1:], **rest)

        return _Smooth.apply(z, self, corners, unit) if corners is not None else _SmoothCurved.apply(z, self, unit)


@dataclass(frozen=True)
class _Corners:
    """A piecewise linear unit: slope `leak` below `low`, 1 up to `high`, 0 above; and whether it works in place."""

    low: float
    high: float = torch.inf
    leak: float = 0.0
    in_place: bool = False
    clips: bool = False
    """Whether it is of the kind that also keeps images in their box."""


def _corners(func: Callable[..., Any], args: tuple[Any, ...], named: dict[str, Any]) -> _Corners | None:
    """What kind of rectifier `func` is with these arguments; None for everything else."""
    name = getattr(func, "__name__", "")
    kind = name.strip("_")  # F.threshold calls itself _threshold
    make = _KINDS.get(kind)
    if make is None:
        return None

    def given(place: int, option: str, default: Any) -> Any:
        return named.get(option, args[place] if len(args) > place else default)

    found = make(given)
    if found is None:
        return None
    low, high, leak, in_place = found
    plain = all(isinstance(number, int | float) for number in (low, high, leak))
    if not plain:
        return None
    return _Corners(float(low), float(high), float(leak), bool(in_place) or name.endswith("_"), kind in _CLIPS)


def _is_image(z: Tensor) -> bool:
    """Whether no layer with weights, and no other rectifier, lies between the images and z: what clips it then
    prepares the images, and is no unit that may be dead."""
    waiting, seen = [z.grad_fn], set()
    while waiting:
        node = waiting.pop()
        if node is None or node in seen:
            continue
        if _LAYER.fullmatch(node.name()):
            return False
        seen.add(node)
        waiting += [before for before, _ in node.next_functions]
    return True


_CURVED = frozenset({"tanh", "sigmoid", "gelu", "silu", "softplus", "elu", "selu", "celu", "mish", "hardswish"})
"""Units with a slope that changes, and may vanish, over more than a corner."""


def _curved(func: Callable[..., Any], named: dict[str, Any]) -> bool:
    """Whether `func` is such a unit, and leaves its input as it is."""
    return getattr(func, "__name__", "") in _CURVED and not named.get("inplace", False)


_Given = Callable[[int, str, Any], Any]


def _clamp(given: _Given) -> tuple[Any, Any, Any, Any] | None:
    low, high = given(1, "min", None), given(2, "max", None)
    if low is None and high is None:
        return None
    return -torch.inf if low is None else low, torch.inf if high is None else high, 0.0, False


def _threshold(given: _Given) -> tuple[Any, Any, Any, Any] | None:
    low, value = given(1, "threshold", None), given(2, "value", None)
    return (low, torch.inf, 0.0, given(3, "inplace", False)) if low == value else None


_KINDS: dict[str, Callable[[_Given], tuple[Any, Any, Any, Any] | None]] = {
    "relu": lambda given: (0.0, torch.inf, 0.0, given(1, "inplace", False)),
    "relu6": lambda given: (0.0, 6.0, 0.0, given(1, "inplace", False)),
    "leaky_relu": lambda given: (0.0, torch.inf, given(1, "negative_slope", 0.01), given(2, "inplace", False)),
    "hardtanh": lambda given: (given(1, "min_val", -1.0), given(2, "max_val", 1.0), 0.0, given(3, "inplace", False)),
    "threshold": _threshold,
    "clamp": _clamp,
    "clip": _clamp,
    "clamp_min": lambda given: (given(1, "min", None), torch.inf, 0.0, False),
    "clamp_max": lambda given: (-torch.inf, given(1, "max", None), 0.0, False),
}


_CLIPS = ("clamp", "clip", "clamp_min", "clamp_max", "hardtanh")
_LAYER = re.compile(
    r"(\w*(Conv|BatchNorm|LayerNorm|GroupNorm|Rnn|Prelu|Attention|DifferentiableGraph|Compiled|Checkpoint)\w*"
    r"|Mm|Addmm|Bmm|Baddbmm|Mv|Addmv|Dot|Trilinear|Linear|MkldnnLinear|_Smooth|_SmoothCurved)Backward\d*"
)
"""What autograd calls the steps that layers with weights take, and code that it cannot look into."""


class _Smooth(torch.autograd.Function):
    """The slope is found on the way back: only then is it known how many rectifiers share the smoothing."""

    @staticmethod
    def forward(
        ctx: Any, z: Tensor, smoothing: SmoothBackward, corners: _Corners, unit: Callable[[Tensor], Tensor]
    ) -> Tensor:
        ctx.smoothing, ctx.corners, ctx.number = smoothing, corners, smoothing.smoothed
        smoothing.spreads.append(_spread(z))
        # A copy, and before the unit runs: it, or what follows, may overwrite z.
        ctx.save_for_backward(z.clone())
        if corners.in_place:
            ctx.mark_dirty(z)
        return unit(z)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Any) -> tuple[Tensor | None, ...]:
        (z,) = ctx.saved_tensors
        z = z.to(compute_dtype(z.dtype))
        steep, shift = (column(of_all[ctx.number].to(z), z) for of_all in ctx.smoothing.ramps)
        (grad,) = grad_outputs
        return _slope(z, steep, shift, ctx.corners).to(grad.dtype).mul_(grad), None, None, None


class _SmoothCurved(torch.autograd.Function):
    """The mean slope between z - w and z + w, (f(z + w) - f(z - w)) / 2w, with w half as wide as the ramp of a
    rectifier, which is the same of 1[z > 0]."""

    @staticmethod
    def forward(ctx: Any, z: Tensor, smoothing: SmoothBackward, unit: Callable[[Tensor], Tensor]) -> Tensor:
        ctx.smoothing, ctx.unit, ctx.number = smoothing, unit, smoothing.smoothed
        smoothing.spreads.append(_spread(z))
        ctx.save_for_backward(z)
        return unit(z)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Any) -> tuple[Tensor | None, ...]:
        (z,), (grad,) = ctx.saved_tensors, grad_outputs
        wide = 0.5 / ctx.smoothing.ramps[0][ctx.number].to(compute_dtype(z.dtype))
        smooth = wide > 1 / _STEP
        width = column(torch.where(smooth, wide, 1.0), z).to(z.dtype)
        slope = (ctx.unit(z + width) - ctx.unit(z - width)) / (2 * width)
        if not bool(smooth.all()):
            with torch.enable_grad():
                leaf = z.detach().requires_grad_()
                (true,) = torch.autograd.grad(ctx.unit(leaf).sum(), leaf)
            slope = torch.where(column(smooth, z), slope, true)
        return slope.mul_(grad), None, None


def _spread(z: Tensor) -> Tensor:
    """The standard deviation of each row (n,). torch's own, in one pass, takes fifteen times as long on a CPU."""
    wide, every = z.to(compute_dtype(z.dtype)), tuple(range(1, z.dim()))
    size = math.sqrt(max(1, z.numel() // max(1, len(z))))
    return torch.linalg.vector_norm(wide - wide.mean(every, keepdim=True), dim=every).div_(size)


def _slope(z: Tensor, steep: Tensor, shift: Tensor, corners: _Corners) -> Tensor:
    """leak + (1 − leak) ramp(z − low) − ramp(z − high)"""

    def ramp(corner: float) -> Tensor:
        # addcmul would do this number by number, since two of the three are one number per row.
        return (z * steep).add_(shift - corner * steep if corner else shift).clamp_(0, 1)

    slope = torch.ones_like(z) if corners.low == -torch.inf else ramp(corners.low)
    if corners.leak:
        slope = slope.mul_(1 - corners.leak).add_(corners.leak)
    return slope if corners.high == torch.inf else slope.sub_(ramp(corners.high))
