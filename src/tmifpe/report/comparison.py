"""A comparison of losses as Markdown, from the plain values of `tmifpe compare --json`."""

from __future__ import annotations

__all__ = ["TEST", "markdown", "significance", "spread", "time_ratio"]

import itertools
from collections.abc import Sequence
from typing import Any

TEST = "McNemar's exact test on the same images, Holm's correction for the number of pairs, 5 %"


def markdown(plain: dict[str, Any]) -> str:
    """A table with one line per column, and what can be said of the differences."""
    columns = plain["losses"]
    first = next(iter(columns.values()))
    many = len(plain["seeds"]) > 1
    heads = ["column", "robust %", "95 % interval", *(["min", "max", "all seeds together"] if many else [])]
    lines = [f"| {' | '.join([*heads, 'seconds'])} |", "|---|" + "---:|" * len(heads)]
    for name, column in columns.items():
        low, high = column["mean_interval"]
        cells = [name, _percent(column["mean"]), f"{_percent(low)} to {_percent(high)}"]
        if many:
            several = len(column["robust_accuracies"]) > 1  # AutoAttack is measured at the first seed only
            cells += [_percent(column[key]) if several else "" for key in ("min", "max", "worst_case")]
        lines.append(f"| {' | '.join([*cells, format(column['seconds'], '.0f')])} |")
    threat = f"{first['norm']} eps {first['eps']:.6g}"
    seeds = f"seed{'s' if many else ''} {', '.join(map(str, plain['seeds']))}"
    said = [
        f"{first['n']} images, clean {_percent(plain['clean_accuracy'])}, {threat}, {seeds}.",
        spread(plain),
        significance(plain["pairs"], plain["seeds"]),
        time_ratio({name: column["seconds"] for name, column in columns.items()}),
        _flags(columns),
    ]
    return "\n".join(lines) + "\n\n" + " ".join(text for text in said if text)


def time_ratio(seconds: dict[str, float]) -> str:
    """How much longer AutoAttack took than PGD with T-MIFPE, where both were measured."""
    if "autoattack" not in seconds or not seconds.get("tmifpe"):
        return ""
    ratio = seconds["autoattack"] / seconds["tmifpe"]
    return f"AutoAttack took {ratio:.0f} times as long as PGD with T-MIFPE."


def spread(plain: dict[str, Any]) -> str:
    """How far the seed alone moves a number, compared with the gaps between losses, in one sentence."""
    if plain["spread"] is None:
        return ""
    means = [column["mean"] for column in plain["losses"].values()]
    gaps = [abs(a - b) for a, b in itertools.combinations(means, 2)]
    below = sum(gap <= plain["spread"] for gap in gaps)
    moved = f"The seed alone moves a loss by up to {_percent(plain['spread'])} points"
    if not gaps:
        return f"{moved}."
    if len(gaps) == 1:
        return f"{moved}; the difference between the two means is {'not ' if below else ''}larger than that."
    are = "is" if below == 1 else "are"
    return f"{moved}; {below} of the {len(gaps)} differences between two means {are} not larger than that."


def significance(pairs: Sequence[dict[str, Any]], seeds: Sequence[int]) -> str:
    """Which columns differ by more than chance, in one sentence; of several seeds the first is tested."""
    test = f"{TEST}, seed {seeds[0]}" if len(seeds) > 1 else TEST
    real = [f"{pair['first']} / {pair['second']} (p = {pair['adjusted']:.2g})" for pair in pairs if pair["differs"]]
    if not pairs:
        return ""
    if not real:
        return f"No two columns differ by more than chance ({test})."
    rest = len(pairs) - len(real)
    others = "the other pair" if rest == 1 else f"the other {rest} pairs"
    more = f"; {others} may be chance" if rest else ""
    return f"More than chance ({test}): {', '.join(real)}{more}."


def _flags(columns: dict[str, Any]) -> str:
    raised = [(name, dict.fromkeys(flag["name"] for flag in column["flags"])) for name, column in columns.items()]
    named = "; ".join(f"{name}: {', '.join(flags)}" for name, flags in raised if flags)
    return f"Flags ([what they mean](flags.md)): {named}." if named else ""


def _percent(fraction: float) -> str:
    return f"{100 * fraction:.2f}"
