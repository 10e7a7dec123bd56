"""A traced model, which bounds the margins of images of one threat."""

from __future__ import annotations

__all__ = ["METHOD", "Certifier"]

from dataclasses import dataclass

import torch
from torch import Tensor

from tmifpe.certificates import bounds
from tmifpe.certificates.bounds import Region
from tmifpe.certificates.node import Graph, Range
from tmifpe.certificates.rounding import Rounding
from tmifpe.certificates.trace import trace
from tmifpe.core.errors import InputError
from tmifpe.core.types import Model, Threat
from tmifpe.norms import NORMS

METHOD = "crown"
"""What a stored run calls these bounds; tighter ones will need another name, since they are another answer."""
BATCH = 32
"""Images whose bounds are computed together."""
STEPS = 6
"""Radii to try in search of the largest certified one."""


@dataclass(frozen=True)
class Certifier:
    """`model`, in eval mode and frozen, as `network`; it computes in `dtype`."""

    model: Model
    network: Graph
    threat: Threat
    dtype: torch.dtype

    @classmethod
    def of(cls, model: Model, example: Tensor, threat: Threat) -> Certifier:
        """From one image (1, C, H, W) in the dtype that the model computes in; `InputError` if no bounds are known."""
        if NORMS.canonical(threat.norm) != "linf":
            raise InputError(f"certificates are for the norm linf, not for {threat.norm}")
        if example.dtype not in (torch.float32, torch.float64):
            raise InputError(f"certificates are for models in float32 or float64, not in {example.dtype}")
        if example.device.type == "mps":
            raise InputError("certificates need float64, which Apple's GPUs do not have; choose the device cpu")
        return cls(model, trace(model, example), threat, example.dtype)

    @torch.no_grad()
    def margin_bounds(self, x: Tensor, labels: Tensor, eps: Tensor, batch_size: int = BATCH) -> Tensor:
        """Upper bounds of the margins of images x (n, C, H, W) within eps (n,), in float64; +inf for none."""
        rows = torch.arange(len(x), device=x.device).split(batch_size)
        found = [self._batch(x[part], labels[part], eps[part]) for part in rows]
        return torch.cat(found) if found else eps.new_zeros(0)

    def _batch(self, x: Tensor, labels: Tensor, eps: Tensor) -> Tensor:
        """Intervals first, then CROWN within their ranges, then CROWN within its own: each for the rows left over."""
        region, model = self._region(x, eps), Rounding(self.dtype)
        ranges = bounds.ranges_by_intervals(self.network, region, model)
        self._check(x, ranges[-1])
        found = bounds.margins_by_intervals(ranges[-1], labels).nan_to_num(nan=torch.inf)
        for tighter in (False, True):
            rows = (found >= 0).nonzero()[:, 0]
            if not len(rows):
                break
            part = (
                bounds.ranges_by_crown(self.network, region.take(rows), model)
                if tighter
                else [one.take(rows) for one in ranges]
            )
            margins = bounds.margins_by_crown(self.network, part, labels[rows]).nan_to_num(nan=torch.inf)
            found[rows] = torch.minimum(found[rows], margins)
        return found

    def radii(self, x: Tensor, labels: Tensor, bad: Tensor, steps: int = STEPS, batch_size: int = BATCH) -> Tensor:
        """The largest radius below `bad` (n,) at which each image was certified, in `steps` tries; 0 if at none.

        The bound of the margin is nearly straight as a function of the radius, so that where it would cross zero is a
        better guess than half-way. The guess stays off the ends, and every third try is half-way, in case it bends.
        """
        good, bad = torch.zeros_like(bad), bad.clone()
        inside = self.margin_bounds(x, labels, good, batch_size)
        outside = torch.full_like(inside, torch.inf)
        for number in range(steps):
            share = torch.where(torch.isfinite(outside), inside / (inside - outside), 0.5).clamp(0.05, 0.95)
            tried = good + (bad - good) * (0.5 if number % 3 == 0 else share)
            bound = self.margin_bounds(x, labels, tried, batch_size)
            held = bound < 0
            good, inside = torch.where(held, tried, good), torch.where(held, bound, inside)
            bad, outside = torch.where(held, bad, tried), torch.where(held, outside, bound)
        return torch.where(good > 0, good, 0.0)

    def _region(self, x: Tensor, eps: Tensor) -> Region:
        """The ball in the box, rounded outwards. An attack's point may lie outside by its dtype's rounding."""
        threat = self.threat
        slack = torch.finfo(self.dtype).eps * max(abs(threat.low), abs(threat.high))
        up = torch.tensor(torch.inf, dtype=torch.float64, device=x.device)
        centre, radius = x.double(), torch.nextafter(eps.double() + slack, up).reshape(-1, *(1 for _ in x.shape[1:]))
        low, high = torch.nextafter(centre - radius, -up), torch.nextafter(centre + radius, up)
        return Region(low.clamp(min=threat.low), high.clamp(max=threat.high))

    def _check(self, x: Tensor, logits: Range) -> None:
        """The nodes are the model: at the images themselves they give its logits, up to the rounding allowed for."""
        computed = self.model(x).double()
        off = (self.network(x.double()) - computed).abs()
        # The nodes compute in float64, too, and round as a model in float64 does.
        allowed = logits.error * (2 if self.dtype == torch.float64 else 1 + 2.0**-20)
        if not bool((off <= allowed).all()):
            raise InputError(
                "the model cannot be certified: its logits differ from those of the traced network by "
                f"{float((off - allowed).max()):.2g} more than its dtype rounds; it may be random, remember "
                "earlier images, or compute in a lower precision such as TF32"
            )
