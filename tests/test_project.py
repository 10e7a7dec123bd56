"""What the project says about itself is true: versions, links, pins. Its commands and examples: test_docs_blocks.py."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tmifpe.version import __version__

ROOT = Path(__file__).resolve().parent.parent
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
APART = ("mlflow", "wandb")
"""Extras outside of `all`, which `make setup` does not install; pyproject.toml says why."""
FOLDERS = ("src", "tests", "scripts", "benchmarks", "docs", "examples", ".github", ".ci")


def read(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def page_id(path: Path) -> str:
    return str(path.relative_to(ROOT))


def canonical(requirement: str) -> str:
    """The name in a line of requirements, as pip compares names."""
    name = re.match(r"[A-Za-z0-9._-]+", requirement)
    assert name, requirement
    return re.sub(r"[-_.]+", "-", name[0]).lower()


def quoted(pattern: str) -> list[str]:
    """The strings of a list in pyproject.toml (tomllib is younger than the oldest Python)."""
    found = re.search(pattern, read("pyproject.toml"), re.DOTALL | re.MULTILINE)
    assert found, pattern
    return re.findall(r'"([^"]+)"', found[1])


def test_citation_has_the_version() -> None:
    assert re.findall(r"^version: (.+)$", read("CITATION.cff"), re.MULTILINE) == [__version__]


def test_changelog_knows_the_version() -> None:
    text = read("CHANGELOG.md")
    assert re.findall(r"^## \[(.+?)\]", text, re.MULTILINE)[0] == "Unreleased"
    number = __version__.partition(".dev")[0]
    released = re.search(rf"^## \[{re.escape(number)}\] - \d{{4}}-\d\d-\d\d$", text, re.MULTILINE)
    in_preparation = re.search(rf"^The .*version, {re.escape(number)}, is in preparation", text, re.MULTILINE)
    assert bool(released) != bool(in_preparation)


@pytest.mark.parametrize("page", PAGES, ids=page_id)
def test_links_lead_somewhere(page: Path) -> None:
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    links = [link for link in re.findall(r"\]\(([^)\s]+)\)", text) if not re.match(r"[a-z]+:|#", link)]
    missing = [link for link in links if not (page.parent / link.partition("#")[0]).exists()]
    assert not missing


def test_index_lists_every_page() -> None:
    index = read("docs/index.md")
    pages = [str(page.relative_to(ROOT / "docs")) for page in PAGES if page.parent != ROOT and page.name != "index.md"]
    assert not [page for page in pages if f"({page})" not in index]


@pytest.mark.parametrize(
    "name", ["README.md", "CONTRIBUTING.md", ".github/workflows/ci.yml", ".github/workflows/docs.yml", ".ci/run"]
)
def test_make_targets_exist(name: str) -> None:
    targets = set(re.findall(r"^([a-z-]+):", read("Makefile"), re.MULTILINE))
    named = set(re.findall(r"(?:^|[`\s])make ([a-z][a-z-]*)", re.sub(r"pip and make.*", "", read(name))))
    assert named
    assert named <= targets


@pytest.mark.skipif(shutil.which("make") is None, reason="there is no make")
def test_the_demo_installs_only_what_it_needs(tmp_path: Path) -> None:
    """On a fresh machine, as `make -n` shows it: one command each, and the first number does not wait for the rest."""

    def commands(target: str) -> str:
        words = ["make", "-n", target, f"VENV={tmp_path / 'venv'}"]
        return subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True).stdout

    demo, test = commands("demo"), commands("test")
    assert "'.[plots]'" in demo
    assert "tmifpe demo" in demo
    assert "requirements-dev.txt" not in demo
    assert "'.[all]'" not in demo
    for wanted in ("--constraint constraints.txt torch", "'.[all]'", "pytest"):
        assert wanted in test


def test_everything_asked_for_is_pinned() -> None:
    pinned = {canonical(line) for line in read("constraints.txt").splitlines() if line and line[0] != "#"}
    wanted = [line for line in read("requirements-dev.txt").splitlines() if line and line[0] != "#"]
    wanted += quoted(r"^dependencies = \[(.*?)^\]")
    extras = re.search(
        r"^\[project\.optional-dependencies\]\n(.*?)^\[", read("pyproject.toml"), re.DOTALL | re.MULTILINE
    )
    assert extras
    tested = re.sub(rf"^(?:{'|'.join(APART)}) = .*$", "", extras[1], flags=re.MULTILINE)
    wanted += re.findall(r'"([^"]+)"', tested)
    # setuptools is bounded in pyproject.toml itself, and constraints.txt leaves the installers alone.
    assert {canonical(line) for line in wanted} - pinned <= {"tmifpe", "setuptools"}


def test_all_is_all_extras_but_two() -> None:
    section = re.search(
        r"^\[project\.optional-dependencies\]\n(.*?)^\[", read("pyproject.toml"), re.DOTALL | re.MULTILINE
    )
    assert section
    extras = set(re.findall(r"^([a-z0-9-]+) = ", section[1], re.MULTILINE)) - {"all", *APART}
    (everything,) = quoted(r"^all = \[(.*?)\]$")
    assert everything == f"tmifpe[{','.join(sorted(extras, key=everything.index))}]"


def test_no_path_of_one_machine() -> None:
    own = re.compile("/" + r"(?:work|root|home)/\w")
    files = [
        path
        for folder in FOLDERS
        for path in (ROOT / folder).rglob("*")
        if path.suffix in {".py", ".md", ".yml", ".json", ""}
    ]
    texts = [path for path in [*files, *PAGES] if path.is_file() and "__pycache__" not in path.parts]
    assert not [page_id(path) for path in texts if own.search(path.read_text(encoding="utf-8"))]
