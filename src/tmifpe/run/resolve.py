"""A column of a table by name: a loss (PGD climbs it), an attack, or the real AutoAttack."""

from __future__ import annotations

__all__ = ["AnyAttack", "AnyColumn", "column_name", "resolve_attack"]

import inspect
from dataclasses import replace
from typing import TypeAlias, cast

from tmifpe.attacks import ATTACKS, PGD, Attack, attack_spelling, get_attack
from tmifpe.attacks.autoattack import AutoAttack
from tmifpe.core.errors import InputError, did_you_mean
from tmifpe.core.extensions import is_external
from tmifpe.core.options import parse, spell
from tmifpe.losses import LOSSES, AnyLoss, get_loss, spelling

AnyAttack: TypeAlias = Attack | AutoAttack
AnyColumn: TypeAlias = AnyLoss | AnyAttack | type[Attack]


def column_name(column: AnyColumn) -> str:
    """A column as text: a name as it was given; a loss, a function or an attack by its canonical spelling."""
    if isinstance(column, str):
        return column
    if hasattr(column, "budget"):
        return ATTACKS.name_for(column) if isinstance(column, type) else attack_spelling(cast(Attack, column))
    return spelling(get_loss(cast(AnyLoss, column)))


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
        if is_external(name):
            raise InputError(
                f"{name} is neither a loss, called as f(logits, labels, targets), nor an attack, which has a budget"
            )
        raise did_you_mean("loss or attack", name, [*LOSSES, *ATTACKS, AutoAttack.name])
    if base is not None:
        counted = [o for o in ("steps", "restarts") if o in inspect.signature(ATTACKS.get(name)).parameters]
        options = {option: getattr(base, option) for option in counted} | options
    return get_attack(spell(name, options))
