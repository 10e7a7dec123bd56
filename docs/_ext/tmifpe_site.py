"""What the site needs beside Sphinx: our docstrings, the help of every command, the theory page, links out of docs."""

from __future__ import annotations

import inspect
import re
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx.addnodes import pending_xref
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

ROOT = Path(__file__).resolve().parents[2]
THEORY = "theory-page.html"
WIDTH = 88
"""Columns of the help texts: what fits beside the sidebars."""
PAGES = {"README.md": "start.md", "CHANGELOG.md": "changelog.md", "CONTRIBUTING.md": "contributing.md"}
"""Files beside docs, and what stands for them on the site."""
_PARAMETER = re.compile(r"^([a-z_]\w*(?:, [a-z_]\w*)*): (\S.*)$")


def restructured(lines: list[str], parameters: Collection[str]) -> list[str]:
    """A docstring in the plain style of this package, as reStructuredText.

    "name: what it is" at the margin describes a parameter, or several ("one, two: what they are"), up to the next or
    a blank line. Stars and bars are meant as they are written, and examples are left alone.

    >>> restructured(["Do it.", "", "model: any", "    callable to z*.", "other: no"], ["model"])
    ['Do it.', '', ':param model: any', '    callable to z\\\\*.', '    other: no']
    """
    made: list[str] = []
    inside = example = False
    for line in lines:
        example = line.startswith(">>>") or (example and bool(line.strip()))
        found = _PARAMETER.match(line)
        if example:
            made.append(line)
        elif found and all(name in parameters for name in found[1].split(", ")):
            made.append(f":param {found[1].replace(', ', ',')}: {_escaped(found[2])}")
            inside = True
        else:
            inside = inside and bool(line.strip())
            made.append(f"    {_escaped(line.strip())}" if inside else _escaped(line))
    return made


def _escaped(line: str) -> str:
    """Stars and bars outside of `code`, as text."""
    parts = re.split(r"(`[^`]*`)", line)
    return "".join(part if part.startswith("`") else re.sub(r"([*|])", r"\\\1", part) for part in parts)


def _docstring(app: Sphinx, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:  # noqa: ARG001
    try:
        parameters = inspect.signature(obj).parameters
    except (TypeError, ValueError):
        parameters = {}
    lines[:] = restructured(lines, parameters)


def _links(app: Sphinx, name: str, source: list[str]) -> None:
    """Links to folders, and to pages beside docs, which the site does not have; whoever reads the files has both."""
    folder = (Path(app.srcdir) / name).parent

    def mended(found: re.Match[str]) -> str:
        path = (folder / found[2]).resolve()
        if path.is_dir():
            return f"`{path.relative_to(ROOT)}`"
        return f"[{found[1]}](/{PAGES[path.name]})" if path.parent == ROOT and path.name in PAGES else found[0]

    source[0] = re.sub(r"\[([^\]]*)\]\(([^)\s#:]+)\)", mended, source[0])


class TheoryPage(SphinxDirective):
    """The page of `tmifpe theory --page`, in a frame."""

    def run(self) -> list[nodes.Node]:
        frame = f'<iframe class="theory" src="{THEORY}" title="The theory page" loading="lazy"></iframe>'
        alone = f'<p><a href="{THEORY}">The page by itself</a></p>'
        return [nodes.raw("", f"{frame}\n{alone}", format="html")]


class CommandHelp(SphinxDirective):
    """A section with the help text of every command."""

    def run(self) -> list[nodes.Node]:
        return [self._section(words, text) for words, text in _commands()]

    def _section(self, words: str, text: str) -> nodes.section:
        section = nodes.section(ids=[nodes.make_id(words)], names=[nodes.fully_normalize_name(words)])
        section += nodes.title("", words)
        section += nodes.literal_block(text, text, language="text")
        self.state.document.note_explicit_target(section)
        return section


def _commands() -> Iterator[tuple[str, str]]:
    import click
    import typer

    from tmifpe.cli import app

    def told(command: Any, words: str, parent: Any) -> Iterator[tuple[str, str]]:
        context = click.Context(command, info_name=words.rsplit(" ", 1)[-1], parent=parent, max_content_width=WIDTH)
        context.terminal_width = WIDTH
        context.help_option_names = ["-h", "--help"]
        yield words, command.get_help(context)
        for name, child in getattr(command, "commands", {}).items():
            yield from told(child, f"{words} {name}", context)

    yield from told(typer.main.get_command(app), "tmifpe", None)


def _write_theory(app: Sphinx, error: Exception | None) -> None:
    if error is None and app.builder.format == "html":
        from tmifpe.report.page.theory import theory_html

        (Path(app.outdir) / THEORY).write_text(theory_html(), encoding="utf-8")


def _unlink(app: Sphinx, doctree: nodes.document) -> None:  # noqa: ARG001
    """`Sequence` in a signature is Python's, not the attack of that name."""
    for link in list(doctree.findall(pending_xref)):
        if link.get("reftarget") == "Sequence":
            link.replace_self(nodes.Text("Sequence"))


def setup(app: Sphinx) -> dict[str, Any]:
    app.add_directive("theory-page", TheoryPage)
    app.add_directive("command-help", CommandHelp)
    app.connect("autodoc-process-docstring", _docstring)
    app.connect("source-read", _links)
    app.connect("doctree-read", _unlink)
    app.connect("build-finished", _write_theory)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
