"""Attacks that have a name of their own beside their parts. To add one: a function here, and a line in the catalogue.

A name is read as what its function makes: results, stores and keys only ever see that.
"""

from __future__ import annotations

__all__ = ["full", "full_options", "is_full", "paper", "quick"]

from collections.abc import Iterable, Iterator
from collections.abc import Sequence as Several
from typing import Any

from tmifpe.attacks.apgd import APGD
from tmifpe.attacks.attack import Attack
from tmifpe.attacks.multi_targeted import MultiTargeted
from tmifpe.attacks.near import Near
from tmifpe.attacks.pgd import PGD
from tmifpe.attacks.radius.ddn import DDN
from tmifpe.attacks.radius.outside import Outside
from tmifpe.attacks.sequence import Sequence
from tmifpe.core.errors import InputError
from tmifpe.core.numbers import whole_number
from tmifpe.core.options import parse
from tmifpe.losses import AnyLoss, get_loss, spelling


def paper(
    loss: AnyLoss = "tmifpe",
    steps: int = 100,
    restarts: int = 1,
    schedule: str = "cosine",
    momentum: float = 0.75,
) -> PGD:
    """The paper's protocol: PGD-100 on T-MIFPE. Written out, so that it stays what it is when defaults change.

    >>> paper() == PGD(), paper(steps=20).budget
    (True, Budget(forwards=21, backwards=20))
    """
    return PGD(
        loss=loss,
        steps=steps,
        restarts=restarts,
        schedule=schedule,
        step_size=2.0,
        momentum=momentum,
        momentum_on="iterate",
        random_start=True,
        smooth=0.0,
    )


SMOOTH = 3.0
"""The smoothing of `full` and `quick`, shared by the rectifiers of a network: one value for three layers and for
seventeen (docs/strength.md)."""


def quick(loss: AnyLoss = "tmifpe", steps: int = 20, restarts: int = 1, schedule: str = "cosine") -> PGD:
    """A first impression: 20 smooth steps.

    >>> quick().budget
    Budget(forwards=21, backwards=20)
    """
    return PGD(loss, steps, restarts, schedule, smooth=SMOOTH)


STEPS = 100
"""Of the longest stages of `full`."""
LOSS = "tmifpe"


def full(loss: AnyLoss = LOSS, steps: int = STEPS, restarts: int = 1, schedule: str = "cosine") -> Sequence:
    """The default, in stages that each attack what is left.

    By measurement (docs/strength.md) at or below AutoAttack on the 14 lines at Linf and L2 (medians of seeds), for at
    most a twentieth of its cost; one image above it on one of two lines at L1, for 9 % and 5 %; and two above it on one
    of 8 lines held out, for at most 6.5 %. In turn, on survivors:

    - 100 smooth steps on every example;
    - within reach (a margin of at most 55 % of the clean one): ten steps each towards the two classes that are nearest
      by the model's slope;
    - near (10 %): another way to climb; more starts, with less and more smoothing, and small steps from the best
      point, but only where the outcome still changes from start to start;
    - at the boundary (1 %): eight more starts in any case;
    - at L2 and L1, within 40 %: from outside the ball, where gradients are alive that are dead inside.

    More is never less: another loss or schedule, more steps or restarts come after the stages of the default, as the
    same stages once more with these values, on what is left. Fewer steps shorten every stage.

    >>> [stage.title for stage in full().stages]
    ['pgd', 'multi-targeted', 'apgd', 'pgd', 'pgd', 'pgd', 'apgd', 'ddn', 'outside']
    >>> full(restarts=2).stages[:9] == full(loss="ce").stages[:9] == full(steps=200).stages[:9] == full().stages
    True
    """
    loss, steps, restarts = spelling(get_loss(loss)), whole_number("steps", steps), whole_number("restarts", restarts)
    first = _stages(LOSS, min(steps, STEPS), 1, "cosine")
    other = (loss, max(steps, STEPS), schedule) != (LOSS, STEPS, "cosine")
    starts = restarts if other else restarts - 1  # the default has had the first
    again = _stages(loss, steps, starts, schedule) if starts else ()
    # What draws nothing has nothing new to say.
    return Sequence((*first, *(stage for stage in again if stage.title != "ddn" or stage not in first)))


def _stages(loss: str, steps: int, restarts: int, schedule: str) -> tuple[Attack, ...]:
    """The stages of `full`. The nearest classes are always sought by the default loss, and at L1 a larger ball by
    cross-entropy unless another loss is asked for."""

    def short(count: int) -> int:
        return max(1, round(count * steps / STEPS))

    def pgd(smooth: float, starts: int = 1, step_size: float = 2.0) -> PGD:
        return PGD(loss, steps, starts * restarts, schedule, step_size=step_size, smooth=smooth)

    def apgd(starts: int = 1) -> APGD:
        return APGD(loss, steps, starts * restarts, smooth=SMOOTH)

    outside = APGD("ce" if loss == LOSS else loss, short(33), restarts)
    return (
        pgd(SMOOTH),
        Near(MultiTargeted(smooth=SMOOTH, steps=short(10), targets=2, candidates=5), share=0.55),
        Near(apgd(), share=0.1),
        Near(pgd(SMOOTH / 2, 2), share=0.1, spread=3.0),
        Near(pgd(SMOOTH * 2, 2), share=0.1, spread=3.0),
        Near(pgd(SMOOTH / 3, step_size=0.25), share=0.1, spread=3.0, go_on=True),
        Near(apgd(8), share=0.01),
        Near(DDN(loss, smooth=SMOOTH, steps=short(50), schedule=schedule), share=0.4, norm="l2"),
        Near(Outside(outside, widest=3), share=0.4, norm="l1"),
    )


def is_full(attack: Attack) -> bool:
    """Whether it is `full`, whatever its options, or what of it fits a targeted run.

    >>> is_full(full(restarts=2)), is_full(quick())
    (True, False)
    """
    from tmifpe.attacks.catalogue import attack_spelling  # the catalogue knows this file

    try:
        stages = [attack_spelling(stage) for stage in attack.stages]
    except InputError:  # options of a user's own that have no spelling
        return False
    return any(full_options(stages, targeted=targeted) is not None for targeted in (False, True))


def full_options(stages: Several[str], *, targeted: bool = False) -> dict[str, Any] | None:
    """The options with which `full` makes these stages, given as they are spelled; None if it is not `full`. Code of a
    user is not run for it. `targeted`: of the stages that can be."""
    for options in _guesses(stages):
        loss, known = options["loss"], LOSS
        if loss != LOSS:  # one that is here stands in for it
            known, stages = "ce", [stage.replace(f"loss={loss},", "loss=ce,") for stage in stages]
        guess: dict[str, Any] = {**options, "loss": known}
        try:
            if _spelled(full(**guess).stages, targeted) == list(stages):
                return options
        except InputError:
            continue
    return None


def _guesses(stages: Several[str]) -> Iterator[dict[str, Any]]:
    """What may have been asked for, read from the stages that attack everything."""
    wide: list[dict[str, Any]] = []
    for stage in stages:
        try:
            name, options = parse(stage)
        except InputError:  # a spelling of another version
            return
        if name == "pgd":
            wide.append({option: options.get(option) for option in ("loss", "steps", "restarts", "schedule")})
    if not 1 <= len(wide) <= 2:
        return
    asked = wide[-1]
    yield asked
    if len(wide) > 1 and isinstance(asked["restarts"], int):
        yield asked | {"restarts": asked["restarts"] + 1}


def _spelled(stages: Iterable[Attack], targeted: bool) -> list[str]:
    from tmifpe.attacks.catalogue import attack_spelling

    return [attack_spelling(stage) for stage in stages if not (targeted and stage.title == "multi-targeted")]
