"""Were eps and step sizes meant in other units than they were given in?"""

from __future__ import annotations

__all__ = ["check_eps", "check_units"]

from collections.abc import Iterator

import torch

from tmifpe.attacks import Attack
from tmifpe.checks.flags import flag
from tmifpe.core.types import UNIT, Threat
from tmifpe.norms import get_norm
from tmifpe.run.result import Flag
from tmifpe.run.shard import Job

_SMALL = 0.05  # of eps: 2/255 and its like are below it, steps that were chosen in units of eps hardly ever


def check_units(job: Job) -> Iterator[Flag]:
    """Flags that follow from the request alone, without querying the model."""
    yield from check_eps(job.threat, tuple(job.data.shape))
    for attack in job.attack.stages:
        yield from _small_steps(job.threat, attack)


def check_eps(threat: Threat, shape: tuple[int, ...]) -> Iterator[Flag]:
    """Is eps a radius for images of this shape?"""
    yield from _large_eps(threat, shape)
    yield from _small_eps(threat, shape)


def _large_eps(threat: Threat, shape: tuple[int, ...]) -> Iterator[Flag]:
    corner = torch.full((1, *shape), threat.high - threat.low)
    box, half = f"[{threat.low:g}, {threat.high:g}]", float(get_norm(threat.norm).size(corner)) / 2
    if threat.eps < half * (1 - 1e-6):
        return
    # Pixel values of 255, which people read out of papers, in the units of this box.
    meant = f"{8 / 255 * (threat.high - threat.low):.4g}"
    if threat.box == UNIT:
        meant = f"{threat.eps:g}/255" if threat.eps >= 1 else "8/255"
    yield flag(
        "large-eps",
        f"eps {threat.eps:g} is at least {half:.3g}, half of the box {box} in {threat.norm}: "
        "any image can be turned into the same grey one, and no model can be robust.",
        f"eps is in the units of the images: for pixel values of 255 write `eps={meant}`."
        if threat.box == UNIT
        else f"eps is in the units of the box: what is 8/255 in [0, 1] is `eps={meant}` in {box}.",
    )


def _small_eps(threat: Threat, shape: tuple[int, ...]) -> Iterator[Flag]:
    """In a box larger than [0, 1], less than half a step of 255: meant for [0, 1]."""
    width = threat.high - threat.low
    step = float(get_norm(threat.norm).size(torch.full((1, *shape), width / 255)))
    if width > 1 and 0 < threat.eps < step / 2:
        yield flag(
            "small-eps",
            f"eps {threat.eps:.3g} is less than half of {step:.3g}, the size of a 255th of the box{threat.within}.",
            f"eps is in the units of the box: {threat.eps:.3g} in [0, 1] is `eps={threat.eps * width:.4g}` here.",
        )


def _small_steps(threat: Threat, attack: Attack) -> Iterator[Flag]:
    size, steps = getattr(attack, "step_size", None), getattr(attack, "steps", None)
    if not isinstance(size, float) or not isinstance(steps, int) or size >= _SMALL or not threat.eps:
        return
    across = 2 if getattr(attack, "random_start", True) else 1
    if size * steps < across * (1 - 1e-6):
        yield flag(
            "small-steps",
            f"{steps} steps of {size:.3g} eps do not cross the ball: step_size is in units of eps.",
            f"If it was meant in the units of the images, give step_size={size / threat.eps:.3g}; else more steps.",
        )
