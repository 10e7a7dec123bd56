"""The simulation behind docs/cluster.md, where the answer is known: busy workers, and a driver that cannot keep up."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

SCRIPT = Path(__file__).resolve().parent.parent / "benchmarks" / "simulate.py"


@pytest.fixture(scope="module")
def simulation() -> ModuleType:
    spec = importlib.util.spec_from_file_location("simulate", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["simulate"] = module  # dataclasses look for their module
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(("workers", "rounds"), [(1, 10), (2, 5), (3, 4), (10, 1), (1000, 1)])
def test_free_driver(simulation, workers, rounds):
    """Ten shards of ten seconds: as many rounds as it takes."""
    assert simulation.simulate(100, 10, workers, simulation.Costs(1.0, start=7.0)) == pytest.approx(7 + 10 * rounds)


def test_a_driver_that_cannot_keep_up(simulation):
    """More workers than it can feed do not help: it takes what the driver takes, and the last shard's computing."""
    costs = simulation.Costs(1.0, read=0.25, keep=0.25)
    assert simulation.busiest(costs, 10) == pytest.approx(2)
    for workers in (20, 100):
        assert simulation.simulate(1000, 10, workers, costs) == pytest.approx(1000 * 0.5, rel=0.03)
    half = simulation.simulate(1000, 10, 1, costs)
    assert 1000 < half <= 1000 * 1.5, "one worker is busy, but for what is not read ahead"


def test_the_last_shard_may_be_smaller(simulation):
    assert simulation.simulate(15, 10, 1, simulation.Costs(1.0)) == pytest.approx(15)
    assert simulation.simulate(15, 10, 2, simulation.Costs(1.0)) == pytest.approx(10)
