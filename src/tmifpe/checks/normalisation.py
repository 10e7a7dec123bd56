"""Do the images look as the model expects them? Wrong normalisation is the most common mistake."""

from __future__ import annotations

__all__ = ["check_normalisation", "check_part_of_box", "other_readings"]

from collections.abc import Iterator

import numpy as np
from torch import Tensor

from tmifpe.attacks.loop.queries import Queries
from tmifpe.checks.flags import flag
from tmifpe.checks.sample import Sample, read, share
from tmifpe.core.stats import binomial_tail
from tmifpe.core.types import UNIT
from tmifpe.models.normalize import Normalize
from tmifpe.run.outcomes import Outcomes
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


def check_part_of_box(sample: Sample) -> Iterator[Flag]:
    """Images that fill a small part of the box, or lie in one half of it, as if they were made for another."""
    x, threat = sample.problem.x, sample.problem.threat
    low, high, middle = float(x.min()), float(x.max()), (threat.low + threat.high) / 2
    if high - low < 0.1 * (threat.high - threat.low) or low >= middle or high <= middle:
        yield flag(
            "part-of-box",
            f"The images use only [{low:.4g}, {high:.4g}] of the box [{threat.low:g}, {threat.high:g}].",
        )


def check_normalisation(job: Job, sample: Sample, outcomes: Outcomes) -> Iterator[Flag]:
    """A normalisation under which the model does clearly better than on the images as they are given."""
    if not other_readings(job, outcomes):
        return
    labels, n = sample.problem.labels, len(sample)
    here, everywhere = _accuracy(sample.logits, labels), float(outcomes.correct.mean())
    best, name = max(((_accuracy(z, labels), name) for name, z in _others(job, sample)), default=(0.0, ""))
    # Five images more, or so many that the accuracy on all examples explains them in 1 of 200 cases.
    clear = (best - here) * n >= 5 or binomial_tail(round(best * n), n, everywhere) <= 0.005
    if best >= max(0.5, here + GAIN) and clear:
        yield flag("normalisation", f"With {name} the accuracy on {n} images is {best:.0%}, as given it is {here:.0%}.")


def other_readings(job: Job, outcomes: Outcomes) -> int:
    """Under how many other normalisations the images are read: none if the accuracy leaves nothing to gain."""
    # Constant labels: any constant answer would look better.
    if outcomes.correct.mean() > 1 - GAIN or len(np.unique(outcomes.label)) < 2:
        return 0
    if isinstance(job.prepared.model, Normalize):
        return 1
    return len(USUAL.get(job.data.shape[0], {})) + (job.threat.box != UNIT)


def _others(job: Job, sample: Sample) -> Iterator[tuple[str, Tensor]]:
    """The logits under another normalisation than the one given."""
    x, model, threat = sample.problem.x, job.prepared.model, job.threat
    if isinstance(model, Normalize):
        inner = Queries(model.network, job.prepared.dtype, tally=sample.queries.tally)
        yield "no `mean` and `std`", read(inner, x, sample.batch_size)
        return
    if threat.box != UNIT:
        x = (x - threat.low) / (threat.high - threat.low)
        yield "images in [0, 1]", sample.read(x)
    for name, (mean, std) in USUAL.get(x.shape[1], {}).items():
        shape = (1, -1, *(1 for _ in x.shape[2:]))
        yield name, sample.read((x - x.new_tensor(mean).view(shape)) / x.new_tensor(std).view(shape))


def _accuracy(logits: Tensor, labels: Tensor) -> float:
    return share(logits.argmax(dim=1) == labels)
