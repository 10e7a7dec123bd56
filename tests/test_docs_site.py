"""The site: every public name has an entry, every link leads somewhere, and it is built without a warning, offline."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import json
import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
DOORS = (
    "autoattack",
    "foolbox",
    "foolbox.attacks",
    "lightning",
    "robustbench",
    "torchattacks",
    "torchmetrics",
    "trackers",
    "trackers.mlflow",
    "trackers.tensorboard",
    "trackers.wandb",
    "training",
)
PUBLIC = (
    *("", ".attacks", ".data", ".losses", ".models", ".norms", ".store", ".testing", ".theory"),
    *(f".compat.{door}" for door in DOORS),
)
"""The modules that people import from; every name in their __all__ is public."""
ENTRY = re.compile(r"^\.\. (?:auto(?:function|class|exception)|py:data):: (\S+)$", re.MULTILINE)
LOADED = {"link": "href", "script": "src", "img": "src", "iframe": "src", "source": "src", "video": "src"}
"""What a browser fetches by itself."""


def entries() -> list[str]:
    pages = sorted((DOCS / "reference").glob("*.md"))
    return [name for page in pages for name in ENTRY.findall(page.read_text(encoding="utf-8"))]


def thing(name: str) -> Any:
    module, _, attribute = name.rpartition(".")
    return getattr(importlib.import_module(module), attribute)


def test_an_entry_exists_once_and_names_something() -> None:
    names = entries()
    assert len(names) == len(set(names))
    assert all(thing(name) is not None for name in names)


@pytest.mark.parametrize("module", PUBLIC)
def test_every_public_name_has_an_entry(module: str) -> None:
    """Under its own name, or under another one of the same thing: `tmifpe.attacks.PGD` is `tmifpe.PGD`."""
    found = importlib.import_module(f"tmifpe{module}")
    listed = set(entries())
    ours = [thing(name) for name in listed]
    missing = [
        name
        for name in found.__all__
        if f"{found.__name__}.{name}" not in listed
        and not inspect.ismodule(getattr(found, name))
        and not any(getattr(found, name) is one for one in ours)
    ]
    assert not missing, f"name them in docs/reference: {missing}"


@pytest.mark.parametrize("name", [name for name in entries() if name != "tmifpe.__version__"])
def test_every_entry_has_a_docstring(name: str) -> None:
    found = thing(name)
    assert inspect.getdoc(found), f"{name} has no docstring"
    if inspect.isclass(found):  # dataclasses make one of their fields
        assert not (found.__doc__ or "").startswith(f"{found.__name__}("), f"{name} has no docstring of its own"


def slug(title: str) -> str:
    """The anchor that GitHub and MyST give a heading."""
    plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", title).strip().lower()
    return re.sub(r"[^\w\- ]", "", plain).replace(" ", "-")


def headings(page: Path) -> set[str]:
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    return {slug(title) for title in re.findall(r"^#+ (.+)$", text, re.MULTILINE)}


@pytest.mark.parametrize("page", sorted([ROOT / "README.md", *DOCS.rglob("*.md")]), ids=lambda page: page.name)
def test_links_to_headings_lead_somewhere(page: Path) -> None:
    """That the files exist is a test of tests/test_project.py."""
    for path, anchor in re.findall(r"\]\(([^)\s:#]*\.md|)#([^)\s]+)\)", page.read_text(encoding="utf-8")):
        there = (page.parent / path).resolve() if path else page
        assert anchor in headings(there), f"{path}#{anchor}"


def test_the_table_in_the_readme_is_what_was_measured() -> None:
    spec = importlib.util.spec_from_file_location("benchmark_strength_readme", ROOT / "benchmarks" / "strength.py")
    assert spec is not None
    assert spec.loader is not None
    strength = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = strength  # where dataclasses look for the names of their types
    spec.loader.exec_module(strength)
    assert strength.headline() in (ROOT / "README.md").read_text(encoding="utf-8"), (
        "run python benchmarks/strength.py table"
    )


def test_notebooks_are_committed_without_outputs() -> None:
    """They are run when the site is built: what is shown there is what this version says."""
    notebooks = sorted((DOCS / "notebooks").glob("*.ipynb"))
    assert len(notebooks) >= 3
    for path in notebooks:
        for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
            assert not cell.get("outputs"), path.name
            assert cell.get("execution_count") is None, path.name


class Fetched(HTMLParser):
    """What a page makes a browser load, the ids in it, and where its links lead."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.loads: list[str] = []
        self.links: list[str] = []
        self.ids: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attrs}
        if tag == "a" and "href" in values:
            self.links.append(values["href"])
        elif tag in LOADED and LOADED[tag] in values:
            self.loads.append(values[LOADED[tag]])
        if "id" in values:
            self.ids.add(values["id"])


@pytest.mark.slow
@pytest.mark.timeout(1800)  # a minute of work, on a machine that may be busy
def test_the_site_is_built_without_a_warning_and_loads_nothing_from_a_network(tmp_path: Path) -> None:
    """Notebooks are executed on the way; one that raises is an error."""
    for needed in ("sphinx", "myst_nb", "pydata_sphinx_theme", "ipykernel"):
        pytest.importorskip(needed, reason="the documentation needs Python 3.11 and `make setup`")
    out, environment = tmp_path / "site", os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT / "src")}
    words = [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", "-n", "-b", "html", "-d", str(tmp_path / "d")]
    built = subprocess.run([*words, str(DOCS), str(out)], capture_output=True, text=True, env=environment)
    assert built.returncode == 0, built.stderr
    pages = {
        path: Fetched(path.read_text(encoding="utf-8"))
        for path in sorted(out.rglob("*.html"))
        if "_static" not in path.parts
    }
    assert {"index.html", "theory-page.html", "start.html", "genindex.html"} <= {path.name for path in pages}
    assert not [
        (path.name, url) for path, page in pages.items() for url in page.loads if re.match(r"(https?:)?//", url)
    ]
    broken = []
    for path, page in pages.items():
        for link in [*page.links, *page.loads]:
            file, _, anchor = link.partition("#")
            if re.match(r"[a-z]+:", link) or path.name == "theory-page.html":
                continue
            there = (path.parent / file.partition("?")[0]).resolve() if file else path
            if not there.exists() or (anchor and there in pages and anchor not in pages[there].ids):
                broken.append((path.name, link))
    assert not broken
    shown = (out / "notebooks" / "first-evaluation.html").read_text(encoding="utf-8")
    assert "robust accuracy" in shown
    assert "cell_output" in shown
    from sphinx.util.inventory import InventoryFile

    known = InventoryFile.loads((out / "objects.inv").read_bytes(), uri="").data
    names = {name for kind, of_kind in known.items() if kind.startswith("py:") for name in of_kind}
    # These two share their short names with classes of our own, at which links from annotations must arrive.
    assert sorted(set(entries()) - names) == ["tmifpe.compat.torchattacks.Attack", "tmifpe.compat.torchattacks.PGD"]
    assert "class PGD(" in re.sub(r"<[^>]+>", "", (out / "reference" / "compat.html").read_text(encoding="utf-8"))
