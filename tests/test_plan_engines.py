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


def stored(folder: Path) -> int:
    """Examples that are in the store, of all runs."""
    return sum(run.done for run in Store(folder / "kept").runs())


@pytest.mark.timeout(1200)
@pytest.mark.parametrize("engine", ["processes", "ray"])
def test_a_sweep_gives_the_same_table_on_every_engine(tmp_path, engine):
    if engine == "ray":
        pytest.importorskip("ray", reason="ray is not installed: pip install 'tmifpe[ray]'")
    words = ["--engine", engine, "--workers", "1"]
    for place in ("here", "there"):
        (tmp_path / place).mkdir()
        (tmp_path / place / "tiny.py").write_text(FACTORY)
        (tmp_path / place / "plan.toml").write_text(PLAN)
    here, there = table(tmp_path / "here"), tmp_path / "there"
    with started(there, *words) as driver:
        wait_for("half of it is stored", lambda: stored(there) >= 2 * SHARDS or driver.poll() is not None, 600)
        pids = offspring(driver.pid)
        driver.kill()
    assert driver.returncode == -signal.SIGKILL, "before its end"
    wait_for("its workers end", all_gone(pids), 60)
    before = stored(there)
    assert 2 * SHARDS <= before < 4 * SHARDS
    rows = table(there, *words)
    assert [[row[key] for key in COLUMNS] for row in rows] == [[row[key] for key in COLUMNS] for row in here]
    assert len(rows) == 24
    # One shard more where its file was written and the kill came before its rows were committed.
    assert sum(row["resumed"] for row in rows) in (before, before + 4), "every finished shard came from the store"
    store = Store(there / "kept")
    assert sum(session.shards for run in store.runs() for session in store.sessions(run)) == SHARDS
