"""A part of the data in which every class has its share, and a remark where one has not."""

from __future__ import annotations

__all__ = ["coverage", "stratified"]

import torch
from torch import Tensor

from tmifpe.core.errors import InputError
from tmifpe.core.types import Data
from tmifpe.data.subset import Subset, subset


def stratified(data: Data, n: int, seed: int = 0) -> Data:
    """`n` examples drawn at random, each class by its share up to rounding; in the order of `data`.

    The r-th example of a class of size m, in random order, comes at (r + u) / m with u uniform per class; the first n
    are taken. The same seed draws the same examples, and a smaller sample is part of a larger one.
    """
    if n < 1:
        raise InputError(f"the sample must have at least 1 example, got {n}")
    if n >= len(data):
        return data
    labels = _labels(data)
    generator = torch.Generator().manual_seed(seed)
    places = torch.empty(len(labels), dtype=torch.float64)
    for label in labels.unique():
        rows = (labels == label).nonzero()[:, 0]
        ranks = torch.randperm(len(rows), generator=generator)
        places[rows] = (ranks + torch.rand((), generator=generator, dtype=torch.float64)) / len(rows)
    return subset(data, places.argsort(stable=True)[:n].sort().values.tolist())


def coverage(data: Data) -> str:
    """A remark if these are the first examples of a source, and leave out most classes that so many would cover."""
    if not isinstance(data, Subset) or data.whole_labels is None or data.labels is None:
        return ""
    n, seen, known = len(data), len(data.labels.unique()), len(data.whole_labels.unique())
    # Of K classes drawn at random, n examples cover at least 63 % of min(n, K).
    if list(data.indices) != list(range(n)) or seen >= min(n, known) / 2:
        return ""
    return (
        f"the first {n} examples of {data.name} cover {seen} of {known} classes, as if it were sorted by class; "
        f"`sample={n}` draws as many from all classes"
    )


def _labels(data: Data) -> Tensor:
    """All labels: at hand, or else read together with the images."""
    labels = getattr(data, "labels", None)
    if isinstance(labels, Tensor):
        return labels.cpu()
    return torch.cat([data.fetch([position])[1] for position in range(len(data))]).cpu()
