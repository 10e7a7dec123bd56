"""The attacks by name. To add one: a file beside this one, and a line below."""

from __future__ import annotations

__all__ = ["ATTACKS", "attack_spelling", "get_attack", "register_attack"]

import dataclasses
import inspect
from collections.abc import Callable
from typing import Any, ClassVar, Protocol, cast

from tmifpe.attacks.loop import Attack
from tmifpe.core.errors import InputError
from tmifpe.core.options import check_spelled, parse, spell
from tmifpe.core.registry import Registry


def _admit(thing: Any, name: str) -> Callable[..., Attack]:
    if inspect.isclass(thing):
        if not dataclasses.is_dataclass(thing) or not cast(Any, thing).__dataclass_params__.frozen:
            raise InputError(f"the class {name} must be a frozen dataclass: decorate it with @dataclass(frozen=True)")
        if not isinstance(getattr(thing, "name", None), str) or not hasattr(thing, "budget"):
            raise InputError(f"{name} is no attack: it needs a class attribute `name` and a property `budget`")
    return cast(Callable[..., Attack], thing)


def _fits(thing: Any) -> bool:
    """A class with a budget, or a function that makes an attack: all its parameters have defaults."""
    if inspect.isclass(thing):
        return hasattr(thing, "budget")
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
register_attack = ATTACKS.register


class _Named(Protocol):
    """A dataclass with a name."""

    name: ClassVar[str]


def get_attack(text: str) -> Attack:
    """The attack that `text` spells, e.g. `pgd(loss=cw,steps=50)`.

    >>> get_attack("fgsm").steps
    1
    """
    name, options = parse(text)
    make = ATTACKS.get(name)
    try:
        inspect.signature(make).bind(**options)
        return make(**options)
    except InputError:
        raise
    except (TypeError, ValueError, OverflowError) as error:
        raise InputError(f"attack {name!r}: {error}") from error


def attack_spelling(attack: _Named) -> str:
    """The canonical text of an attack, all options named: what is stored and hashed.

    >>> attack_spelling(get_attack("fgsm"))[:11]
    'pgd(loss=ce'
    """
    options = {f.name: getattr(attack, f.name) for f in dataclasses.fields(attack)}  # pyright: ignore[reportArgumentType]
    name = ATTACKS.name_for(type(attack))
    text = spell(name, options)
    if name != attack.name:
        check_spelled(attack, text, get_attack)
    return text
