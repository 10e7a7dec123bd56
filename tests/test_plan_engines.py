"""A sweep on every engine: one table; killed half-way and continued, no finished shard is computed again."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.ray_settings import QUIET
from tests.stores import command
from tests.sweep import FACTORY, PLAN
from tests.trouble import all_gone, offspring, wait_for
from tmifpe.store import Store

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="looks for processes in /proc"),
]
SHARDS = 3 * 4 * 2 * 2
COLUMNS = ("name", "state", "key", "n", "clean_accuracy", "robust_accuracy", "broken", "interval")


def started(folder: Path, *words: str) -> subprocess.Popen[str]:
    told = os.environ | QUIET | {"HOME": str(folder)}
    told.pop("TMIFPE_STORE", None)
    return subprocess.Popen(
        command("run", "plan.toml", "--json", *words),
        cwd=folder,
        env=told,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def table(folder: Path, *words: str) -> list[dict[str, Any]]:
    with started(folder, *words) as process:
        out, error = process.communicate()
    assert process.returncode == 0, error
    return json.loads(out)["runs"]


def stored(store: Path) -> int:
    """Examples that are in the store, of all runs."""
    return sum(run.done for run in Store(store).runs())


@pytest.mark.timeout(1200)
@pytest.mark.parametrize("engine", ["processes", "ray"])
def test_a_sweep_gives_the_same_table_on_every_engine(tmp_path, engine):
    if engine == "ray":
        pytest.importorskip("ray", reason="ray is not installed: pip install 'tmifpe[ray]'")
    words, there = ["--engine", engine, "--workers", "1", "--store", "there"], tmp_path / "there"
    (tmp_path / "tiny.py").write_text(FACTORY)
    (tmp_path / "plan.toml").write_text(PLAN)
    local = table(tmp_path, "--store", "here")
    with started(tmp_path, *words) as driver:
        wait_for("half of it is stored", lambda: stored(there) >= 2 * SHARDS or driver.poll() is not None, 600)
        pids = offspring(driver.pid)
        driver.kill()
    assert driver.returncode == -signal.SIGKILL, "before its end"
    before = stored(there)
    assert 2 * SHARDS <= before < 4 * SHARDS
    rows = table(tmp_path, *words)
    assert [[row[key] for key in COLUMNS] for row in rows] == [[row[key] for key in COLUMNS] for row in local]
    assert len(rows) == 24
    # One shard more where its file was written and the kill came before its rows were committed.
    assert sum(row["resumed"] for row in rows) in (before, before + 4), "every finished shard came from the store"
    assert sum(s.shards for run in Store(there).runs() for s in Store(there).sessions(run)) == SHARDS
    # Agents of Ray take a minute.
    wait_for("no worker is left", all_gone(pids), 180)
