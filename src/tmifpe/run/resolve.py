"""A column of a table by name: a loss for PGD, an attack, or several attacks one after another."""

from __future__ import annotations

__all__ = ["AnyColumn", "column_name", "resolve_attack"]

from dataclasses import replace
from typing import TypeAlias, cast

from tmifpe.attacks import (
    ATTACKS,
    PGD,
    Attack,
    as_attack,
    attack_spelling,
    get_attack,
    options_of,
    split_sequence,
)
from tmifpe.core.errors import InputError, did_you_mean
from tmifpe.core.extensions import is_external
from tmifpe.core.options import parse, spell
from tmifpe.losses import LOSSES, AnyLoss, get_loss, spelling

AnyColumn: TypeAlias = AnyLoss | Attack | type[Attack]
"""A column of a comparison: a name; or a loss, a function or an attack itself."""


def column_name(column: AnyColumn) -> str:
    """A column as text: a name as it was given; a loss, a function or an attack by its canonical spelling."""
    if isinstance(column, str):
        return column
    if isinstance(column, Attack):
        return attack_spelling(column)
    if isinstance(column, type) and issubclass(column, Attack):
        return ATTACKS.name_for(column)
    return spelling(get_loss(cast(AnyLoss, column)))


def resolve_attack(text: str, base: PGD | None = None) -> Attack:
    """What `text` names: `paper`, `tmifpe`, `mifpe(T=10)`, `gama(momentum=0.75)`, `autoattack`; `ce+gama` or `ce,gama`.

    A loss is climbed by `base`. An attack takes the steps and restarts of `base`, where one is given, it counts
    them and its own text does not, so that the columns of one table have the same number of steps; `quick` has its own.

    >>> resolve_attack("cw", PGD(steps=20)).budget, resolve_attack("gama", PGD(steps=20)).budget
    (Budget(forwards=21, backwards=20), Budget(forwards=22, backwards=20))
    >>> resolve_attack("fgsm", PGD(steps=20)).budget
    Budget(forwards=2, backwards=1)
    """
    parts = split_sequence(text)
    if len(parts) > 1:
        return as_attack(resolve_attack(part, base) for part in parts)
    name, options = parse(text)
    if name in LOSSES:
        return replace(base or PGD(), loss=text)
    if name not in ATTACKS:
        if is_external(name):
            raise InputError(
                f"{name} is neither a loss, called as f(logits, labels, targets), nor a tmifpe.Attack or a function "
                "that makes one"
            )
        if name == "standard":  # AutoAttack's own word
            raise InputError("unknown attack 'standard'; the default here is 'full', and AutoAttack is 'autoattack'")
        raise did_you_mean("loss or attack", name, [*LOSSES, *ATTACKS])
    if base is not None:
        counted = [option for option in ("steps", "restarts") if name != "quick" and option in options_of(name)]
        options = {option: getattr(base, option) for option in counted} | options
    return get_attack(spell(name, options))
