"""Killed twenty times, a hundred thousand examples: what the store promises, seen on real processes."""

from __future__ import annotations

import json
import os
import random
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.stores import call, command, environment, same
from tmifpe.run.outcomes import Outcomes
from tmifpe.store import Store

pytestmark = pytest.mark.slow

N, SHARD, KILLS = 500, 5, 20
STAGES = "pgd(steps=3,smooth=3),near(attack=apgd(steps=5),share=0.5)"
WORDS = ["evaluate", "digits-robust", "--eps", "0.1", "--attack", STAGES, "--batch-size", "5", "--no-checks"]
WORDS += ["--shard-size", str(SHARD), "--json"]


# The command line, forked from a process that has imported everything: twenty starts would take most of the time.
FORKS = """
import os, sys
import tmifpe
from tmifpe.cli import main
tmifpe.load_model("digits-robust"), tmifpe.load_data("digits")
for _ in sys.stdin:
    child = os.fork()
    if not child:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        try:
            main()
        finally:
            os._exit(0)
    print(child, flush=True)
    print(os.waitpid(child, 0)[1], flush=True)
"""


class Forked:
    """One run of the command line in a child of that process."""

    def __init__(self, parent: subprocess.Popen[str]) -> None:
        assert parent.stdin is not None
        assert parent.stdout is not None
        self.answers = parent.stdout
        parent.stdin.write("\n")
        parent.stdin.flush()
        self.pid = int(self.answers.readline())

    def running(self) -> bool:
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return False
        return True

    def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)
        assert int(self.answers.readline()) == signal.SIGKILL, "and nothing else ended it"


class Started:
    """One run of the command line in a process of its own, from its first import."""

    def __init__(self, store: Path) -> None:
        self.process = subprocess.Popen(
            command(*WORDS), env=environment(store), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )

    def running(self) -> bool:
        return self.process.poll() is None

    def kill(self) -> None:
        self.process.kill()
        assert self.process.wait() == -signal.SIGKILL


@pytest.fixture
def forks(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    parent = subprocess.Popen(
        [sys.executable, "-c", FORKS, *WORDS],
        env=environment(tmp_path / "killed"),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    with parent:
        yield parent
        parent.kill()


@pytest.mark.timeout(1800)
def test_twenty_kills(tmp_path, forks):
    """SIGKILL at random moments, from the first import to the last shard; the outcomes are the uninterrupted ones."""
    whole = tmp_path / "whole"
    assert call(whole, *WORDS).returncode == 0
    reference = Store(whole).result(Store(whole).runs()[0])
    assert all(stage.broken for stage in reference.stages), "both stages have something to lose"
    store, moments, seen = tmp_path / "killed", random.Random(0), 0
    for kill in range(KILLS):
        if kill % 5:  # mostly while it works, sometimes while it starts
            sessions = Store(store).runs() and len(Store(store).sessions(Store(store).runs()[0]))
            process = Forked(forks)
            # After some shards, not after some time, in which a busy machine may not get to any.
            wait_until(store, process, int(sessions or 0), seen + SHARD * moments.randint(0, 2))
            time.sleep(moments.uniform(0, 0.05))
        else:
            process = Started(store)
            begun = time.monotonic() + moments.uniform(0, 3)
            while time.monotonic() < begun and done(store) <= seen:  # not so late that the run has ended
                time.sleep(0.01)
        assert process.running(), "the run was to be killed before its end; give it more to do"
        process.kill()
        if runs := Store(store).runs():
            assert runs[0].done >= seen, "what was stored is still there"
            seen = runs[0].done
    assert 0 < seen < N
    # A shard whose file was written and whose rows were not, when it was killed, is not lost: it is adopted.
    kept = SHARD * len(list(store.glob("adv/*/*.safetensors")))
    assert kept in (seen, seen + SHARD)
    finished = call(store, *WORDS)
    assert finished.returncode == 0, finished.stderr
    told = json.loads(finished.stdout)
    assert told["resumed"] == kept
    (run,) = Store(store).runs()
    result = Store(store).result(run)
    assert same(result, reference), "example by example"
    assert sorted(result.outcomes.index.tolist()) == list(range(N)), "0 lost, 0 double"
    assert told["robust_accuracy"] == reference.robust_accuracy
    for one, two in zip(adv(store), adv(whole), strict=True):
        assert bool((one == two).all())
    assert not list(store.rglob("*.tmp"))
    connection = sqlite3.connect(store / "runs.sqlite")
    assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    connection.close()


def done(store: Path) -> int:
    runs = Store(store).runs()
    return runs[0].done if runs else 0


def adv(store: Path) -> Iterator:
    return Store(store).adv(Store(store).runs()[0])


def wait_until(store: Path, process: Forked, sessions: int, done: int) -> None:
    """Until a further session has begun to work on the run and so many examples are stored."""
    until = time.monotonic() + 600
    while time.monotonic() < until and process.running():
        runs = Store(store).runs()
        if runs and runs[0].done >= done and len(Store(store).sessions(runs[0])) > sessions:
            return
        time.sleep(0.01)
    raise AssertionError("the run did not get that far")


def load(examples: int, store: Path) -> dict[str, float]:
    """What storing so many examples takes, in a process of its own. Two steps: it does not depend on them."""
    script = Path(__file__).with_name("store_load.py")
    done = subprocess.run(
        [sys.executable, str(script), str(examples), "2", str(store)],
        env=environment(store) | {"PYTHONPATH": str(script.parent.parent)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_memory_is_flat_and_storing_is_cheap(tmp_path):
    """However many examples there are, each costs the same to store: it is written once and not read again."""
    few, many = load(10_000, tmp_path / "few"), load(100_000, tmp_path / "many")
    assert (few["n"], many["n"]) == (10_000, 100_000)
    assert many["broken"] > 9 * few["broken"] > 0
    assert many["peak"] < 1.10 * few["peak"], f"peak memory grew from {few['peak']} to {many['peak']} KiB"
    for told in (few, many):
        # SQLite loads every value of a row once and needs a few instructions around them: 46 in all for 16 values.
        values = len(Outcomes.columns()) + 2
        assert told["instructions"] < 5 * values * told["n"]
        assert told["forced"] == 2 * told["shards"], "a file and its folder"
