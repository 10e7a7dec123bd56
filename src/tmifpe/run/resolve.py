"""A column of a table by name: a loss (PGD climbs it), an attack, or the real AutoAttack."""

from __future__ import annotations

__all__ = ["AnyAttack", "resolve_attack"]

import inspect
from dataclasses import replace
from typing import TypeAlias

from tmifpe.attacks import ATTACKS, PGD, Attack, get_attack
from tmifpe.attacks.autoattack import AutoAttack
from tmifpe.core.errors import InputError, did_you_mean
from tmifpe.core.options import parse, spell
from tmifpe.losses import LOSSES

AnyAttack: TypeAlias = Attack | AutoAttack


def resolve_attack(text: str, base: PGD | None = None) -> AnyAttack:
    """What `text` names: `tmifpe`, `mifpe(T=10)`, `gama(momentum=0.75)`, `fgsm`, `autoattack`.

    A loss is climbed by `base`. An attack takes the steps and restarts of `base`, where one is given, it counts
    them and its own text does not, so that columns of one table had the same number of looks.

    >>> resolve_attack("cw", PGD(steps=20)).budget, resolve_attack("gama", PGD(steps=20)).budget
    (21, 21)
    >>> resolve_attack("fgsm", PGD(steps=20)).budget
    2
    """
    name, options = parse(text)
    if name in LOSSES:
        return replace(base or PGD(), loss=text)
    if name == AutoAttack.name:
        try:
            return AutoAttack(**options)
        except TypeError as error:
            raise InputError(f"autoattack: {error}") from error
    if name not in ATTACKS:
        raise did_you_mean("loss or attack", name, [*LOSSES, *ATTACKS, AutoAttack.name])
    if base is not None:
        counted = [o for o in ("steps", "restarts") if o in inspect.signature(ATTACKS.get(name)).parameters]
        options = {option: getattr(base, option) for option in counted} | options
    return get_attack(spell(name, options))
