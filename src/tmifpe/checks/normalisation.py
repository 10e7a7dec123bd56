"""Do the images look as the model expects them? Wrong normalisation is the most common mistake."""

from __future__ import annotations

__all__ = ["check_normalisation"]

from collections.abc import Iterator

import torch
from torch import Tensor

from tmifpe.attacks.queries import Queries
from tmifpe.checks.flags import flag
from tmifpe.checks.sample import Sample, read, share
from tmifpe.models.normalize import Normalize
from tmifpe.run.result import Flag
from tmifpe.run.shard import Job

USUAL: dict[int, dict[str, tuple[tuple[float, ...], tuple[float, ...]]]] = {
    1: {
        "mean 0.1307, std 0.3081 (MNIST)": ((0.1307,), (0.3081,)),
        "mean 0.5, std 0.5": ((0.5,), (0.5,)),
        "multiplication by 255": ((0.0,), (1 / 255,)),
    },
    3: {
        "mean 0.485,0.456,0.406, std 0.229,0.224,0.225 (ImageNet)": ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
        "mean 0.4914,0.4822,0.4465, std 0.2470,0.2435,0.2616 (CIFAR)": (
            (0.4914, 0.4822, 0.4465),
            (0.2470, 0.2435, 0.2616),
        ),
        "mean 0.5,0.5,0.5, std 0.5,0.5,0.5": ((0.5,) * 3, (0.5,) * 3),
        "multiplication by 255": ((0.0,) * 3, (1 / 255,) * 3),
    },
}
"""What models are usually trained with, by number of channels."""

GAIN = 0.1
"""By how much another normalisation must raise the accuracy to be believed."""


def check_normalisation(job: Job, sample: Sample) -> Iterator[Flag]:
    """Images that fill a small part of the box, and a normalisation under which the model does clearly better."""
    x, threat = sample.problem.x, sample.problem.threat
    low, high = float(x.min()), float(x.max())
    if high - low < 0.1 * (threat.high - threat.low):
        yield flag(
            "normalisation",
            f"The images use only [{low:.4g}, {high:.4g}] of the box [{threat.low:g}, {threat.high:g}].",
            "Scale the images to [0, 1] (were they divided by 255 twice?): eps is measured in units of the box.",
        )
        return
    labels = sample.problem.labels
    accuracy = _accuracy(sample.logits, labels)
    if accuracy > 1 - GAIN or len(torch.unique(labels)) < 2:  # constant labels: any constant answer would look better
        return
    best, name = max(((_accuracy(z, labels), name) for name, z in _others(job, sample)), default=(0.0, ""))
    if best >= max(0.5, accuracy + GAIN) and (best - accuracy) * len(x) >= 5:
        yield flag(
            "normalisation",
            f"With {name} the accuracy on {len(x)} images is {best:.0%}, as given it is {accuracy:.0%}.",
        )


def _others(job: Job, sample: Sample) -> Iterator[tuple[str, Tensor]]:
    """The logits under another normalisation than the one given."""
    x, model = sample.problem.x, job.prepared.model
    if isinstance(model, Normalize):
        inner = Queries(model.network, job.prepared.dtype, tally=sample.queries.tally)
        yield "no `mean` and `std`", read(inner, x, sample.batch_size)
        return
    for name, (mean, std) in USUAL.get(x.shape[1], {}).items():
        shape = (1, -1, *(1 for _ in x.shape[2:]))
        yield name, sample.read((x - x.new_tensor(mean).view(shape)) / x.new_tensor(std).view(shape))


def _accuracy(logits: Tensor, labels: Tensor) -> float:
    return share(logits.argmax(dim=1) == labels)
