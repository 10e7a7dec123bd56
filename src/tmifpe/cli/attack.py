"""From --attack, --loss, --steps and their like to an attack."""

from __future__ import annotations

__all__ = ["attack_from", "paper_from"]

from typing import TYPE_CHECKING, Any

from tmifpe.cli.options import AttackOptions
from tmifpe.core.errors import InputError, shown

if TYPE_CHECKING:
    from tmifpe.attacks import PGD, Attack

_OF_AN_ATTACK = ("steps", "restarts", "schedule", "momentum")


def paper_from(options: AttackOptions) -> PGD:
    """The paper's protocol with the values that were given: what climbs the losses of a table."""
    from tmifpe.attacks import paper

    return paper(**_given(options))


def attack_from(options: AttackOptions, attack: str | None, loss: str | None) -> Attack:
    """What --attack names, with the values of --loss, --steps, ... that it takes; without it `paper` with them; `full`
    if none of them is given."""
    if attack is not None:
        values = _given(options) | ({} if loss is None else {"loss": loss})
        return _with_values(attack, values)
    if loss is None and not _given(options):
        from tmifpe.attacks import full

        return full()
    if loss is None:
        return paper_from(options)
    return _from_loss(options, loss)


def _given(options: AttackOptions) -> dict[str, Any]:
    return {name: value for name in _OF_AN_ATTACK if (value := getattr(options, name)) is not None}


def _from_loss(options: AttackOptions, text: str) -> Attack:
    """As in 0.1.0: --loss may name an attack, which then has the steps and restarts of `paper`."""
    from tmifpe.attacks import attack_spelling, split_sequence
    from tmifpe.cli.console import notice
    from tmifpe.core.options import parse
    from tmifpe.losses import LOSSES
    from tmifpe.run.resolve import resolve_attack

    if all(parse(part)[0] in LOSSES for part in split_sequence(text)):
        return resolve_attack(text, paper_from(options))
    _with_values(text, _given(options))
    found = resolve_attack(text, paper_from(options))
    spelled = text if resolve_attack(text) == found else attack_spelling(found)
    notice(f"{text} is an attack: write --attack '{spelled}'; --loss takes losses")
    return found


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
