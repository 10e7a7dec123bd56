"""The code blocks of README and docs: found, told apart, and run, every one of them.

Before a block, a comment that a reader of the page does not see says what is special about it:

    <!-- file: mine.py -->      its text is that file
    <!-- exit: 1 -->            every command of it ends with this code
    <!-- slow -->               run by `make test-slow` only
    <!-- real -->               so too, and with the weights and data of TMIFPE_SHARED
    <!-- ray -->                run by tests/test_ray_cluster.py, which has a cluster

A command is run on few examples and with few steps. What a page takes for granted (files of the reader, downloads) is
made by tests/block_files.py, which also has the checks of what is not run here, such as `pip install`.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import runpy
import shlex
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from typer.testing import CliRunner

from tests.block_files import STAND_INS, replaced
from tmifpe.cli import app

ROOT = Path(__file__).resolve().parent.parent
PAGES = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")])
_BLOCK = re.compile(r"(?:^<!-- ([^\n]*?) -->\n)?^(```+)([^\n`]*)\n(.*?)^\2$", re.MULTILINE | re.DOTALL)
_EVALUATES = ("evaluate", "compare", "curve", "audit", "table1", "table-targeted")
_STEPS = ("compare", "table1", "table-targeted")
"""Take the number of steps of every loss from --steps."""
FEW, MOST, STEPS = 4, 10, 3
"""Examples, where a command says nothing about how many (the page means all 500), and where it says more than that; of
real models one, because they are large, unless one may have no target."""


@dataclass(frozen=True)
class Block:
    """One fenced block."""

    page: Path
    line: int
    language: str
    mark: str
    text: str

    @property
    def set(self) -> str:
        """Of tests that run it: fast, slow, real or ray."""
        return self.mark if self.mark in ("slow", "real", "ray") else "fast"

    @property
    def file(self) -> str:
        return self.mark.partition("file:")[2].strip() if self.mark.startswith("file:") else ""

    @property
    def exit_code(self) -> int:
        return int(self.mark.partition("exit:")[2]) if self.mark.startswith("exit:") else 0

    def commands(self) -> list[list[str]]:
        """The words of every line of a shell block, without comments."""
        lines = self.text.replace("\\\n", " ").splitlines()
        parts = [part for line in lines for part in line.split(" && ")]
        return [words for part in parts if (words := shlex.split(part, comments=True))]

    @property
    def stand_ins(self) -> set[str]:
        """The programs in it that are checked and not run."""
        return {words[0] for words in self.commands()} & set(STAND_INS) if self.language == "sh" else set()

    def __str__(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"


def blocks(page: Path) -> Iterator[Block]:
    """Those of a page, in order; directives of the site (`{eval-rst}`) are no code."""
    text = page.read_text(encoding="utf-8")
    for found in _BLOCK.finditer(text):
        mark, language = found[1] or "", found[3].strip()
        if not language.startswith("{"):
            yield Block(page, text[: found.start(2)].count("\n") + 1, language, mark, found[4])


def run_page(page: Path, folder: Path, *sets: str, names: dict[str, str] | None = None) -> list[Block]:
    """Run the blocks of a page that are of these sets in the current folder, which is `folder`, in order, and the files
    that they may need. `names`: what stands there for words of the page. Those that were run."""
    spelled: dict[str, Any] = {"__name__": "__main__"}
    ran = []
    for number, block in enumerate(blocks(page)):
        if block.set not in sets and not block.file:
            continue
        try:
            _run(block, folder / f"block{number}.py", spelled, names or {})
        except Exception as error:
            raise AssertionError(f"{block}: {error!r}") from error
        ran.append(block)
    return ran


def _run(block: Block, path: Path, spelled: dict[str, Any], names: dict[str, str]) -> None:
    if block.file:
        path.with_name(block.file).write_text(block.text, encoding="utf-8")
    elif block.language == "python":
        # From a file, so that the code of a loss defined here has a source to be found.
        path.write_text(block.text, encoding="utf-8")
        with contextlib.redirect_stdout(io.StringIO()):
            exec(compile(block.text, str(path), "exec"), spelled)
    elif block.language == "sh":
        for words in block.commands():
            _command([replaced(word, names) for word in words], block)
    else:
        _read(block)


def _command(words: list[str], block: Block) -> None:
    words, out = (words[:-2], words[-1]) if words[-2:-1] == [">"] else (words, None)
    if words[0] == "python":
        _script(words[1:])
        return
    if words[0] in STAND_INS:
        STAND_INS[words[0]](words)
        return
    assert words[0] == "tmifpe", f"{words[0]} is neither run nor checked: add it to tests/block_files.py"
    asked = _short([os.path.expandvars(word) for word in words[1:]], one=block.set == "real")
    result = CliRunner().invoke(app, asked)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == block.exit_code, (words, result.exit_code, result.output)
    if out is not None:
        Path(out).write_text(result.stdout, encoding="utf-8")


def _short(words: list[str], one: bool) -> list[str]:
    """The command on few examples and, where one option says it for all, with few steps; nothing else is changed."""
    if words[0] not in _EVALUATES or "--help" in words:
        return words
    if not {"--limit", "--sample"} & set(words):
        words = [*words, "--limit", str(FEW)]
    most = 1 if one and words[0] != "table-targeted" else FEW if one else MOST
    for at in [at + 1 for at, word in enumerate(words) if word in ("--limit", "--sample")]:
        words[at] = str(min(int(words[at]), most))
    return [*words, "--steps", str(STEPS)] if words[0] in _STEPS and "--steps" not in words else words


def _script(words: list[str]) -> None:
    """A script of the repository, or the copy of it that tests/block_files.py has made."""
    copy = Path(words[0]).resolve()
    before = sys.argv
    sys.argv = [str(copy if copy.exists() else ROOT / words[0]), *words[1:]]
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            runpy.run_path(sys.argv[0], run_name="__main__")
    finally:
        sys.argv = before


def _read(block: Block) -> None:
    """What holds settings must at least be readable; `text` shows output."""
    if block.language == "toml":
        from tmifpe.cli.plans.toml import tomllib

        tomllib.loads(block.text)
    elif block.language == "yaml":
        import yaml

        list(yaml.safe_load_all(block.text))
    elif block.language == "json":
        json.loads(block.text)
    else:
        assert block.language == "text", f"a block of language {block.language!r} is run by no test"
