"""Without any attack: does the model look as if a number about it could be trusted?"""

from __future__ import annotations

__all__ = ["ModelChecks"]

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from torch import Tensor

from tmifpe.attacks import Stepwise
from tmifpe.attacks.hooks.layers import ROWS, Layers, look_at_layers
from tmifpe.attacks.hooks.uncompiled import uncompiled
from tmifpe.attacks.loop.frozen import preserved_state
from tmifpe.attacks.loop.queries import Objective, Queries
from tmifpe.attacks.loop.rows import Problem
from tmifpe.checks.allowance import Allowance, spread
from tmifpe.checks.direction import check_direction, logit_gradient
from tmifpe.checks.flags import flag
from tmifpe.checks.gradients import FEW, SIZES, check_behaviour, check_gradient, margin_of
from tmifpe.checks.layers import check_layers
from tmifpe.checks.normalisation import check_normalisation, check_part_of_box, other_readings
from tmifpe.checks.sample import LARGEST, Sample, change_of, draw_sample, gradient_attacks, share
from tmifpe.checks.watcher import ForwardWatcher
from tmifpe.core.stats import binomial_tail
from tmifpe.run.outcomes import Outcomes
from tmifpe.run.result import Flag
from tmifpe.run.shard import Job
from tmifpe.theory.formats import FORMATS

MARKED = 0.1
"""The share of the examples looked at from which something counts as a property of the model."""


_TWICE = 8
"""Examples read again, alone and in another company, where passes are scarce: what draws or mixes shows on any."""
_MODELS_SHARE = 0.4
"""Of what checks may cost, for those of the model, where there are survivors to look at afterwards."""


@dataclass(frozen=True)
class _Looked:
    """What was observed of the model before any attack."""

    correct: Sample
    """The examples that are classified correctly."""
    without: Tensor
    """Which of them have no gradient of the margin itself."""
    flags: tuple[Flag, ...]
    layers: Layers
    """What becomes of the gradient on its way back."""


@dataclass
class ModelChecks:
    """Checks of a model, done once however many attacks follow: only what concerns an attack's own loss is repeated."""

    _looked: dict[tuple[int, bool, bool], _Looked | None] = field(default_factory=dict)

    def flags(
        self, job: Job, outcomes: Outcomes, allowance: Allowance, treated: bool = False
    ) -> tuple[list[Flag], Layers]:
        """What is to be said of the model, and where its gradient dies. `treated`: the run allows for a randomised
        model."""
        with preserved_state(job.prepared.model, job.prepared.device):
            # Random targets are drawn from the seed; nothing else that is looked at here depends on it.
            key = (job.seed if job.targets == "random" else -1, treated, job.attack.needs_gradient)
            if key not in self._looked:
                self._looked[key] = _look(job, outcomes, allowance, treated)
            looked = self._looked[key]
            if looked is None:
                return [], Layers()
            wrong = check_direction(gradient_attacks(job), looked.correct)
            return [*wrong, *looked.flags, *_lost(job, looked, allowance)], looked.layers


def _positions(job: Job, outcomes: Outcomes, allowance: Allowance) -> tuple[np.ndarray, int, int]:
    """Which examples to look at, how many of them twice, and of how many to take gradients. Fewer rather than none."""
    n = len(outcomes)
    if math.isinf(allowance.most):
        return spread(n, LARGEST), LARGEST, LARGEST
    readings = 1 + other_readings(job, outcomes)
    # A look with a gradient costs three passes; the steps of the comparison with it two for each size.
    slopes = 3 * (1 + len(gradient_attacks(job))) if job.attack.needs_gradient else 0
    most = allowance.left * (_MODELS_SHARE if outcomes.robust.any() else 1)
    twice = int(max(2, min(_TWICE, most // 8)))
    for count in range(min(n, LARGEST), 0, -1):
        chosen = spread(n, count)
        right = int(outcomes.correct[chosen].sum())
        layers = 4 * min(right, ROWS) if slopes else 0  # once as it is, once with a gradient, module by module
        layers += (3 + 2 * len(SIZES)) * min(right, FEW) if slopes else 0
        alone = count == 1  # is read in company
        if count * readings + right * slopes + layers + 3 * min(count, twice) + alone <= most:
            if count < min(n, LARGEST):
                allowance.cut.append(f"the model on {count} examples instead of {min(n, LARGEST)}")
            return chosen, twice, right
    allowance.cut.append("the model left out")
    return spread(n, 0), 0, 0


def _look(job: Job, outcomes: Outcomes, allowance: Allowance, treated: bool) -> _Looked | None:
    positions, twice, slopes = _positions(job, outcomes, allowance)
    sample = draw_sample(job, positions, allowance.tally)
    if sample is None:
        return None
    flags = [*_behaviour(job, sample.first(twice), treated)]
    drawn = any(one.name in ("randomised", "dropout-active", "batch-dependent") for one in flags) or treated
    flags += _logits(job, sample)
    free = outcomes.take(spread(len(outcomes), LARGEST))  # their predictions are known already
    flags += [*_chance(int(free.correct.sum()), len(free), sample.classes), *check_part_of_box(sample)]
    flags += check_normalisation(job, sample, outcomes)
    correct = sample.take(sample.right.nonzero()[:slopes, 0])
    without = torch.zeros(len(correct), dtype=torch.bool, device=correct.problem.x.device)
    if len(correct) and job.attack.needs_gradient:
        grad = correct.gradients(margin_of)
        without = _gone(grad)
        if not drawn:  # of noise, two readings differ anyway
            flags += _compared(job, correct, grad, without)
    if share(without) >= MARKED:
        said = (
            f"{share(without):.0%} of {len(correct)} correct images have a zero or NaN gradient, of the margin itself."
        )
        flags.append(flag("unavailable-gradients", said))
    layers = _layers(job, correct)
    flags += check_layers(layers, job.prepared.straight_through)
    return _Looked(correct, without, tuple(flags), layers)


def _compared(job: Job, correct: Sample, grad: Tensor, without: Tensor) -> Iterator[Flag]:
    """The gradient with steps along it, and the logits with those that come with a gradient, on a few examples."""
    few = torch.from_numpy(spread(len(correct), FEW)).to(grad.device)
    yield from check_behaviour(correct.take(few), job.prepared)
    some = few[~without[few]]
    if len(some) and not job.prepared.straight_through:  # whose gradient is not meant to be the model's own
        yield from check_gradient(correct.take(some), grad[some])


def _layers(job: Job, correct: Sample) -> Layers:
    if not len(correct) or not job.attack.needs_gradient:
        return Layers()
    p = correct.first(min(ROWS, len(correct), job.batch_size)).problem
    plain = Queries(job.prepared.model, job.prepared.dtype, tally=correct.queries.tally)
    return look_at_layers(plain, p.x, p.labels, p.targets)


def _behaviour(job: Job, sample: Sample, treated: bool) -> Iterator[Flag]:
    """What happens in the forward pass: sampling, dropout, mixing within the batch, optimisation."""
    sample = replace(sample, logits=sample.read(sample.problem.x))  # before, they were read in other company
    x = sample.problem.x.clone()
    with uncompiled(), ForwardWatcher() as seen:
        again = _read_in_place(sample, x)
    swapped = _read_in_place(sample, x.copy_(x.flip(0)))
    same = (change_of(swapped, again, job.prepared) <= 1) & (change_of(again.flip(0), again, job.prepared) > 1)
    if remembers := bool(same.any()):
        yield flag(
            "remembers-images",
            f"For {int(same.sum())} of {len(sample)} images the model returned the logits of others, which it had been "
            "given in the same tensor before.",
        )
    change = change_of(again, sample.logits, job.prepared)
    if bool((change > 1).any()) and not treated and not remembers:
        flips = int((again.argmax(dim=1) != sample.logits.argmax(dim=1)).sum())
        yield flag(
            "randomised",
            f"The logits of {int((change > 1).sum())} of {len(sample)} images changed on a second reading "
            f"(and {flips} predictions).",
        )
    if seen.dropout and not treated:
        yield flag("dropout-active", "The forward pass calls dropout with training on.")
    if seen.gradient:
        yield flag("inference-time-optimisation", "The forward pass calls autograd.")
    if seen.batch_statistics:
        yield flag("batch-dependent", "BatchNorm normalises by the statistics of the batch (train mode).")
    elif not bool((change > 1).any()) and not remembers:  # of a randomised model, batch and chance cannot be told apart
        moved = change_of(_in_a_different_batch(sample), sample.logits, job.prepared)
        if bool((moved > 1).any()):
            yield flag(
                "batch-dependent",
                f"The logits of {int((moved > 1).sum())} of {len(sample)} images changed in a different batch.",
            )


def _read_in_place(sample: Sample, x: Tensor) -> Tensor:
    """Logits of x, from the same addresses and, where one batch holds it, the same object every time."""
    if len(x) > sample.batch_size:
        return sample.read(x)
    logits = sample.queries.logits(x)
    return logits.to(sample.logits.dtype)


def _in_a_different_batch(sample: Sample) -> Tensor:
    """The same images in reverse order and half as many at a time; a single one beside its negative."""
    x, threat = sample.problem.x, sample.problem.threat
    if len(x) == 1:
        return replace(sample, batch_size=2).read(torch.cat([x, threat.high + threat.low - x]))[:1]
    smaller = replace(sample, batch_size=max(1, min(sample.batch_size, len(x)) // 2))
    return smaller.read(x.flip(0)).flip(0)


def _logits(job: Job, sample: Sample) -> Iterator[Flag]:
    z, classes = sample.logits, sample.classes
    rows_sum = z.sum(dim=1)
    rounding = 8 * torch.finfo(job.prepared.dtype).eps * classes**0.5
    if bool(((z >= 0).all(dim=1) & ((rows_sum - 1).abs() <= rounding)).all()):
        yield flag("probabilities", f"Every row of the {len(z)} outputs is non-negative and sums to 1.")
    if classes < 3:
        yield flag("too-few-classes", f"The model has {classes} classes.")
    yield from _saturated(job, z[sample.right])


def _chance(right: int, n: int, classes: int) -> Iterator[Flag]:
    """Guessing gets as many right in more than 1 of 20 cases, and the accuracy is nearer to guessing than to 1."""
    p = 1 / classes
    if binomial_tail(right, n, p) > 0.05 and right / n < (1 + p) / 2:
        yield flag("chance-accuracy", f"{right} of {n} images are classified correctly, with {classes} classes.")


def _saturated(job: Job, z: Tensor) -> Iterator[Flag]:
    if not len(z):
        return
    wide = z.double() if z.device.type != "mps" else z
    top, second = wide.topk(2, dim=1).values.unbind(dim=1)
    info = torch.finfo(job.prepared.dtype)
    form = next(f for f in FORMATS.values() if f.dtype == z.dtype)
    one_hot = top - second >= form.underflow
    swamped = top.abs() * info.eps > 0.01 * (top - second)
    overflow = wide.abs().amax(dim=1) > 0.1 * info.max
    sights = [
        (one_hot, f"a gap of {form.underflow:.0f} or more between the two largest logits: the softmax is one-hot"),
        (swamped, "logits so large that their rounding is 1 % or more of the gap between the two largest"),
        (overflow, f"logits near the largest number of {job.prepared.precision} ({info.max:.3g})"),
    ]
    marked = [(share(mask), what) for mask, what in sights if share(mask) >= MARKED]
    if marked:
        seen = "; ".join(f"{part:.0%} have {what}" for part, what in marked)
        yield flag("saturated-logits", f"Of {len(z)} correct images {seen}.")


def _lost(job: Job, looked: _Looked, allowance: Allowance) -> Iterator[Flag]:
    """The gradient of the margin says whether the network has any; that of the attack's loss, whether it is lost."""
    correct, attacks = looked.correct.counted_by(allowance.tally), gradient_attacks(job)
    if not len(correct) or not attacks:
        return
    count = allowance.rows("gradient-lost", 3 * len(attacks), len(correct))
    if not count:
        return
    chosen = torch.from_numpy(spread(len(correct), count)).to(looked.without.device)
    correct = correct.take(chosen)
    lost = ~looked.without[chosen]  # to all of the attacks: what one of them can see has been attacked
    for attack in attacks:
        lost &= _label_lost(attack, correct) | _gone(correct.gradients(lambda p, a=attack: _objective(a, p)))
    if share(lost) >= MARKED:
        names = ", ".join(dict.fromkeys(str(getattr(attack, "loss", attack.name)) for attack in attacks))
        yield flag(
            "gradient-lost",
            f"For {share(lost):.0%} of {len(correct)} correct images the gradient of {names} is zero, or has lost its "
            f"label's share, in {job.prepared.precision}; that of the margin is not.",
        )


def _objective(attack: Stepwise, problem: Problem) -> Objective:
    return attack.objective(problem, attack.init(problem))


def _gone(grad: Tensor) -> Tensor:
    """Rows whose gradient is zero everywhere, or not a number somewhere."""
    flat = grad.flatten(1)
    return (flat == 0).all(dim=1) | ~torch.isfinite(flat).all(dim=1)


def _label_lost(attack: Stepwise, sample: Sample) -> Tensor:
    """Rows whose loss no longer pulls at the class it names: no loss intends that while it is unsuccessful."""
    aim = sample.problem.labels if sample.problem.targets is None else sample.problem.targets
    # In the dtype that the loop hands to the loss: in float16 cross-entropy underflows earlier than in float32.
    weights = logit_gradient(attack, sample, sample.queries.dtype)
    return weights.gather(1, aim[:, None])[:, 0] == 0
