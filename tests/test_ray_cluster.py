"""Ray on a real cluster of three nodes on this machine: the outcomes of the local engine, whatever dies or hangs, and
no process left. Every actor imports torch, which takes seconds, so that there are few."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from functools import partialmethod
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tmifpe
from tests.block_files import ray_plan, shorten
from tests.blocks import ROOT, run_page
from tests.ray_settings import QUIET
from tests.stores import ask, command, environment, same
from tests.trouble import (
    HUNG,
    KILLED,
    ONE,
    POISONED,
    SHARDS,
    THREAT,
    alive,
    all_gone,
    check_trouble,
    make_trouble,
    offspring,
    wait_for,
)
from tmifpe.engines import RayActors
from tmifpe.evaluation.prepare import prepare
from tmifpe.run.request import Request
from tmifpe.run.shard import Job, ShardResult
from tmifpe.run.spec import Plan
from tmifpe.store import Store

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="looks for processes in /proc"),
    # Ray leaves open its own log files and the processes that it has killed.
    pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"),
]
# A lost node is found within a second or so, and not within a minute.
SYSTEM = {"health_check_initial_delay_ms": 1000, "health_check_period_ms": 500, "health_check_failure_threshold": 3}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory) -> Iterator[Any]:
    """Three nodes with one core each; the driver is on the first."""
    pytest.importorskip("ray", reason="ray is not installed: pip install 'tmifpe[ray]'")
    from ray.cluster_utils import Cluster

    with pytest.MonkeyPatch.context() as patch:
        for name, value in QUIET.items():
            patch.setenv(name, value)
        patch.setenv("HOME", str(tmp_path_factory.mktemp("home")))
        # Thirty seconds are short on a busy machine.
        patch.setattr(Cluster, "_wait_for_node", partialmethod(Cluster._wait_for_node, timeout=300))
        small = {"num_cpus": 1, "object_store_memory": 80 << 20, "include_dashboard": False}
        before = set(offspring(os.getpid()))  # of other tests in this process: multiprocessing's own stay
        made = Cluster(initialize_head=True, head_node_args=small | {"_system_config": SYSTEM})
        made.small = small
        try:
            for _ in range(2):
                made.add_node(**small)
            yield made
        finally:
            pids = set(offspring(os.getpid())) - before
            made.shutdown()
            # Agents of a node that was killed try for a minute to tell the cluster.
            wait_for("the nodes end", all_gone(pids))


def engine(cluster: Any) -> str:
    return f"ray:{cluster.address}"


def actors() -> set[int]:
    """Those that hold a model, whoever their driver is."""
    return {pid for pid, args in offspring(os.getpid()).items() if args.startswith("ray::Holder")}


def actors_of(node: Any) -> set[int]:
    return actors() & set(offspring(node.all_processes["raylet"][0].process.pid))


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_actors_give_the_outcomes_of_this_process(cluster, tmp_path, workers):
    import ray

    steps, pids = [], set()
    before = actors()  # of another test, which may still be ending: no tick has seen them, so that nobody has waited

    def told(step: tmifpe.Progress) -> None:
        steps.append(step)
        pids.update(actors() - before)

    found = ask(tmp_path, engine=engine(cluster), workers=workers, keep_adv=True, progress=told)
    local = ask(keep_adv=True)
    assert same(found, local), "example by example"
    assert np.array_equal(np.asarray(found.adv), np.asarray(local.adv))
    assert found.tally == local.tally
    assert steps[-1].done == len(local.outcomes)
    assert same(ask(tmp_path), local), "stored as if computed here"
    assert 1 <= len(pids) <= workers
    assert not ray.is_initialized()
    wait_for("the actors end", all_gone(pids | actors()))


def test_half_here_and_half_by_ray(cluster, tmp_path):
    ask(tmp_path, shard="1/2")
    store = tmp_path / "shard-1-of-2"
    mixed = ask(store, engine=engine(cluster), workers=1)
    assert mixed.resumed == 24
    assert same(mixed, ask())


@pytest.mark.usefixtures("unchecked")
def test_the_commands_of_the_page(cluster, tmp_path, monkeypatch):
    """docs/cluster.md, which names a cluster that is not here."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("TMIFPE_STORE", raising=False)
    monkeypatch.setenv("RAY_ADDRESS", cluster.address)
    shorten(monkeypatch)
    ray_plan(tmp_path)
    (block,) = run_page(ROOT / "docs" / "cluster.md", tmp_path, "ray", names={"10.0.0.5:6379": cluster.address})
    assert len(block.commands()) == 3
    assert [run.done for run in Store(tmp_path / "tmifpe-runs").runs()] == [4, 2], "of the command, and of the plan"


def test_killed_poisoned_and_hung(cluster, tmp_path):
    model, data = make_trouble(tmp_path)
    check_trouble(model, data, tmp_path / "store", {POISONED: 2, HUNG: 2}, engine=engine(cluster), shard_timeout=10)


def test_a_worker_killed_and_a_node_removed(cluster, tmp_path):
    """In the middle of shards: what they computed is computed again, once, by those who are left."""
    model, (x, y) = make_trouble(tmp_path)
    (tmp_path / "calm").touch()
    (tmp_path / "slow").touch()
    request = Request(engine=engine(cluster), workers=3, retries=3)
    with prepare(model, (x, y), THREAT, request) as prepared:
        actor = prepared.engine
        assert isinstance(actor, RayActors)
        job, plan = Job(prepared.model, prepared.data, THREAT, ONE, batch_size=2), Plan(2 * SHARDS, 2, 2)
        shards = actor.map(job, plan, range(SHARDS), lambda *_: None)
        results = [next(shards)]
        wait_for("three actors start", lambda: len(actors()) == 3)
        killed = actor.pids[0]  # the only one that is sure to be ready, on whichever node it is
        node, lost = next((node, held) for node in cluster.worker_nodes if killed not in (held := actors_of(node)))
        assert len(lost) == 1, "one actor per node"
        os.kill(killed, signal.SIGKILL)
        results.append(next(shards))
        cluster.remove_node(node, allow_graceful=False)
        results += list(shards)
        pids = {*actor.pids, *lost, killed}
    cluster.add_node(**cluster.small)
    assert sorted(result.shard for result in results) == list(range(SHARDS)), "nothing lost, nothing twice"
    with prepare(model, (x, y), THREAT, Request()) as prepared:
        local = prepared.engine.map(job, plan, range(SHARDS), lambda *_: None)
        expected = {result.shard: result for result in local if isinstance(result, ShardResult)}
    for result in results:
        assert isinstance(result, ShardResult)
        theirs = expected[result.shard].outcomes.arrays
        for name, values in result.outcomes.arrays.items():
            assert np.array_equal(values, theirs[name], equal_nan=True), name
    wait_for("the actors end", all_gone(pids))


def words(folder: Path, *more: str) -> list[str]:
    x, y = make_trouble(folder)[1]
    np.savez(folder / "data.npz", images=x.numpy(), labels=y.numpy())
    asked = ["evaluate", f"{folder}/trouble.py:make", "--data", f"npz:{folder}/data.npz", "--eps", "0.1", "--json"]
    return [*asked, "--steps", "2", "--shard-size", "2", "--batch-size", "2", "--no-checks", *more]


def started(folder: Path, *asked: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        command(*asked),
        env=environment(folder / "store") | QUIET | {"HOME": str(folder)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def stored(folder: Path) -> int:
    runs = Store(folder / "store").runs()
    return runs[0].done if runs else 0


def test_a_driver_killed_and_the_run_resumed(cluster, tmp_path):
    """On the cluster the actors end with their driver; resumed by Ray on this machine, the poisoned shard is reported
    and the exit code says so, and Ray ends with the command."""
    (tmp_path / "killed").touch()  # this one has another test
    asked = words(tmp_path, "--retries", "0")
    with started(tmp_path, *asked, "--engine", engine(cluster), "--workers", "2") as driver:
        # All but the poisoned and the hung shard: then one actor hangs.
        wait_for("shards are stored", lambda: stored(tmp_path) == 2 * (SHARDS - 2) or driver.poll() is not None)
        pids = actors()
        assert pids, driver.stderr and driver.stderr.read()
        driver.kill()
    assert driver.returncode == -signal.SIGKILL
    wait_for("the actors end", all_gone(pids))
    assert stored(tmp_path) == 2 * (SHARDS - 2), "what was stored is there"
    with started(tmp_path, *asked, "--engine", "ray", "--workers", "1", "--shard-timeout", "5") as again:
        pids = {}

        def over() -> bool:
            pids.update(offspring(again.pid))
            return again.poll() is not None

        wait_for("the run ends", over)
        out, error = again.communicate()
    assert again.returncode == 4, error
    told = json.loads(out)
    assert told["resumed"] == 2 * (SHARDS - 2)
    assert {failure["shard"] for failure in told["failures"]} == {POISONED, HUNG}
    assert told["robust_accuracy"] is None
    assert any("raylet" in args for args in pids.values()), "Ray was started"
    wait_for("Ray ends with the command", all_gone(pids))


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_ray_ends_with_the_command(tmp_path, number):
    """Ray on this machine, in the middle of a shard."""
    pytest.importorskip("ray", reason="ray is not installed: pip install 'tmifpe[ray]'")
    (tmp_path / "killed").touch()
    with started(tmp_path, *words(tmp_path), "--engine", "ray", "--workers", "1") as driver:
        wait_for("shards are stored", lambda: stored(tmp_path) >= 2 * KILLED or driver.poll() is not None)
        pids = offspring(driver.pid)
        assert any(args.startswith("ray::Holder") for args in pids.values()), pids
        driver.send_signal(number)
        driver.communicate(timeout=120)
    assert driver.returncode == (-number if number == signal.SIGKILL else 128 + number)
    agents = {pid for pid, args in pids.items() if args.endswith("Agent")}
    wait_for("Ray ends with the command", all_gone(set(pids) - agents))
    # After a SIGKILL they try for a minute to tell the cluster, which is gone, that their node is gone.
    wait_for("and so do its agents", all_gone(agents))
    assert not alive(driver.pid)
