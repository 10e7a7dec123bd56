"""Bounds of the logits over a region of images: intervals forwards, linear functions backwards (CROWN).

Intervals go from layer to layer and forget how values depend on each other. CROWN (Zhang et al. 2018) goes back from a
linear function of a node to one of the image and keeps linear dependences: it replaces each nonlinearity by a line
above or below it that holds in its range. The ranges come from intervals (as in CROWN-IBP, Zhang et al. 2020), or from
CROWN itself, which is tighter and costs one linear function per undecided value; there the lines above and below are
parallel (as in Fast-Lin, Weng et al. 2018), so that one linear function bounds the value from both sides.
"""

from __future__ import annotations

__all__ = ["Region", "margins_by_crown", "margins_by_intervals", "ranges_by_crown", "ranges_by_intervals"]

from dataclasses import dataclass

import torch
from torch import Tensor

from tmifpe.certificates.max_pool import MaxPool
from tmifpe.certificates.node import Graph, Range, dot, total
from tmifpe.certificates.piecewise import Piecewise
from tmifpe.certificates.rounding import Rounding

_OWN = Rounding(torch.float64)
_VALUES = 2**22
"""Coefficients held at once, 32 MiB in float64: what fits the caches best, and memory in any case."""


@dataclass(frozen=True)
class Region:
    """The images low <= x <= high, value by value, for each row: (n, C, H, W) in float64."""

    low: Tensor
    high: Tensor

    def take(self, rows: Tensor) -> Region:
        return Region(self.low[rows], self.high[rows])

    def range(self) -> Range:
        """The image is what it is: no rounding yet."""
        size = torch.maximum(self.low.abs(), self.high.abs())
        return Range(self.low, self.high, torch.zeros_like(size), size)


def ranges_by_intervals(network: Graph, region: Region, model: Rounding) -> list[Range]:
    """The range of every node, by interval arithmetic."""
    ranges = [region.range()]
    for node in network.nodes:
        ranges.append(node.reach([ranges[i] for i in node.inputs], model))
    return ranges


def ranges_by_crown(network: Graph, region: Region, model: Rounding) -> list[Range]:
    """The same, with CROWN for the values on which a nonlinearity is undecided."""
    ranges = [region.range()]
    nonlinear = {i: node for node in network.nodes if isinstance(node, Piecewise | MaxPool) for i in node.inputs}
    for number, node in enumerate(network.nodes, 1):
        ranges.append(node.reach([ranges[i] for i in node.inputs], model))
        follower = nonlinear.get(number)
        if follower is not None and not isinstance(node, Piecewise) and not _is_exact(network, number):
            ranges[number] = _tightened(network, ranges, number, follower.undecided(ranges[number]))
    return ranges


def _is_exact(network: Graph, number: int) -> bool:
    """Whether intervals lose nothing up to this node: one layer at most mixes values, and nothing is nonlinear."""
    mixing = 0
    while number:
        node = network.nodes[number - 1]
        if len(node.inputs) != 1 or not hasattr(node, "mixes"):
            return False
        mixing += node.mixes  # pyright: ignore[reportAttributeAccessIssue]
        (number,) = node.inputs
    return mixing <= 1


def _tightened(network: Graph, ranges: list[Range], number: int, undecided: Tensor) -> Range:
    """The range of a node with its undecided values bounded by CROWN, where that is tighter."""
    known = ranges[number]
    low, high = known.low.flatten(1).clone(), known.high.flatten(1).clone()
    flags = undecided.flatten(1)
    counts = flags.sum(dim=1)
    order = counts.argsort(descending=True)  # rows of about as many undecided values share a piece
    order = order[: int((counts > 0).sum())]
    width = max(torch.Size(shape).numel() for shape in (network.shape, *(n.shape for n in network.nodes[:number])))
    start = 0
    while start < len(order):
        most = int(counts[order[start]])
        rows = order[start : start + max(1, _VALUES // (most * width))]
        start += len(rows)
        # The undecided ones first; a row with fewer of them fills up with values that are decided already.
        picked = flags[rows].int().argsort(dim=1, descending=True, stable=True)[:, :most]
        part = [r.take(rows) for r in ranges[: number + 1]]
        for columns in picked.split(max(1, _VALUES // (len(rows) * width)), dim=1):
            unit = low.new_zeros(len(rows), columns.shape[1], low.shape[1])
            unit.scatter_(2, columns[:, :, None], 1.0)
            unit = unit.reshape(*columns.shape, *known.low.shape[1:])
            where = (rows[:, None], columns)
            below, above = _bound(network, part, number, unit, parallel=True)
            low[where], high[where] = torch.maximum(low[where], below), torch.minimum(high[where], above)
    low, high = low.reshape(known.low.shape), high.reshape(known.high.shape)
    return Range(low, high, known.error, known.size)


def _bound(
    network: Graph, ranges: list[Range], number: int, coefficients: Tensor, parallel: bool = False
) -> tuple[Tensor, Tensor]:
    """Bounds from below and, if `parallel`, from above of `coefficients * node` over the region, (n, S) each;
    coefficients (n, S, *shape)."""
    waiting = {number: coefficients}
    below = above = size = coefficients.new_zeros(coefficients.shape[:2])
    for here in range(number, 0, -1):
        if here not in waiting:
            continue
        node = network.nodes[here - 1]
        lines = node.back(waiting.pop(here), [ranges[i] for i in node.inputs], ranges[here], parallel)
        below, above, size = below + lines.below, above + lines.above, size + lines.size
        for i, part in zip(node.inputs, lines.coefficients, strict=True):
            if i in waiting:
                size = size + total(waiting[i], ranges[i].largest) + total(part, ranges[i].largest)
                waiting[i] = waiting[i] + part
            else:
                waiting[i] = part
    image, last = ranges[0], waiting[0]
    centre, radius = dot(last, (image.high + image.low) / 2), dot(last.abs(), (image.high - image.low) / 2)
    # A coefficient that rounds is off by at most gamma times the sum that made it, and meets values within its range.
    # All of that together is gamma times what was added up in absolute values.
    lost = 4 * _OWN.of(size + total(last, image.largest), network.longest)
    return centre - radius + below - lost, centre + radius + above + lost


def margins_by_intervals(logits: Range, labels: Tensor) -> Tensor:
    """An upper bound of max_{i != y} z_i - z_y, also of the logits that the model computes, from their ranges."""
    own = (logits.low - logits.error).gather(1, labels[:, None])
    others = (logits.high + logits.error).scatter(1, labels[:, None], -torch.inf)
    return (others - own).amax(dim=1)


def margins_by_crown(network: Graph, ranges: list[Range], labels: Tensor) -> Tensor:
    """The same by CROWN, back from the differences of two logits."""
    classes = network.nodes[-1].shape[0]
    units = torch.eye(classes, dtype=torch.float64, device=labels.device)
    width = max(torch.Size(node.shape).numel() for node in network.nodes)
    lowest = [
        _bound(network, ranges, len(network.nodes), units[labels][:, None] - others[None])[0]
        for others in units.split(max(1, _VALUES // (len(labels) * width)))
    ]
    error = ranges[-1].error
    highest = error + error.gather(1, labels[:, None]) - torch.cat(lowest, dim=1)
    return highest.scatter(1, labels[:, None], -torch.inf).amax(dim=1)
