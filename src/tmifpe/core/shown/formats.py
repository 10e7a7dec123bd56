"""A table of text as HTML, Markdown and LaTeX: names come from files, and are shown as they are in each."""

from __future__ import annotations

__all__ = ["markdown_text", "sheet_html", "sheet_latex", "sheet_markdown", "tex"]

import re
from collections.abc import Sequence
from html import escape

from tmifpe.core.shown.sheet import Sheet, visible


def sheet_html(sheet: Sheet) -> str:
    """A table for a notebook, which has a style of its own for it.

    >>> sheet_html(Sheet("", (), (("a<b", "1"),)))
    '<table><tr><th style="text-align:left">a&lt;b</th><td style="text-align:left">1</td></tr></table>'
    """
    caption = f"<caption>{escape(visible(sheet.title))}</caption>" if sheet.title else ""
    head = "".join(f"<th>{escape(visible(cell))}</th>" for cell in sheet.head)
    rows = "".join(f"<tr>{_html_row(row, 'right' if sheet.head else 'left')}</tr>" for row in sheet.rows)
    note = f"<p>{escape(visible(sheet.note))}</p>" if sheet.note else ""
    return f"<table>{caption}{f'<tr>{head}</tr>' if head else ''}{rows}</table>{note}"


def _html_row(row: Sequence[str], side: str) -> str:
    first, *rest = (escape(visible(cell)) for cell in row)
    return f'<th style="text-align:left">{first}</th>' + "".join(
        f'<td style="text-align:{side}">{cell}</td>' for cell in rest
    )


def sheet_markdown(sheet: Sheet) -> str:
    """A table; one without a head has an empty one, as Markdown asks."""
    head = sheet.head or ("",) * len(sheet.rows[0])
    align = "|---|" + ("---:|" if sheet.head else "---|") * (len(head) - 1)
    lines = [_markdown_row(head), align, *(_markdown_row(row, row[0] in sheet.code) for row in sheet.rows)]
    return "\n".join(lines) + (f"\n\n{markdown_text(sheet.note)}" if sheet.note else "")


def _markdown_row(cells: Sequence[str], code: bool = False) -> str:
    first, *rest = cells
    return f"| {' | '.join([markdown_text(first), *map(_markdown_code if code else markdown_text, rest)])} |"


def _markdown_code(text: str) -> str:
    """A code span, to be copied as it is; text that could end it, or be a tag to a careless reader, is escaped.

    >>> _markdown_code("my_model.py:build"), _markdown_code("a_b|<c>")
    ('`my_model.py:build`', 'a\\\\_b\\\\|\\\\<c\\\\>')
    """
    return markdown_text(text) if re.search(r"[`<>|\\]", text) else f"`{visible(text)}`"


def markdown_text(text: str) -> str:
    """Text that Markdown shows as it is."""
    return re.sub(r"([\\`*_\[\]<>|#&])", r"\\\1", visible(text))


def sheet_latex(sheet: Sheet) -> str:
    """A tabular without packages."""
    columns = "l" + ("r" if sheet.head else "l") * (len(sheet.rows[0]) - 1)
    head = [_tex_row(sheet.head), r"\hline"] if sheet.head else []
    lines = [f"% {visible(sheet.title)}", rf"\begin{{tabular}}{{{columns}}}", r"\hline", *head]
    lines += [*map(_tex_row, sheet.rows), r"\hline", r"\end{tabular}"]
    return "\n".join(lines) + (f"\n% {visible(sheet.note)}" if sheet.note else "")


_TEX = {character: f"\\{character}" for character in "&%_#${}"}
_TEX |= {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
_TEX |= {"≤": r"$\le$", "<": r"$<$", ">": r"$>$", "Δ": r"$\Delta$", "→": r"$\to$"}


def _tex_row(cells: Sequence[str]) -> str:
    return " & ".join(tex(cell) for cell in cells) + r" \\"


def tex(text: str) -> str:
    """Text that LaTeX sets as it is."""
    return "".join(_TEX.get(character, character) for character in visible(text))
