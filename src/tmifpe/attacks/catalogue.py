"""The attacks by name. To add one: a file beside this one, and a line below."""

from __future__ import annotations

__all__ = [
    "ATTACKS",
    "NAMED",
    "attack_spelling",
    "attack_title",
    "get_attack",
    "is_named",
    "options_of",
    "part_names",
    "register_attack",
    "split_sequence",
    "stage_title",
]

import dataclasses
import inspect
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, cast

from tmifpe.core.errors import InputError
from tmifpe.core.options import check_spelled, parse, spell, split_list
from tmifpe.core.registry import Registry

if TYPE_CHECKING:
    from tmifpe.attacks.attack import Attack


def _admit(thing: Any, name: str) -> Callable[..., Attack]:
    from tmifpe.attacks.attack import Attack

    if inspect.isclass(thing):
        if not issubclass(thing, Attack) or not isinstance(getattr(thing, "name", None), str):
            raise InputError(f"{name} is no attack: it must inherit from tmifpe.Attack and have a name")
        if not dataclasses.is_dataclass(thing) or not cast(Any, thing).__dataclass_params__.frozen:
            raise InputError(f"the class {name} must be a frozen dataclass: decorate it with @dataclass(frozen=True)")
    return thing


def _fits(thing: Any) -> bool:
    """An attack's class, or a function that makes an attack: all its parameters have defaults."""
    from tmifpe.attacks.attack import Attack

    if inspect.isclass(thing):
        return issubclass(thing, Attack)
    try:
        inspect.signature(thing).bind()
    except (TypeError, ValueError):
        return False
    return callable(thing)


ATTACKS: Registry[Callable[..., Attack]] = Registry("attack", "attacks", _admit, _fits, any_case=True)
ATTACKS.add(
    "full", "tmifpe.attacks.named:full", "the default: smooth pgd, nearest targets, more starts near the boundary"
)
ATTACKS.add("quick", "tmifpe.attacks.named:quick", "a first impression: 20 smooth steps")
ATTACKS.add("paper", "tmifpe.attacks.named:paper", "the paper's protocol: pgd on tmifpe, 100 steps, one restart")
ATTACKS.add("pgd", "tmifpe.attacks.pgd:PGD", "projected gradient ascent on a loss, e.g. pgd(loss=cw,steps=50)")
ATTACKS.add("fgsm", "tmifpe.attacks.pgd:fgsm", "one step of size eps (Goodfellow et al. 2015)")
ATTACKS.add("bim", "tmifpe.attacks.pgd:bim", "small constant steps, no random start (Kurakin et al. 2017)")
ATTACKS.add("mim", "tmifpe.attacks.pgd:mim", "bim with momentum on the gradient (Dong et al. 2018)")
ATTACKS.add("gama", "tmifpe.attacks.gama:GAMA", "GAMA-PGD: guided margin of the softmax (Sriramanan et al. 2020)")
ATTACKS.add("apgd", "tmifpe.attacks.apgd:APGD", "Auto-PGD: steps halve where progress stalls (Croce and Hein 2020)")
ATTACKS.add(
    "multi-targeted",
    "tmifpe.attacks.multi_targeted:MultiTargeted",
    "targeted ascent on one class after another, the nearest first (Gowal et al. 2019)",
)
ATTACKS.add(
    "ddn",
    "tmifpe.attacks.radius.ddn:DDN",
    "on a sphere that shrinks and grows around the boundary, l2 (Rony et al. 2019)",
)
ATTACKS.add(
    "fmn",
    "tmifpe.attacks.radius.fmn:FMN",
    "the smallest perturbation, in a ball that shrinks and grows (Pintor et al. 2021)",
)
ATTACKS.add(
    "fab",
    "tmifpe.attacks.radius.fab:FAB",
    "the smallest perturbation, by projections onto the linear model's boundary (Croce and Hein 2020)",
)
ATTACKS.add(
    "bracket",
    "tmifpe.attacks.radius.bracket:Bracket",
    "the smallest radius that breaks and the largest that does not, for curves",
)
ATTACKS.add(
    "square",
    "tmifpe.attacks.square:Square",
    "random search by squares, without gradients (Andriushchenko et al. 2020)",
)
ATTACKS.add(
    "autoattack",
    "tmifpe.attacks.autoattack:AutoAttack",
    "the standard AutoAttack (Croce and Hein 2020; extra autoattack)",
)
ATTACKS.add(
    "outside",
    "tmifpe.attacks.radius.outside:Outside",
    "another attack, in larger balls first (Croce and Hein 2021)",
)
ATTACKS.add("near", "tmifpe.attacks.near:Near", "another attack, on rows that have come near the boundary")
register_attack = ATTACKS.register
NAMED = ("full", "quick")
"""Attacks that tables call by a name of their own."""


def get_attack(text: str) -> Attack:
    """The attack that `text` spells, e.g. `pgd(loss=cw,steps=50)`, or a sequence of them: `pgd(loss=ce)+gama`.

    >>> get_attack("fgsm").budget
    Budget(forwards=2, backwards=1)
    >>> get_attack("fgsm,gama") == get_attack("fgsm+gama")
    True
    """
    from tmifpe.attacks.sequence import as_attack

    parts = split_sequence(text)
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


def split_sequence(text: str) -> list[str]:
    """The attacks of a sequence, which commas or plus signs outside parentheses separate.

    >>> split_sequence("pgd(loss=ce,steps=5), gama+fgsm")
    ['pgd(loss=ce,steps=5)', 'gama', 'fgsm']
    """
    return split_list(text, by="+,") if isinstance(text, str) else []


def options_of(name: str) -> tuple[str, ...]:
    """The options that the attack of that name declares.

    >>> options_of("paper")
    ('loss', 'steps', 'restarts', 'schedule', 'momentum')
    """
    declared = inspect.signature(ATTACKS.get(name)).parameters.values()
    return tuple(one.name for one in declared if one.kind is not inspect.Parameter.VAR_KEYWORD)


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


def attack_title(spellings: Sequence[str], *, targeted: bool = False) -> str:
    """A short name for the stages of a run: `full`, with its options, or `quick` if they are that, else their text.

    >>> attack_title([attack_spelling(stage) for stage in get_attack("full(restarts=2)").stages])
    'full(restarts=2)'
    >>> attack_title(["fgsm", "gama"])
    'fgsm; gama'
    """
    return _title(tuple(spellings), targeted)


@lru_cache(maxsize=256)  # lists of runs ask for few of them again and again
def _title(spellings: tuple[str, ...], targeted: bool) -> str:
    from tmifpe.attacks.named import full_options

    if spellings == (attack_spelling(get_attack("quick")),):
        return "quick"
    asked = full_options(spellings, targeted=targeted)
    if asked is None:
        return "; ".join(spellings)
    usual = inspect.signature(ATTACKS.get("full")).parameters
    return spell("full", {name: value for name, value in asked.items() if value != usual[name].default})


def is_named(title: str) -> bool:
    """Whether a title is a name of `NAMED`, perhaps with options, and not the text of the stages.

    >>> is_named("full(restarts=2)"), is_named("fgsm; gama"), is_named("pgd(steps=20)")
    (True, False, False)
    """
    return title.partition("(")[0] in NAMED and ";" not in title


def stage_title(spelling: str) -> str:
    """What to call one stage in a table: its name, or that of the attack that `near` runs.

    >>> stage_title("near(attack=pgd(steps=20),share=0.1)")
    'pgd'
    """
    name, options = parse(spelling)
    return stage_title(options["attack"]) if isinstance(options.get("attack"), str) else name


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
