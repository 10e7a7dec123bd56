"""From --attack, --loss, --steps and their like to an attack."""

from __future__ import annotations

__all__ = ["attack_from", "paper_from", "weaker"]

from typing import TYPE_CHECKING, Any

from tmifpe.cli.options import StepOptions
from tmifpe.core.errors import InputError, shown

if TYPE_CHECKING:
    from tmifpe.attacks import PGD, Attack

_OF_AN_ATTACK = ("steps", "restarts", "schedule", "momentum")


def paper_from(options: StepOptions) -> PGD:
    """The paper's protocol with the values that were given: what climbs the losses of a table."""
    from tmifpe.attacks import paper

    return paper(**_given(options))


def attack_from(options: StepOptions, attack: str | None, loss: str | None) -> Attack:
    """What --attack names, by default `full`, with the values of --loss, --steps, ... that it takes. `InputError` for
    what it does not take: another attack is never run in its place."""
    values = _given(options) | ({} if loss is None else {"loss": loss})
    if attack is None:
        _check_of_full(values)
    return _with_values("full" if attack is None else attack, values)


def weaker(options: StepOptions, attack: str | None, loss: str | None) -> str:
    """A sentence where options go to an attack that is weaker than what they would make without --attack."""
    from tmifpe.core.options import parse

    values = _given(options) | ({} if loss is None else {"loss": loss})
    if attack is None or not values or "+" in attack or parse(attack)[0] not in ("quick", "paper"):
        return ""
    given = ", ".join(f"--{option}" for option in values)
    return f"{given} with --attack {attack} is one PGD, which breaks less than the default: leave out --attack for that"


def _given(options: StepOptions) -> dict[str, Any]:
    return {name: value for name in _OF_AN_ATTACK if (value := getattr(options, name)) is not None}


def _check_of_full(values: dict[str, Any]) -> None:
    """`InputError` for options that once chose another attack than the default, and what to type for that one."""
    from tmifpe.attacks import ATTACKS, split_sequence
    from tmifpe.core.options import parse
    from tmifpe.losses import LOSSES

    if "momentum" in values:
        raise InputError(
            "full, the default, has its own --momentum; for one PGD with another, which breaks less: "
            f"--attack paper --momentum {values['momentum']:g}"
        )
    parts = split_sequence(values.get("loss", ""))
    attacks = [part for part in parts if (name := parse(part)[0]) not in LOSSES and name in ATTACKS]
    if attacks or len(parts) > 1:
        what = f"{attacks[0]} is an attack" if attacks else f"{', '.join(parts)} are several"
        raise InputError(f"--loss takes one loss, and {what}: write --attack '{','.join(parts)}'")


def _with_values(text: str, values: dict[str, Any]) -> Attack:
    """The attacks that `text` names with `values` as their options; `InputError` unless every one takes all of them."""
    from tmifpe.attacks import ATTACKS, as_attack, options_of, paper, split_sequence
    from tmifpe.core.options import parse, spell
    from tmifpe.losses import LOSSES
    from tmifpe.run.resolve import resolve_attack

    stages: list[Attack] = []
    for part in split_sequence(text) or [text]:
        name, own = parse(part)
        is_loss = name in LOSSES
        if not is_loss and name not in ATTACKS:
            resolve_attack(part)  # which says what there is
        takes = [option for option in options_of("paper" if is_loss else name) if not (is_loss and option == "loss")]
        if refused := [f"--{option}" for option in values if option not in takes]:
            those = "it has no options; --attack paper takes them"
            if takes:
                those = f"it takes {', '.join(takes)}, as in --attack '{name}({takes[0]}=...)'"
            raise InputError(f"{shown(name)} takes no {', '.join(refused)}; {those}")
        if not is_loss and (twice := [option for option in values if option in own]):
            raise InputError(f"{twice[0]} is given twice, in {shown(part)} and as --{twice[0]}; give it once")
        stages.append(paper(part, **values) if is_loss else resolve_attack(spell(name, values | own)))
    return as_attack(stages)
