"""The attacks by name. To add one: a file beside this one, and a line below."""

from __future__ import annotations

__all__ = ["ATTACKS", "attack_spelling", "get_attack"]

import dataclasses
import inspect
from collections.abc import Callable
from typing import Any, cast

from tmifpe.attacks.attack import Attack
from tmifpe.attacks.sequence import as_attack
from tmifpe.core.errors import InputError
from tmifpe.core.options import parse, spell, split_list
from tmifpe.core.registry import Registry

ATTACKS: Registry[Callable[..., Attack]] = Registry("attack")
ATTACKS.add("pgd", "tmifpe.attacks.pgd:PGD", "projected gradient ascent, the paper's protocol by default")
ATTACKS.add("fgsm", "tmifpe.attacks.pgd:fgsm", "one step of size eps (Goodfellow et al. 2015)")
ATTACKS.add("bim", "tmifpe.attacks.pgd:bim", "small constant steps, no random start (Kurakin et al. 2017)")
ATTACKS.add("mim", "tmifpe.attacks.pgd:mim", "bim with momentum on the gradient (Dong et al. 2018)")
ATTACKS.add("gama", "tmifpe.attacks.gama:GAMA", "GAMA-PGD: guided margin of the softmax (Sriramanan et al. 2020)")
ATTACKS.add(
    "autoattack",
    "tmifpe.attacks.autoattack:AutoAttack",
    "the standard AutoAttack (Croce and Hein 2020; extra autoattack)",
)


def get_attack(text: str) -> Attack:
    """The attack that `text` spells, e.g. `pgd(loss=cw,steps=50)`, or a sequence of them: `pgd(loss=ce)+gama`.

    >>> get_attack("fgsm").budget
    Budget(forwards=2, backwards=1)
    """
    parts = split_list(text, by="+") if isinstance(text, str) else []
    if len(parts) > 1:
        return as_attack(get_attack(part) for part in parts)
    name, options = parse(text)
    make = ATTACKS.get(name)
    try:
        inspect.signature(make).bind(**options)
        return make(**options)
    except (TypeError, OverflowError) as error:
        raise InputError(f"attack {name!r}: {error}") from error


def attack_spelling(attack: Attack) -> str:
    """The canonical text of an attack, all options named: what is stored and hashed.

    >>> attack_spelling(get_attack("fgsm"))[:11]
    'pgd(loss=ce'
    """
    if len(attack.stages) > 1:
        return "+".join(attack_spelling(stage) for stage in attack.stages)
    options = {field.name: getattr(attack, field.name) for field in dataclasses.fields(cast(Any, attack))}
    return spell(attack.name, options)
