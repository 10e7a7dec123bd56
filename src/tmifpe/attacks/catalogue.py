"""The attacks by name. To add one: a file beside this one, and a line below."""

from __future__ import annotations

__all__ = ["ATTACKS", "attack_spelling", "get_attack", "part_names", "register_attack"]

import dataclasses
import inspect
from collections.abc import Callable
from typing import Any, cast

from tmifpe.attacks.attack import Attack
from tmifpe.attacks.sequence import as_attack
from tmifpe.core.errors import InputError
from tmifpe.core.options import check_spelled, parse, spell, split_list
from tmifpe.core.registry import Registry


def _admit(thing: Any, name: str) -> Callable[..., Attack]:
    if inspect.isclass(thing):
        if not issubclass(thing, Attack) or not isinstance(getattr(thing, "name", None), str):
            raise InputError(f"{name} is no attack: it must inherit from tmifpe.Attack and have a name")
        if not dataclasses.is_dataclass(thing) or not cast(Any, thing).__dataclass_params__.frozen:
            raise InputError(f"the class {name} must be a frozen dataclass: decorate it with @dataclass(frozen=True)")
    return thing


def _fits(thing: Any) -> bool:
    """An attack's class, or a function that makes an attack: all its parameters have defaults."""
    if inspect.isclass(thing):
        return issubclass(thing, Attack)
    try:
        inspect.signature(thing).bind()
    except (TypeError, ValueError):
        return False
    return callable(thing)


ATTACKS: Registry[Callable[..., Attack]] = Registry("attack", "attacks", _admit, _fits)
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
register_attack = ATTACKS.register


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
    except InputError:
        raise
    except (TypeError, ValueError, OverflowError) as error:
        raise InputError(f"attack {name!r}: {error}") from error


def attack_spelling(attack: Attack) -> str:
    """The canonical text of an attack, all options named: what is stored and hashed.

    >>> attack_spelling(get_attack("fgsm"))[:11]
    'pgd(loss=ce'
    """
    if len(attack.stages) > 1:
        return "+".join(attack_spelling(stage) for stage in attack.stages)
    options = {field.name: getattr(attack, field.name) for field in dataclasses.fields(cast(Any, attack))}
    name = ATTACKS.name_for(type(attack))
    text = spell(name, options)
    if name != attack.name:
        check_spelled(attack, text, get_attack)
    return text


def part_names(text: str) -> tuple[str, ...]:
    """The parts of the attack that `text` spells. Code of a user is not run for it, and has none then.

    >>> part_names("autoattack"), part_names("pgd")
    (('apgd-ce', 'apgd-t', 'fab-t', 'square'), ())
    """
    try:
        name, _ = parse(text)
    except InputError:  # a spelling of another version
        return ()
    known = ":" not in name and name in ATTACKS
    return tuple(part.name for part in getattr(ATTACKS.get(name), "parts", ())) if known else ()
