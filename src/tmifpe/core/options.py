"""The one spelling of a configured thing: `name(option=value, ...)`, e.g. `tmifpe(t_rule=one-step)`."""

from __future__ import annotations

__all__ = ["build", "check_spelled", "parse", "spell", "split_list"]

import dataclasses
import re
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from tmifpe.core.errors import InputError, shown
from tmifpe.core.registry import Registry

T = TypeVar("T")

# A registered name, or `path/to/file.py:Name` and `package.module:Name`; either may end in @ and a hash of its code.
_NAME = r"[A-Za-z0-9_.-]+|[^\s(),=:][^(),=\n]*:[^\W\d][\w.]*"
_FORM = re.compile(rf"((?:{_NAME})(?:@[\w-]+)?)\s*(?:\((.*)\))?", re.DOTALL)
_LONGEST = 10_000  # characters: what is longer was never meant to be a configuration


def parse(text: str) -> tuple[str, dict[str, Any]]:
    """Split `name(a=1,b=x)` into its name and options; numbers, true/false/none become values.

    >>> parse("mifpe(T=10)")
    ('mifpe', {'T': 10})
    >>> parse("my_loss.py:Hinge(margin=2)")
    ('my_loss.py:Hinge', {'margin': 2})
    """
    match = _FORM.fullmatch(text.strip()) if isinstance(text, str) and len(text) <= _LONGEST else None
    if match is None or not _balanced(match[2] or ""):
        raise InputError(f"cannot read {shown(text)}; write it as name or name(option=value, ...)")
    name, inside = match.groups()
    options: dict[str, Any] = {}
    for part in split_list(inside or ""):
        key, equals, value = part.partition("=")
        key = key.strip()
        if not equals or not key.isidentifier():
            raise InputError(f"cannot read option {shown(part)} of {shown(name)}; write option=value")
        if key in options:
            raise InputError(f"option {shown(key)} of {shown(name)} is given twice")
        options[key] = _value(value.strip())
    return name, options


def split_list(text: str, by: str = ",") -> list[str]:
    """Split a comma-separated list, leaving commas inside parentheses alone; or at any character of `by`.

    >>> split_list("ce, tmifpe(t_rule=1.5,lam=87), cw")
    ['ce', 'tmifpe(t_rule=1.5,lam=87)', 'cw']
    """
    parts, depth = [""], 0
    for piece in re.split(rf"([(){re.escape(by)}])", text):
        depth = max(0, depth + (piece == "(") - (piece == ")"))
        if piece and piece in by and not depth:
            parts.append("")
        else:
            parts[-1] += piece
    return [part.strip() for part in parts if part.strip()]


def build(registry: Registry[type[T]], text: str) -> T:
    """Make the configured dataclass that `text` spells, from the class registered under its name."""
    name, options = parse(text)
    cls = registry.get(name)
    known = [f.name for f in dataclasses.fields(cls)]  # pyright: ignore[reportArgumentType]
    for key in options:
        if key not in known:
            takes = f"it takes {', '.join(known)}" if known else "it takes none"
            raise InputError(f"{registry.kind} {name!r} has no option {shown(key)}; {takes}")
    try:
        return cls(**options)
    except InputError:
        raise
    except (TypeError, ValueError, OverflowError) as error:
        raise InputError(f"bad option for {registry.kind} {name!r}: {error}") from error


def spell(name: str, options: Mapping[str, Any]) -> str:
    """The inverse of `parse`, in a canonical order: what is stored, hashed and shown."""
    if not options:
        return name
    inside = ",".join(f"{key}={options[key]}" for key in sorted(options))
    return f"{name}({inside})"


def check_spelled(thing: object, text: str, read: Callable[[str], object]) -> None:
    """`InputError` unless `text` spells `thing`: options of code from outside may be anything."""
    try:
        same = read(text) == thing
    except (ValueError, RuntimeError):  # of tensors, whose equality is no truth value; and what `read` refuses
        same = False
    if not same:
        raise InputError(
            f"{shown(thing)} cannot be written as text and read back, as storing needs; its options must be numbers, "
            "words, true, false or none"
        )


def _balanced(text: str) -> bool:
    """Every parenthesis is opened before it is closed, and closed in the end."""
    depth = 0
    for letter in text:
        depth += (letter == "(") - (letter == ")")
        if depth < 0:
            return False
    return depth == 0


def _value(text: str) -> Any:
    words = {"true": True, "false": False, "none": None}
    if text.lower() in words:
        return words[text.lower()]
    for number in (int, float):
        try:
            return number(text)
        except ValueError:
            continue
    return text
