"""docs/paper.md is the list of equations: complete, cited by code, and pointing at things that exist."""

from __future__ import annotations

import ast
import importlib
import re
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parent.parent
CITATION = re.compile(r"\beq(?::\w+|\d+)\b")


class Equation(NamedTuple):
    number: int
    cited_as: str
    function: str
    test: str


def equations() -> list[Equation]:
    found = []
    for line in (ROOT / "docs" / "paper.md").read_text(encoding="utf-8").splitlines():
        cells = [cell.strip().strip("`") for cell in line.strip("|").split("|")]
        if len(cells) == 6 and cells[0].isdigit():
            found.append(Equation(int(cells[0]), cells[1], cells[4], cells[5]))
    return found


def cited() -> dict[str, Path]:
    return {
        citation: path
        for path in sorted((ROOT / "src").rglob("*.py"))
        for citation in CITATION.findall(path.read_text(encoding="utf-8"))
    }


def test_numbered_without_gap_or_repetition() -> None:
    assert [e.number for e in equations()] == list(range(1, 41))
    assert len({e.cited_as for e in equations()}) == 40


def test_the_code_cites_only_equations_of_the_list() -> None:
    known = {e.cited_as for e in equations()}
    unknown = {citation: path for citation, path in cited().items() if citation not in known}
    assert not unknown


def test_every_equation_is_cited_by_code() -> None:
    assert {e.cited_as for e in equations()} <= set(cited())


@pytest.mark.parametrize("equation", equations(), ids=lambda e: e.cited_as)
def test_function_and_test_exist(equation: Equation) -> None:
    module, _, name = equation.function.partition(":")
    assert callable(getattr(importlib.import_module(module), name))
    file, _, test = equation.test.partition("::")
    tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
    assert test in {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}


def test_the_list_is_the_papers(shared: Path) -> None:
    """Every equation environment of the source, in order, under its own label where it has one."""
    source = (shared / "paper" / "paper.tex").read_text(encoding="utf-8")
    bodies = re.findall(r"\\begin\{equation\}(.*?)\\end\{equation\}", source, re.DOTALL)
    labels = [re.search(r"\\label\{(eq:\w+)\}", body) for body in bodies]
    want = [label.group(1) if label else f"eq{n}" for n, label in enumerate(labels, start=1)]
    assert [e.cited_as for e in equations()] == want
