"""After the attack: did it fail where it should not have? The indicators of attack failure of Pintor et al. (2022)
that can be read off the outcomes, and those that need another look at some survivors."""

from __future__ import annotations

__all__ = ["check_early_exit", "check_monotone", "check_survivors"]

import dataclasses
import itertools
from collections.abc import Iterator, Sequence
from typing import Any, cast

import numpy as np
import torch

from tmifpe.attacks import Loop, Stepwise
from tmifpe.attacks.loop.frozen import preserved_state
from tmifpe.attacks.loop.queries import Tally
from tmifpe.attacks.loop.rows import Problem
from tmifpe.checks.allowance import Allowance, cost, spread
from tmifpe.checks.flags import flag, some
from tmifpe.checks.sample import LARGEST, Sample, change_of, draw_sample, gradient_attacks, share
from tmifpe.core import numerics
from tmifpe.norms import get_norm
from tmifpe.run.outcomes import Mark, Outcomes
from tmifpe.run.result import Flag, Result
from tmifpe.run.shard import Job
from tmifpe.run.verify import verify

_STREAM = 0x5EED  # keeps the neighbours drawn here apart from the starts of attacks, whose stages count from 0
_NEIGHBOURS = 4
_LED_IN = 16  # survivors: enough to see what concerns a fifth of them, at the price of attacking 20 more examples
_FEWEST = 4  # and so many at least: of fewer, two that break mean little
_BALLS = [6 ** (k / 5) for k in (5, 4, 3, 2, 1, 0)]  # in units of eps


def check_survivors(job: Job, outcomes: Outcomes, allowance: Allowance) -> list[Flag]:
    """What the attack left standing, looked at again as far as the allowance goes."""
    flags = [*_outcomes(outcomes), *_gradient_free(job, outcomes)]
    left = np.flatnonzero(outcomes.robust & outcomes.counted)
    if not len(left):
        return flags
    each = (1 + _NEIGHBOURS) * job.eot
    count = allowance.rows("unstable-predictions", each, min(len(left), LARGEST), share=0.2)
    if not count:
        return flags
    with preserved_state(job.prepared.model, job.prepared.device):
        sample = draw_sample(job, left[spread(len(left), count)], allowance.tally, job.eot)
        if sample is None:
            return flags
        flags += _unstable(sample)
        if attacks := gradient_attacks(job):
            lost = list(_unconstrained(attacks, sample, allowance))
            flags += lost or _from_outside(job, attacks, sample, allowance)  # nor in a ball, if not in the whole box
        return flags


def _outcomes(outcomes: Outcomes) -> Iterator[Flag]:
    """What the rows say by themselves."""
    left = outcomes.take(outcomes.robust & outcomes.counted)
    n = len(left)
    zero, some = _marked(left, Mark.ZERO_GRADIENT), _marked(left, Mark.SOME_ZERO_GRADIENTS)
    if zero > 0.01 * n or some > 0.1 * n:
        yield flag(
            "zero-gradients", f"Of {n} survivors, {zero} had a zero gradient at every step, and {some} more at some."
        )
    unusable = _marked(outcomes, Mark.UNUSABLE_LOGITS)
    if unusable:
        yield flag(
            "unusable-logits", f"{unusable} of {len(outcomes)} examples had NaN or infinite logits at some step."
        )
    found = np.where(left.target < 0, left.adv_pred != left.label, left.adv_pred == left.target)
    if found.any():
        yield flag(
            "silent-success", f"{int(found.sum())} of {n} survivors were broken at some step, but not on re-reading."
        )
    rising = _marked(left, Mark.RISING)
    if rising and rising >= 0.05 * n:
        yield flag(
            "incomplete-optimisation",
            f"At the pace of the last tenth of the steps, a fifth more would have broken {rising} of {n} survivors.",
        )
    fragile = _marked(outcomes, Mark.FRAGILE)
    if fragile and fragile >= 0.005 * len(outcomes):
        yield flag(
            "fragile", f"{fragile} of {len(outcomes)} examples are broken in one precision and not in the other."
        )


def _gradient_free(job: Job, outcomes: Outcomes) -> Iterator[Flag]:
    blind = np.array([not stage.needs_gradient for stage in job.attack.stages])
    after = blind & (np.cumsum(~blind) > 0)  # only what comes after a gradient attack says something about it
    found: dict[str, np.ndarray] = {}
    for number, attack in enumerate(job.attack.stages):
        here = outcomes.fooled & (outcomes.stage == number)
        if after[number]:
            found[attack.name] = outcomes.index[here]
        for part_number, part in enumerate(attack.parts):
            if not part.needs_gradient and not after[number]:
                found[f"{part.name} of {attack.name}"] = outcomes.index[here & (outcomes.part == part_number)]
    found = {name: indices for name, indices in found.items() if len(indices)}
    # AutoAttack's threshold: a few lucky finds are no sign of masking.
    if sum(map(len, found.values())) > 0.002 * len(outcomes):
        said = "; ".join(f"{name} broke {some(indices)}" for name, indices in found.items())
        yield flag("black-box-beats-white-box", f"After gradient attacks had failed, {said}{_by_parts(job, outcomes)}.")


def _by_parts(job: Job, outcomes: Outcomes) -> str:
    """How many examples each part of an attack broke, where it has parts."""
    said = ""
    for number, attack in enumerate(job.attack.stages):
        counts = np.bincount(outcomes.part[outcomes.fooled & (outcomes.stage == number) & (outcomes.part >= 0)])
        told = [f"{part.name} {count}" for part, count in zip(attack.parts, counts, strict=False)]
        said += f" (in all: {', '.join(told)})" if told else ""
    return said


def _unstable(sample: Sample) -> Iterator[Flag]:
    """How much the margin changes within a twentieth of eps, relative to itself.

    A smooth model whose survivors really withstand eps changes by 5 % at most: the whole margin takes more than eps.
    """
    threat = sample.problem.threat
    here = sample.take(sample.right.nonzero()[:, 0])
    if not len(here) or threat.eps == 0:
        return
    p, norm = here.problem, get_norm(threat.norm)
    near = p.at(p.eps / 20).ball
    margin = numerics.margin(here.logits, p.labels, p.targets)
    change = torch.zeros_like(margin)
    for k in range(_NEIGHBOURS):
        logits = here.read(norm.start(near, p.seed, p.indices, _STREAM, k))
        change += (numerics.margin(logits, p.labels, p.targets) - margin).abs() / _NEIGHBOURS
    noisy = change > 0.1 * margin.abs()
    if share(noisy) >= 0.1:
        yield flag(
            "unstable-predictions",
            f"Within a twentieth of eps the margin of {share(noisy):.0%} of {len(here)} survivors changes by more than "
            "10 %, which does not happen with a smooth model that withstands eps.",
        )


def _unconstrained(attacks: list[Stepwise], sample: Sample, allowance: Allowance) -> Iterator[Flag]:
    """The run's own gradient attacks, from the image itself, with the whole box as their ball; 20 steps, and where
    those were too long for the box, 100 with shorter ones at the end."""
    few, many = ([_short(attack, steps) for attack in attacks] for steps in (20, 100))
    tried = sample.first(allowance.rows("unconstrained-failure", _cost(few, sample), len(sample), share=0.25))
    if not len(tried):
        return
    left = _standing(few, tried.problem.at(_whole_box(tried.problem)), sample)
    if not len(left):
        return
    count = allowance.rows("unconstrained-failure, 100 steps,", _cost(many, sample), len(left), share=0.5)
    again = left.take(torch.from_numpy(spread(len(left), count)).to(left.x.device))
    stand = len(_standing(many, again, sample)) if count else 0
    if not stand or stand / count * len(left) < 0.05 * len(tried):
        return
    seen = f"{stand} of {len(tried)} survivors withstand 100 steps in the whole box."
    if count < len(left):
        seen = (
            f"{len(left)} of {len(tried)} survivors withstand 20 steps in the whole box, and {stand} of the {count} of "
            "these that were given 100 withstand them."
        )
    yield flag("unconstrained-failure", seen)


def _standing(attacks: list[Stepwise], problem: Problem, sample: Sample) -> Problem:
    """What is left of a problem after these attacks."""
    for attack in attacks:
        if len(problem):
            fooled = attack.run(problem, sample.queries, Loop(sample.batch_size)).fooled
            problem = problem.take((~fooled).nonzero()[:, 0])
    return problem


def _cost(attacks: list[Stepwise], sample: Sample) -> int:
    """Per example, at most."""
    return sample.queries.eot * sum(cost(Tally(*attack.budget)) for attack in attacks)


def _from_outside(job: Job, attacks: list[Stepwise], sample: Sample, allowance: Allowance) -> Iterator[Flag]:
    """The run's own gradient attacks on a larger ball that shrinks to the true one, each from the last one's answer.

    Within eps of the image the gradient may be flat or point nowhere, and still lead on a little farther out.
    """
    short, threat = [_short(attack, 20) for attack in attacks], sample.problem.threat
    largest = _whole_box(sample.problem)
    if not 0 < threat.eps < largest:
        return
    each = len(_BALLS) * _cost(short, sample) + 3 * sample.queries.eot  # and read before and after, alone even twice
    n = allowance.rows("found-from-outside", each, min(len(sample), _LED_IN), least=_FEWEST)
    if not n:
        return
    chosen = sample.first(n)
    whole = chosen.problem
    if bool((change_of(sample.read(whole.x), chosen.logits, job.prepared) > 1).any()):
        return  # a randomised model breaks by itself on the next reading
    broken = torch.zeros_like(whole.labels, dtype=torch.bool)
    for attack in short:
        left = (~broken).nonzero()[:, 0]
        if not len(left):
            break
        p = whole.take(left)
        point = p.x
        for ball in _BALLS:
            wide = dataclasses.replace(p.at(min(ball * threat.eps, largest)), start=point)
            point = attack.run(wide, sample.queries, Loop(sample.batch_size, "strongest")).adv
        broken[left] = verify(point, p, sample.queries, sample.batch_size)
    count = int(broken.sum())
    if count > 1 and count >= 0.1 * n:  # one more start finds one more now and then, and means nothing
        yield flag("found-from-outside", f"Led in from a larger ball, the attack broke {count} of {n} survivors.")


def _whole_box(problem: Problem) -> float:
    """The eps that allows every image."""
    corner = torch.full_like(problem.x[:1], problem.threat.high - problem.threat.low)
    return float(get_norm(problem.threat.norm).size(corner))


def _short(attack: Stepwise, steps: int) -> Stepwise:
    """The same attack on a small budget; without a random start, which would find other classes by itself."""
    values = {"steps": steps, "restarts": 1, "random_start": False}
    known = {field.name for field in dataclasses.fields(cast(Any, attack))}
    return dataclasses.replace(cast(Any, attack), **{name: v for name, v in values.items() if name in known})


def check_early_exit(result: Result) -> Iterator[Flag]:
    """Was early exit wrong for an example that was checked?"""
    if result.plan.failed_exits is not None:
        yield flag("early-exit-wrong", f"{result.early_exits}.")


def check_monotone(results: Sequence[Result]) -> list[Flag]:
    """For results on the same examples at several eps: does a larger eps ever break less than a smaller one?

    What is broken in a small ball is broken in a larger one. Raised where the robust accuracy rises, or where 1 % of
    the examples stand again.
    """
    ordered = sorted(results, key=lambda result: result.spec.threat.eps)
    flags: list[Flag] = []
    for small, large in itertools.pairwise(ordered):
        again = int((small.outcomes.fooled & large.outcomes.robust).sum())
        if large.robust > small.robust or (again and again >= 0.01 * len(large.outcomes)):
            seen = (
                f"From eps {small.spec.threat.eps:.6g} to {large.spec.threat.eps:.6g} the robust accuracy goes from "
                f"{small.robust_accuracy:.2%} to {large.robust_accuracy:.2%}, and {again} broken examples stand again."
            )
            flags.append(flag("non-monotone-eps", seen))
    return flags


def _marked(outcomes: Outcomes, mark: Mark) -> int:
    return int(((outcomes.marks & mark) != 0).sum())
