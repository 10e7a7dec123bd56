"""Attacks that have a name of their own beside their parts. To add one: a function here, and a line in the catalogue.

A name is read as what its function makes: results, stores and keys only ever see that.
"""

from __future__ import annotations

__all__ = ["full", "is_full", "paper", "quick"]

from tmifpe.attacks.apgd import APGD
from tmifpe.attacks.attack import Attack
from tmifpe.attacks.multi_targeted import MultiTargeted
from tmifpe.attacks.near import Near
from tmifpe.attacks.pgd import PGD
from tmifpe.attacks.radius.ddn import DDN
from tmifpe.attacks.radius.outside import Outside
from tmifpe.attacks.sequence import Sequence
from tmifpe.losses import AnyLoss


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


def quick() -> PGD:
    """A first impression: 20 smooth steps.

    >>> quick().budget
    Budget(forwards=21, backwards=20)
    """
    return PGD(steps=20, smooth=SMOOTH)


def full() -> Sequence:
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

    >>> [stage.title for stage in full().stages]
    ['pgd', 'multi-targeted', 'apgd', 'pgd', 'pgd', 'pgd', 'apgd', 'ddn', 'outside']
    """
    return Sequence(
        (
            PGD(smooth=SMOOTH),
            Near(MultiTargeted(smooth=SMOOTH, steps=10, targets=2, candidates=5), share=0.55),
            Near(APGD(smooth=SMOOTH), share=0.1),
            Near(PGD(smooth=SMOOTH / 2, restarts=2), share=0.1, spread=3.0),
            Near(PGD(smooth=SMOOTH * 2, restarts=2), share=0.1, spread=3.0),
            Near(PGD(smooth=SMOOTH / 3, step_size=0.25), share=0.1, spread=3.0, go_on=True),
            Near(APGD(smooth=SMOOTH, restarts=8), share=0.01),
            Near(DDN(smooth=SMOOTH, steps=50), share=0.4, norm="l2"),
            Near(Outside(APGD(loss="ce", steps=33), widest=3), share=0.4, norm="l1"),
        )
    )


def is_full(attack: Attack) -> bool:
    """Whether it is the default, or what of it fits a targeted or randomised run.

    >>> is_full(full()), is_full(quick())
    (True, False)
    """
    return len(attack.stages) > 1 and all(stage in full().stages for stage in attack.stages)
