"""The house keeps its shape: knowledge goes one way, files stay small, and every module says what it offers."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

SRC = Path(__file__).resolve().parent.parent / "src" / "tmifpe"
FILES = sorted(SRC.rglob("*.py"))
LONGEST = 600
FULLEST, FULLEST_OF = 16, {"models": 24, "cli": 24}
"""Files in a folder beside __init__; a model source, a verb and an attack are a file each."""

# What each folder may import besides itself. `version` holds two constants and is open to all.
_PURE = {"core", "theory", "losses", "norms"}
_RUN = {*_PURE, "attacks", "models", "data", "certificates", "run"}
LAYERS: dict[str, set[str]] = {
    "core": set(),
    "theory": {"core"},
    "losses": {"core", "theory"},
    "norms": {"core", "theory"},
    "attacks": _PURE,
    "models": {"core"},
    "data": {"core"},
    # A certificate is a function of model, image, label and threat alone, so it knows no runs, and of attacks only how
    # a model is frozen; a shard fills in its column, so that every engine and every resumed run has it.
    "certificates": {"core", "norms", "attacks", "models"},
    "run": {*_PURE, "attacks", "models", "data", "certificates"},
    # Four siblings that know nothing of each other: keep shards, map shards, doubt a number, measure floating point.
    "store": _RUN,
    "engines": _RUN,
    "checks": _RUN,
    "audits": _RUN,
    "evaluation": {*_RUN, "store", "engines", "checks", "audits"},
    "paper": {*_RUN, "evaluation"},
    "report": {"core", "theory", "run", "evaluation", "paper", "audits"},
    "compat": {"core", "norms", "attacks", "models", "data", "run", "evaluation"},
    "testing": {*_RUN, "evaluation", "report"},
    "doctor": {"core", "models", "data", "run", "store", "evaluation"},
}
# The command line and the modules beside the folders are doors: they may open everything.
LAYERS["cli"] = {*LAYERS, ""}


def modules_named(tree: ast.AST, package: str) -> Iterator[str]:
    """Every module of tmifpe that the code names: imports anywhere in the file, and the strings of a registry."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            parts = package.split(".")
            start = parts[: len(parts) - node.level + 1] if node.level else []
            module = ".".join([*start, *([node.module] if node.module else [])])
            yield from (f"{module}.{alias.name}" if module == "tmifpe" else module for alias in node.names)
        elif isinstance(node, ast.Constant) and re.fullmatch(r"tmifpe(\.\w+)*:\w+", str(node.value)):
            # "tmifpe.losses.ce:CE" is an import that happens later.
            yield str(node.value).partition(":")[0]


def layers_named(source: str, package: str) -> set[str]:
    """The folders of tmifpe that the code names; "" is the package itself or a module beside the folders."""
    named = set()
    for module in modules_named(ast.parse(source), package):
        parts = module.split(".")
        if parts[0] == "tmifpe" and parts[1:2] != ["version"]:
            named.add(parts[1] if len(parts) > 1 and parts[1] in LAYERS else "")
    return named


def layer_of(path: Path) -> str:
    parts = path.relative_to(SRC).parts
    return parts[0] if len(parts) > 1 else ""


def ids(path: Path) -> str:
    return str(path.relative_to(SRC))


def test_there_are_files_to_look_at() -> None:
    assert {layer_of(path) for path in FILES} > {"core", "losses", "attacks"}


@pytest.mark.parametrize(
    ("source", "named"),
    [
        ("from tmifpe.losses.ce import CE", {"losses"}),
        ("def f():\n    import tmifpe.cli.demo", {"cli"}),
        ("from ..theory import solver", {"theory"}),
        ("from . import solver", {"core"}),
        ("from .parts.step import Step", {"core"}),
        ("from tmifpe import theory", {"theory"}),
        ("from tmifpe import PGD", {""}),
        ("import tmifpe", {""}),
        ("R.add('ce', 'tmifpe.losses.ce:CE', 'text')", {"losses"}),
        ("from tmifpe.version import __version__\nimport torch", set()),
    ],
)
def test_imports_are_seen(source: str, named: set[str]) -> None:
    assert layers_named(source, "tmifpe.core") == named


@pytest.mark.parametrize("path", [p for p in FILES if layer_of(p)], ids=ids)
def test_knowledge_goes_one_way(path: Path) -> None:
    layer = layer_of(path)
    assert layer in LAYERS, f"{layer} is a new folder: give it a line in LAYERS and in CONTRIBUTING.md"
    package = ".".join(["tmifpe", *path.relative_to(SRC).parent.parts])
    forbidden = layers_named(path.read_text(encoding="utf-8"), package) - LAYERS[layer] - {layer}
    assert not forbidden, f"{layer} must not import {sorted(forbidden)}"


def test_sub_folders_belong_to_their_room() -> None:
    assert layer_of(SRC / "attacks" / "parts" / "step.py") == "attacks"
    assert layers_named("from ...losses import ce", "tmifpe.attacks.parts") == {"losses"}


@pytest.mark.parametrize("folder", sorted({path.parent for path in FILES}), ids=ids)
def test_folder_can_be_taken_in_at_a_glance(folder: Path) -> None:
    files = [path for path in folder.glob("*.py") if path.stem != "__init__"]
    most = FULLEST_OF.get(folder.name, FULLEST)
    assert len(files) <= most, f"{len(files)} files; give those that belong together a folder of their own"


def test_layers_have_no_cycle() -> None:
    done: set[str] = {""}
    while waiting := {layer for layer in LAYERS if layer not in done}:
        free = {layer for layer in waiting if LAYERS[layer] <= done}
        assert free, f"a cycle among {sorted(waiting)}"
        done |= free


@pytest.mark.parametrize("path", FILES, ids=ids)
def test_file_can_be_read_in_a_sitting(path: Path) -> None:
    lines = len(path.read_text(encoding="utf-8").splitlines())
    assert lines <= LONGEST, f"{lines} lines; split it by what it is about"


@pytest.mark.parametrize("path", FILES, ids=ids)
def test_file_is_named_after_what_it_holds(path: Path) -> None:
    assert path.stem not in {"utils", "util", "base", "misc", "helpers", "common"}


@pytest.mark.parametrize("path", [p for p in FILES if not re.match(r"_(?!_init__)", p.stem)], ids=ids)
def test_public_module_says_what_it_offers(path: Path) -> None:
    body = ast.parse(path.read_text(encoding="utf-8")).body
    if all(isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) for node in body):
        return  # nothing but a docstring
    assigned = {
        target.id
        for node in body
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    assert "__all__" in assigned


# Names that did not explain themselves, and have better ones since 0.2.
RETIRED = "Doubts Lent check_heard check_whole column_attack is_number lambert_w network_in own_draws undisturbed"
# Ordinary English words, which must only not name a function or a class again.
RETIRED_DEFINITIONS = {"Watch", "asked", "climbing", "lend", "positive", "reread", "whole"}
RETIRED_MODULES = {
    "cli": "sources",
    "core": "seeding",
    "evaluation": (
        "asked audit audit_result autoattack check_normalisation checks_attack checks_model column doubts draws"
        " environment exact flags intervals lend measured outcomes paper_rows passes recorder repeats result sample"
        " shard spec store table1 targeted targets verdicts verify watch"
    ),
}
ROOT = SRC.parent.parent
TEXTS = sorted(
    path
    for folder in ("src", "tests", "docs", "benchmarks", "scripts")
    for path in (ROOT / folder).rglob("*")
    if path.suffix in {".py", ".md", ".sh"}
    and path != Path(__file__).resolve()
    and "old_stores" not in path.parts  # made by 0.1.0, with its own names
)


def test_retired_names_are_gone() -> None:
    modules = [rf"{room}[./](?:{'|'.join(names.split())})" for room, names in RETIRED_MODULES.items()]
    retired = re.compile(rf"\b(?:{'|'.join([*RETIRED.split(), *modules])})\b")
    texts = [*TEXTS, *(path for path in ROOT.glob("*.md") if path.name != "CHANGELOG.md")]
    found = {str(path.relative_to(ROOT)): retired.findall(path.read_text(encoding="utf-8")) for path in texts}
    assert not {path: names for path, names in found.items() if names}


@pytest.mark.parametrize("path", FILES, ids=ids)
def test_retired_names_are_not_defined_again(path: Path) -> None:
    defined = {
        node.name
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.FunctionDef | ast.ClassDef)
    }
    assert not defined & RETIRED_DEFINITIONS


def test_a_class_has_a_name_of_its_own() -> None:
    """Two classes of one name in two rooms are confused sooner or later. Those of compat have their peers' names."""
    homes: dict[str, list[str]] = {}
    for path in (path for path in FILES if layer_of(path) != "compat"):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                homes.setdefault(node.name, []).append(ids(path))
    assert not {name: where for name, where in homes.items() if len(where) > 1}
