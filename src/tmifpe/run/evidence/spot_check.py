"""A spot check: a stronger attack on some of the survivors, and what follows for all of them."""

from __future__ import annotations

__all__ = ["SpotCheck", "as_spot_check"]

import dataclasses
from dataclasses import dataclass
from typing import Any

from tmifpe.attacks.catalogue import attack_title, is_named, split_sequence
from tmifpe.core.errors import InputError, shown
from tmifpe.core.numbers import parse_whole, whole_number
from tmifpe.core.stats import hypergeometric_bounds
from tmifpe.run.shown.sheets import stage_name

ATTACK = "autoattack"
"""The stronger attack, unless another one is named."""


@dataclass(frozen=True)
class SpotCheck:
    """`broken` of `sampled` survivors, drawn at random from `survivors`, fell to `attack`.

    The bounds say how many of all survivors it would have broken. They are exact for draws without replacement (the
    hypergeometric distribution), and each holds with 95 % confidence by itself.

    >>> spot = SpotCheck("autoattack", 100, survivors=5000, sampled=100, broken=0, n=10_000)
    >>> spot.at_least, spot.at_most, f"{spot.at_most / spot.survivors:.1%}"
    (0, 146, '2.9%')
    """

    attack: str
    asked: int
    survivors: int
    sampled: int
    broken: int
    n: int
    """Examples that the robust accuracy counts."""
    indices: tuple[int, ...] = ()
    """The broken ones."""
    forwards: int = 0
    backwards: int = 0
    seconds: float = 0.0

    @property
    def title(self) -> str:
        """The attack as it is asked for, `full`, or in a few words.

        >>> SpotCheck("pgd(loss=cw,steps=50)", 1, 1, 1, 1, 1).title
        'pgd cw 50'
        """
        stages = split_sequence(self.attack)
        titles = [attack_title(stages), attack_title(stages, targeted=True)]
        return next(filter(is_named, titles), "; ".join(map(stage_name, stages)))

    @property
    def at_least(self) -> int:
        return hypergeometric_bounds(self.broken, self.sampled, self.survivors)[0]

    @property
    def at_most(self) -> int:
        return hypergeometric_bounds(self.broken, self.sampled, self.survivors)[1]

    @property
    def robust_accuracy(self) -> tuple[float, float]:
        """What the bounds leave, had the stronger attack been run on all survivors."""
        low, high = self.survivors - self.at_most, self.survivors - self.at_least
        return (low / self.n, high / self.n) if self.n else (0.0, 0.0)

    def to_json(self) -> dict[str, Any]:
        plain = dataclasses.asdict(self) | {"indices": list(self.indices)}
        bounds = {"at_least": self.at_least, "at_most": self.at_most, "robust_accuracy": list(self.robust_accuracy)}
        return plain | {"confidence": 0.95} | bounds

    @classmethod
    def from_json(cls, plain: dict[str, Any]) -> SpotCheck:
        """As a store has it; `KeyError`, `TypeError` or `ValueError` where that is no spot check."""
        found = cls(
            str(plain["attack"]),
            asked=int(plain["asked"]),
            survivors=int(plain["survivors"]),
            sampled=int(plain["sampled"]),
            broken=int(plain["broken"]),
            n=int(plain["n"]),
            indices=tuple(map(int, plain["indices"])),
            forwards=int(plain["forwards"]),
            backwards=int(plain["backwards"]),
            seconds=float(plain["seconds"]),
        )
        if not 0 <= found.broken <= found.sampled <= found.survivors <= found.n:
            raise ValueError("no spot check")
        return found

    def __str__(self) -> str:
        found = f"{self.broken} of {self.sampled} survivors broken"
        if self.sampled == self.survivors:
            return f"{found}, all there are"
        most = f"at most {self.at_most} of all {self.survivors} ({self.at_most / self.survivors:.1%})"
        if not self.broken:
            return f"{found}: it would break {most}, with 95 % confidence"
        return f"{found}: it would break at least {self.at_least} and {most}, each with 95 % confidence"


def as_spot_check(given: object) -> tuple[int, str] | None:
    """How many survivors and which attack: from a number, or from text such as `100:square`.

    >>> as_spot_check(50), as_spot_check("100:pgd(restarts=5)")
    ((50, 'autoattack'), (100, 'pgd(restarts=5)'))
    """
    if given is None:
        return None
    count, attack = given, ATTACK
    if isinstance(given, str):
        text, _, named = given.partition(":")
        count, attack = parse_whole(text.strip()), named.strip() or ATTACK
    try:
        return whole_number("spot_check", count), attack
    except InputError:
        raise InputError(
            f"`spot_check` must be a number of survivors, or number:attack such as '100:square', got {shown(given)}"
        ) from None
