"""Is the gradient that of the model? Steps along it are compared with what the model then says, and the logits that
come with a gradient with those that come without."""

from __future__ import annotations

__all__ = ["FEW", "SIZES", "agreement", "check_behaviour", "check_gradient", "margin_of"]

from collections.abc import Iterator

import torch
from torch import Tensor

from tmifpe.attacks.loop.queries import Objective
from tmifpe.attacks.loop.rows import Problem
from tmifpe.checks.flags import flag
from tmifpe.checks.sample import Sample, change_of, share
from tmifpe.core import numerics
from tmifpe.losses import get_loss
from tmifpe.norms import column
from tmifpe.run.prepared_model import PreparedModel
from tmifpe.run.result import Flag

FEW = 12
"""Examples looked at."""
SIZES = {1 / 16: 0.6, 1 / 8: 0.3}
"""How much of the promised change of the margin must come, in the median, for steps of these sizes, in units of eps.
One is not enough: a ripple agrees with its gradient within its own wavelength. The honest networks of the choose half
kept 0.83 and 0.77, and 0.67 and 0.48 at four times their eps."""
_TORN = 0.1
"""And in three of four examples, for the smallest: a random gradient may promise too little as well as too much."""
_ROUNDING = 64
"""Units in the last place of the logits, below which a promise is not held against anybody."""


def check_gradient(sample: Sample, grad: Tensor) -> Iterator[Flag]:
    """`grad` (n, ...) is that of the margin at the images."""
    if sample.problem.threat.eps == 0:
        return
    found = {size: ratios for size in SIZES if len(ratios := agreement(sample, grad, size)) >= min(4, len(sample))}
    for size, ratios in found.items():  # more than promised misleads nobody: saturated units start flat
        middle, low = float(ratios.median()), float(ratios.quantile(0.25))
        if middle < SIZES[size] or (size == min(SIZES) and low < _TORN):
            yield flag(
                "gradient-disagrees",
                f"Steps of {size:g} eps along the gradient of the margin change it by {middle:.2f} of the promise, "
                f"in the median of {len(ratios)} correct images (a quarter of them by {low:.2f} or less).",
            )
            return


def agreement(sample: Sample, grad: Tensor, size: float) -> Tensor:
    """The actual by the promised change of the margin between two points, `size` eps ahead and behind, of rows for
    which the promise is more than rounding; 1 where the gradient is right and the margin not too curved.

    Between two points the curvature in the middle cancels, and the rival is the runner-up at the image. Under every
    norm all pixels move alike: a single one that moves far soon meets other rectifiers.
    """
    p, norm = sample.problem, sample.problem.norm
    ball = p.at(size * p.eps).ball
    grad = torch.nan_to_num(grad, 0.0, 0.0, 0.0)
    signs = torch.sign(grad)
    way = signs * column(ball.radius / norm.size(signs).clamp(min=1.0), grad)
    ahead, behind = norm.project(p.x + way, ball), norm.project(p.x - way, ball)
    wide = numerics.wide_dtype(p.x.device)
    promised = (grad.to(wide) * (ahead.to(wide) - behind.to(wide))).flatten(1).sum(dim=1)
    first, second = sample.read(ahead).to(wide), sample.read(behind).to(wide)
    rival = sample.logits.scatter(1, p.labels[:, None], -torch.inf).argmax(dim=1) if p.targets is None else p.targets

    def gap(logits: Tensor) -> Tensor:
        return (logits.gather(1, rival[:, None]) - logits.gather(1, p.labels[:, None]))[:, 0]

    scale = torch.maximum(first.abs().amax(dim=1), second.abs().amax(dim=1))
    dtype = sample.queries.dtype or p.x.dtype
    clear = promised > _ROUNDING * torch.finfo(dtype).eps * scale
    return ((gap(first) - gap(second)) / promised)[clear]


def check_behaviour(sample: Sample, prepared: PreparedModel) -> Iterator[Flag]:
    """The same batch without gradients (which decides), with them, and with them for images that want none."""
    quiet = sample.read(sample.problem.x)
    ways = {
        "when its gradient is asked for": sample.queries.logits_with_gradient(sample.problem.x),
        "when gradients are on": sample.queries.logits_with_gradient(sample.problem.x, of_images=False),
    }
    for what, logits in ways.items():
        moved = change_of(logits.to(quiet.dtype), quiet, prepared) > 1
        if bool(moved.any()):
            yield flag(
                "behaves-differently", f"The logits of {share(moved):.0%} of {len(sample)} images change {what}."
            )
            return


def margin_of(problem: Problem) -> Objective:
    """What gradients are looked at of."""
    loss = get_loss("cw")
    return lambda logits: loss(logits, problem.labels, problem.targets)
