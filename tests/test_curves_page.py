"""docs/curves.md says what docs/data holds, and what it claims of curves is true of it."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
KEPT = json.loads((ROOT / "docs" / "data" / "curves.json").read_text())


def test_the_page_is_up_to_date():
    spec = importlib.util.spec_from_file_location("benchmark_curves", ROOT / "benchmarks" / "curves.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    page = (ROOT / "docs" / "curves.md").read_text()
    assert module.page(page, KEPT) == page, "run python benchmarks/curves.py table"


def test_one_curve_stands_for_separate_runs_at_the_cost_of_a_few():
    for line in KEPT["measure"].values():
        assert line["ratio"] <= 4
        for eps, robust in line["curve"].items():
            assert robust <= line["full"][eps] + 0.005


def test_smallest_perturbations_are_smaller_than_those_of_ddn():
    for line in KEPT["minimal"].values():
        assert line["minimal"] <= line["foolbox ddn"]
