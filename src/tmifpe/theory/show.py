"""An analysis as text and as HTML: the same tables twice."""

from __future__ import annotations

__all__ = ["as_html", "as_text", "tables"]

from collections.abc import Sequence
from html import escape
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from tmifpe.theory.analyse import Analysis

_MEANING = {
    "u_u": "untargeted, not yet successful",
    "u_s": "untargeted, successful",
    "t_u": "targeted, not yet successful",
    "t_s": "targeted, successful",
}
_MOST = 14  # longer rows of numbers are cut


class Table(NamedTuple):
    title: str
    head: tuple[str, ...]
    rows: list[tuple[str, ...]]


def tables(found: Analysis) -> list[Table]:
    """What an analysis has to say, in tables of strings."""
    named = f"label {found.label}" if found.target is None else f"label {found.label}, target {found.target}"
    scenario = f"{found.scenario} ({_MEANING[str(found.scenario)]})"
    facts = [
        ("scenario", scenario),
        ("classes", f"{len(found.logits)}, {named} at rank {found.rank}"),
        ("Delta", _six_digits(found.delta)),
        (f"t* ({found.precision})", f"{found.t_star:.12g}"),
        ("g(t*)", f"{found.g:.12g}"),
        ("g'(t*)", _six_digits(found.g_prime)),
        ("  as printed", _six_digits(found.g_prime_printed)),
        ("h(t*)", "not defined here: g only increases" if found.h is None else _six_digits(found.h)),
    ]
    choices = [(c.rule, _six_digits(c.t), _six_digits(c.g), f"{100 * c.loss:.3g} %") for c in found.choices]
    result = [Table("", (), facts), Table("choice of t", ("rule", "t", "g", "loses"), choices)]
    if len(found.local_maxima) > 1:
        several = [(f"{t:.9g}", f"{g:.9g}") for t, g in found.local_maxima]
        result.append(Table("local maxima of g", ("t", "g"), several))
    bounds = [(b.format, _six_digits(b.t_star), _six_digits(b.g), f"{b.delta_sup:.3g}") for b in found.delta_sup]
    result.append(Table("the paper's bound", ("format", "t*", "g", "delta_sup"), bounds))
    pairs = [
        (
            f"({p.i - 1}, {p.i})",
            *map(_six_digits, (p.coefficient, p.delta_sup, p.printed_coefficient, p.printed_delta_sup)),
        )
        for p in found.pairs
    ]
    head = ("ranks", "a", f"delta_sup ({found.precision})", "a as printed", "delta_sup as printed")
    result.append(Table("pairs of neighbours", head, _cut(pairs)))
    both = zip(found.coefficients, found.coefficients_printed, strict=True)
    terms = [(str(k), _six_digits(right), _six_digits(printed)) for k, (right, printed) in enumerate(both, start=1)]
    result.append(Table("telescoped coefficients a_k", ("k", "a_k", "as printed"), _cut(terms)))
    slopes = [
        (str(k), _six_digits(z), _six_digits(w))
        for k, (z, w) in enumerate(zip(found.logits, found.gradient, strict=True))
    ]
    result.append(Table("gradient", ("class", "logit", "d loss / d logit"), _cut(slopes)))
    return result


def as_text(found: Analysis) -> str:
    """Aligned plain text."""
    return "\n\n".join(_text(table) for table in tables(found))


def as_html(found: Analysis) -> str:
    """Tables for a notebook."""
    return "<div>" + "".join(_html(table) for table in tables(found)) + "</div>"


def _text(table: Table) -> str:
    rows = [table.head, *table.rows] if table.head else table.rows
    widths = [max(len(row[k]) for row in rows) for k in range(len(rows[0]))]
    # Facts read from the left; columns of numbers line up on the right.
    align = str.rjust if table.head else str.ljust
    lines = ["  ".join([row[0].ljust(widths[0]), *map(align, row[1:], widths[1:])]).rstrip() for row in rows]
    return "\n".join([table.title, *("  " + line for line in lines)] if table.title else lines)


def _html(table: Table) -> str:
    def cells(kind: str, row: Sequence[str]) -> str:
        return "<tr>" + "".join(f"<{kind}>{escape(cell)}</{kind}>" for cell in row) + "</tr>"

    caption = f"<caption>{escape(table.title)}</caption>" if table.title else ""
    head = cells("th", table.head) if table.head else ""
    return f"<table>{caption}{head}{''.join(cells('td', row) for row in table.rows)}</table>"


def _cut(rows: list[tuple[str, ...]]) -> list[tuple[str, ...]]:
    """The first rows, and how many more there are."""
    if len(rows) <= _MOST:
        return rows
    return [*rows[:_MOST], (f"... {len(rows) - _MOST} more", *[""] * (len(rows[0]) - 1))]


def _six_digits(value: float) -> str:
    return f"{value:.6g}"
