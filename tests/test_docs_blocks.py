"""Every code block of README and docs is run; see tests/blocks.py."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import typer

from tests.block_files import FILES, STAND_INS, names_in, shorten, with_few_packages, without_downloads
from tests.blocks import PAGES, ROOT, blocks, run_page
from tmifpe import cli

BLOCKS = [block for page in PAGES for block in blocks(page)]
CODE = [block for block in BLOCKS if block.language in ("python", "sh")]
MARKS = ("file: ", "exit: ", "slow", "real", "ray")
CHECKED = {
    "README.md": ["make", "pip"],
    "docs/start.md": [". cd mkdir pip python3"],
    "docs/cluster.md": ["pip"],
    "docs/benchmarks.md": ["make"],
    "docs/install.md": ["pip"],
}
"""Per page, the programs of each block that are not run but checked, by tests/block_files.py."""


def name(page: Path) -> str:
    return str(page.relative_to(ROOT))


def pages(*sets: str) -> list[Path]:
    return [page for page in PAGES if any(block.set in sets for block in blocks(page) if block.language != "text")]


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, unchecked: None) -> Callable[..., None]:
    """Runs the blocks of a page that belong to some sets of tests, in a folder with the files that they need."""

    def run(page: Path, *sets: str) -> None:
        monkeypatch.chdir(tmp_path)
        monkeypatch.delenv("TMIFPE_STORE", raising=False)
        shorten(monkeypatch)
        FILES.get((name(page), sets[0]), lambda folder: None)(tmp_path)
        ran = run_page(page, tmp_path, *sets, names=names_in(tmp_path))
        assert ran

    return run


@pytest.mark.parametrize("page", pages("fast"), ids=name)
def test_every_block_of_a_page_runs(page: Path, runs: Callable[..., None]) -> None:
    runs(page, "fast")


@pytest.mark.slow
@pytest.mark.parametrize("page", pages("slow", "real"), ids=name)
def test_the_slow_blocks_run_too(
    page: Path, runs: Callable[..., None], request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    if page in pages("real"):
        request.getfixturevalue("shared")
    if name(page) == "docs/your-model.md":
        without_downloads(monkeypatch)
    if name(page) == "docs/install.md":
        with_few_packages(monkeypatch)
    runs(page, "slow", "real")


def test_every_block_is_run_or_checked(record_property: Callable[[str, object], None]) -> None:
    """Its language and its mark say by which test; what a stand-in checks is named one by one."""
    for block in BLOCKS:
        assert block.language in ("python", "sh", "toml", "yaml", "json", "text"), str(block)
        assert not block.mark or block.mark.startswith(MARKS) or block not in CODE, f"{block}: {block.mark}"
        if block.language == "sh":
            assert {words[0] for words in block.commands()} <= {"tmifpe", "python", *STAND_INS}, str(block)
    found = {
        name(page): [" ".join(sorted(block.stand_ins)) for block in blocks(page) if block.stand_ins] for page in PAGES
    }
    assert {page: programs for page, programs in found.items() if programs} == CHECKED
    assert {name(block.page) for block in CODE if block.set == "ray"} == {"docs/cluster.md"}
    assert len(CODE) >= 90
    only = [block for block in CODE if block.stand_ins and "tmifpe" not in block.text.split()]
    counts = Counter(block.set for block in CODE if block not in only)
    told = ", ".join(f"{count} {kind}" for kind, count in counts.items())
    record_property("code blocks", f"{len(CODE)} code blocks of the docs: {told}, {len(only)} checked")


@pytest.fixture(scope="module")
def group() -> Any:
    return typer.main.get_command(cli.app)


@pytest.mark.parametrize("page", [page for page in PAGES if any(b.language == "sh" for b in blocks(page))], ids=name)
def test_commands_are_understood(page: Path, group: Any) -> None:
    """Their verbs and options exist and read, as they are written."""
    for block in blocks(page):
        for words in block.commands() if block.language == "sh" and block.exit_code != 2 else []:
            if words[0] == "tmifpe":
                words = words[: words.index(">")] if ">" in words else words
                verb, rest = group, words[1:]
                while rest and rest[0] in getattr(verb, "commands", {}):
                    verb, rest = verb.commands[rest[0]], rest[1:]
                verb.make_context(words[1], list(rest), resilient_parsing=False)
