"""Worker processes: the outcomes of the local engine, whatever dies, hangs or raises; and no process left.

A worker costs three seconds, most of it the import of torch, so that the quick tests start few.
"""

from __future__ import annotations

import json
import multiprocessing
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import tmifpe
from tests.stores import ask, command, environment, same
from tests.trouble import HUNG, ONE, POISONED, THREAT, alive, all_gone, check_trouble, make_trouble, offspring, wait_for
from tmifpe.cli import app
from tmifpe.core.errors import InputError
from tmifpe.engines import Processes, find_places
from tmifpe.engines.memory import run_in_memory
from tmifpe.engines.places import count_cores
from tmifpe.evaluation.prepare import prepare
from tmifpe.run.request import Request
from tmifpe.run.shard import Job
from tmifpe.run.spec import Plan
from tmifpe.store import Store


@pytest.fixture
def trouble(tmp_path: Path) -> tuple[tmifpe.Classifier, tuple[torch.Tensor, torch.Tensor]]:
    return make_trouble(tmp_path)


SLOW = pytest.mark.slow


@pytest.fixture(autouse=True)
def one_thread(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Here as in the workers, which share the cores: how many threads add decides the last digits."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("workers", [2, pytest.param(1, marks=pytest.mark.long), pytest.param(3, marks=SLOW)])
def test_workers_give_the_outcomes_of_this_process(tmp_path, workers):
    steps, pids = [], set()

    def told(step: tmifpe.Progress) -> None:
        steps.append(step)
        pids.update(child.pid for child in multiprocessing.active_children())

    found = ask(tmp_path / "store", workers=workers, keep_adv=True, progress=told)
    local = ask(keep_adv=True)
    assert same(found, local), "example by example"
    assert found.adv is not None
    assert local.adv is not None
    assert torch.equal(found.adv, local.adv)
    assert found.tally == local.tally
    assert steps[-1].done == len(local.outcomes)
    assert (steps[-1].steps, steps[-1].left) == (local.tally.forwards, 0)
    assert any(step.stage and step.left for step in steps), "workers tell how far they are"
    assert same(ask(tmp_path / "store"), local), "stored as if computed here"
    assert len(pids) == workers
    assert not any(map(alive, pids))


def test_killed_and_poisoned(trouble, tmp_path):
    """A worker killed and a shard poisoned: counted right, reported, and made good later."""
    model, (x, y) = trouble
    check_trouble(model, (x[: 2 * HUNG], y[: 2 * HUNG]), tmp_path / "store", {POISONED: 2})


@pytest.mark.slow
def test_killed_poisoned_and_hung(trouble, tmp_path):
    check_trouble(*trouble, tmp_path / "store", {POISONED: 2, HUNG: 2})


@pytest.mark.slow
def test_a_poisoned_rest_is_incomplete_again(trouble, tmp_path):
    """What was finished earlier counts: that nothing of the rest succeeds is no reason to end without a result."""
    model, (x, y) = trouble
    (tmp_path / "killed").touch()
    options = {"shard_size": 2, "batch_size": 2, "checks": False, "store": tmp_path / "store", "retries": 0}
    data = (x[: 2 * HUNG], y[: 2 * HUNG])
    first, again = (tmifpe.evaluate(model, data, THREAT, ONE, workers=1, **options) for _ in range(2))
    assert [failure.shard for failure in first.failures] == [failure.shard for failure in again.failures] == [POISONED]
    assert (again.resumed, again.bounds) == (2 * HUNG - 2, first.bounds)


def test_the_command_names_the_poisoned_shard_and_exits_with_4(trouble, tmp_path):
    (tmp_path / "killed").touch()  # this one has another test
    x, y = (each[: 2 * HUNG] for each in trouble[1])
    np.savez(tmp_path / "data.npz", images=x.numpy(), labels=y.numpy())
    words = ["evaluate", f"{tmp_path}/trouble.py:make", "--data", f"npz:{tmp_path}/data.npz", "--eps", "0.1"]
    words += ["--steps", "2", "--shard-size", "2", "--batch-size", "2", "--no-checks", "--workers", "1"]
    words += ["--retries", "0", "--store", str(tmp_path / "store"), "--json"]
    done = CliRunner().invoke(app, words)  # here, where torch is imported already
    assert done.exit_code == 4, done.output
    told = json.loads(done.stdout)
    assert [(one["shard"], one["attempts"]) for one in told["failures"]] == [(POISONED, 1)]
    assert "poisoned" in told["failures"][0]["error"]
    assert (told["robust_accuracy"], told["missing"], told["n"]) == (None, 2, 2 * HUNG - 2)
    (run,) = Store(tmp_path / "store").runs()
    assert run.done == 2 * HUNG - 2, "the others are stored"


@pytest.mark.slow
def test_no_worker_outlives_its_engine(trouble):
    """Closed in the middle of a shard, the engine ends whoever works on one, and at its end everyone."""
    model, data = trouble
    with prepare(model, data, THREAT, Request(workers=2)) as prepared:
        engine = prepared.engine
        assert isinstance(engine, Processes)
        job = Job(prepared.model, prepared.data, THREAT, ONE)
        shards = engine.map(job, Plan(12, 2, 2), [0, HUNG], lambda *_: None)
        next(shards)  # the other one hangs
        pids = engine.pids
        assert len(pids) == 2
        assert all(map(alive, pids))
        shards.close()
        assert sum(map(alive, pids)) == 1, "the one that hung is ended, the other kept for the next run"
    assert not any(map(alive, pids))


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="looks for the workers in /proc")
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM])
def test_workers_end_with_the_command(trouble, tmp_path, number):
    x, y = trouble[1]
    np.savez(tmp_path / "data.npz", images=x.numpy(), labels=y.numpy())
    words = ["evaluate", f"{tmp_path}/trouble.py:make", "--data", f"npz:{tmp_path}/data.npz", "--workers", "2"]
    words += ["--shard-size", "2", "--no-checks"]  # one shard hangs: the command does not end by itself
    process = subprocess.Popen(command(*words), env=environment(tmp_path / "store"), stderr=subprocess.PIPE)
    pids, until = set(), time.monotonic() + 120
    while time.monotonic() < until and len(pids) < 2:
        pids = {pid for pid, args in offspring(process.pid).items() if "spawn_main" in args}
        time.sleep(0.05)
    assert len(pids) == 2
    process.send_signal(number)
    process.communicate(timeout=120)
    assert process.returncode == (-number if number == signal.SIGKILL else 128 + number)
    wait_for("the workers end", all_gone(pids), 60)


class _Hungry(torch.nn.Linear):
    """Runs out of memory on more than three images."""

    def forward(self, x):
        if len(x) > 3:
            raise MemoryError("too many")
        return super().forward(x.flatten(1))


def _hungry_job(batch_size: int, keeps_batches: bool = False) -> Job:
    x, y = torch.rand(8, 1, 2, 2), torch.zeros(8, dtype=torch.long)
    data = tmifpe.data.as_data((x, y))
    with prepare(_Hungry(4, 3), data, THREAT, Request()) as prepared:
        return Job(prepared.model, data, THREAT, ONE, batch_size=batch_size, keeps_batches=keeps_batches)


def test_out_of_memory_halves_the_batch():
    result = run_in_memory(_hungry_job(8), 0, range(8), lambda *_: None)
    assert len(result.outcomes) == 8
    assert result.notes == {"memory ran out: some shards were computed in batches of 2 instead of 8"}


def test_the_batch_of_a_randomised_model_is_kept():
    with pytest.raises(MemoryError):
        run_in_memory(_hungry_job(8, keeps_batches=True), 0, range(8), lambda *_: None)


def test_a_model_that_cannot_travel_is_refused_in_one_sentence():
    with pytest.raises(InputError, match="cannot be sent to worker processes"):
        tmifpe.evaluate(lambda x: x.flatten(1), (torch.rand(4, 1, 2, 2), torch.zeros(4).long()), THREAT, workers=2)


BAD = [("workers", 0), ("workers", "many"), ("retries", -1), ("shard_timeout", 0), ("shard", "5/4"), ("shard", "0/4")]


@pytest.mark.parametrize(("option", "value"), BAD)
def test_bad_options_are_refused(option, value):
    with pytest.raises(InputError, match=option):
        Request(**{option: value})


def test_auto_is_one_worker_per_core():
    places = find_places("auto", torch.device("cpu"))
    assert (places.workers, places.threads) == (count_cores(), 1)
    assert find_places(2 * count_cores(), torch.device("cpu")).threads == 1
