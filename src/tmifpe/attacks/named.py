"""Attacks that have a name of their own beside their parts. To add one: a function here, and a line in the catalogue.

A name is read as what its function makes: results, stores and keys only ever see that.
"""

from __future__ import annotations

__all__ = ["paper"]

from tmifpe.attacks.pgd import PGD
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
