"""Asking again: a run is resumed where it was, returned when it is finished, repeated when that is wanted."""

from __future__ import annotations

import json
import multiprocessing
import sqlite3
import time
from dataclasses import replace

import pytest
import torch
from torch import nn

import tmifpe
from tests.stores import SHARD, THREAT, Killed, N, ask, killed_after, same
from tmifpe import PGD, Threat
from tmifpe.core import files
from tmifpe.core.errors import InputError
from tmifpe.run.outcomes import Outcomes
from tmifpe.store import Store, StoreError, lock, recorder, shards
from tmifpe.store.files import read_shard, write_shard
from tmifpe.store.lock import RunLock


@pytest.fixture(scope="module")
def reference():
    return ask(keep_adv=True)


def test_stored_run_equals_the_one_that_was_not_stored(tmp_path, reference):
    stored = ask(tmp_path / "runs")
    assert same(stored, reference)
    assert stored.resumed == 0
    assert 0 < stored.broken < stored.n


NUMERICAL = (pytest.mark.numerical, pytest.mark.convolutional)


@pytest.mark.parametrize("done", [0, 7, 8, pytest.param(20, marks=NUMERICAL), 40, pytest.param(47, marks=NUMERICAL)])
def test_resumed_run_equals_the_uninterrupted_one(tmp_path, reference, done):
    with pytest.raises(Killed):
        ask(tmp_path, progress=killed_after(done))
    (run,) = Store(tmp_path).runs()
    assert run.finished is None
    assert run.done == done // SHARD * SHARD
    resumed = ask(tmp_path, keep_adv=True)
    assert same(resumed, reference)
    assert resumed.resumed == run.done
    assert torch.equal(resumed.adv, reference.adv)
    assert resumed.tally == reference.tally
    assert len(Store(tmp_path).sessions(Store(tmp_path).runs()[0])) == 2


@pytest.mark.parametrize(
    ("module", "name", "adopted"),
    [
        (files.Path, "replace", 0),  # the shard is in its temporary file
        (files.os, "fsync", 0),
        (recorder, "insert_shard", SHARD),  # the shard file has its name, the database does not know it
        (shards, "_numbered", SHARD),  # in the middle of the transaction
    ],
)
def test_killed_while_storing(tmp_path, reference, monkeypatch, module, name, adopted):
    calls = []

    def strike(*args, **options):
        calls.append(args)
        if len(calls) == 3:
            raise Killed
        return kept(*args, **options)

    kept = getattr(module, name)
    with monkeypatch.context() as patch:
        patch.setattr(module, name, strike)
        with pytest.raises(Killed):
            ask(tmp_path)
    done = Store(tmp_path).runs()[0].done
    assert done < N
    resumed = ask(tmp_path, keep_adv=True)
    assert same(resumed, reference)
    assert torch.equal(resumed.adv, reference.adv)
    assert resumed.resumed == done + adopted, "a shard that has its file is not computed again"
    assert resumed.tally == reference.tally
    (folder,) = (tmp_path / "adv").iterdir()
    assert sorted(path.name for path in folder.iterdir()) == [f"{shard:06d}.safetensors" for shard in range(N // SHARD)]


def test_a_shard_of_another_run_or_plan_is_not_adopted(tmp_path, reference):
    ask(tmp_path, seed=1)
    (other,) = (tmp_path / "adv").iterdir()
    with pytest.raises(Killed):
        ask(tmp_path, progress=killed_after(20))
    (folder,) = set((tmp_path / "adv").iterdir()) - {other}
    for name in ("000003.safetensors", "000004.safetensors"):
        (folder / name).write_bytes((other / name).read_bytes())
    own = read_shard(folder / "000001.safetensors")
    cut_otherwise = replace(own.about, plan=own.about.plan | {"batch_size": 4})
    write_shard(folder, cut_otherwise, replace(own.result, shard=5))
    resumed = ask(tmp_path)
    assert resumed.resumed == 16
    assert same(resumed, reference)


def test_what_a_killed_process_left_is_cleaned(tmp_path):
    with pytest.raises(Killed):
        ask(tmp_path, progress=killed_after(20))
    (folder,) = (tmp_path / "adv").iterdir()
    for left in (".000002.safetensors.tmp", "000004.safetensors", "000099.safetensors"):
        (folder / left).write_bytes(b"half")
    ask(tmp_path, keep_adv=True)
    assert sorted(path.name for path in folder.iterdir()) == [f"{shard:06d}.safetensors" for shard in range(N // SHARD)]


def test_finished_run_is_returned_without_asking_the_model(tmp_path):
    first = ask(tmp_path, checks=True)
    assert first.check_forwards > 0

    def dead(x):
        raise AssertionError("the model was asked")

    model = tmifpe.load_model("digits-robust")
    model.module.forward = dead
    again = tmifpe.evaluate(
        model, tmifpe.load_data("digits"), THREAT, tmifpe.PGD(steps=3), limit=N, store=tmp_path, batch_size=24
    )
    assert same(first, again)
    assert again.resumed == N
    assert again.to_json()["resumed"] == N
    assert again.plan == first.plan, "the stored plan holds, whatever batch size is asked for now"
    assert again.tally == first.tally
    assert (again.flags, again.check_forwards) == (first.flags, first.check_forwards)


@pytest.mark.usefixtures("not_led_in")
def test_checks_that_came_later_are_stored(tmp_path, stored):
    stored(tmp_path)
    assert Store(tmp_path).runs()[0].result["check_forwards"] == 0
    again = ask(tmp_path, checks=True)
    assert again.resumed == N
    assert Store(tmp_path).runs()[0].result["check_forwards"] == again.check_forwards > 0
    assert ask(tmp_path).check_forwards == 0
    assert Store(tmp_path).runs()[0].result["check_forwards"] > 0, "a run without checks does not take flags away"


def test_another_question_is_another_run(tmp_path, stored):
    stored(tmp_path)
    for change in ({"seed": 1}, {"limit": N - 1}, {"mode": "strongest"}, {"attack": tmifpe.PGD(steps=2)}):
        assert ask(tmp_path, **change).resumed == 0
    assert len(Store(tmp_path).runs()) == 5


def test_fresh_repeats_and_keeps_the_old_run(tmp_path, stored):
    first = stored(tmp_path)
    again = ask(tmp_path, fresh=True)
    assert again.resumed == 0
    assert same(first, again)
    old, new = Store(tmp_path).runs()
    assert (old.superseded, new.superseded) == (True, False)
    assert old.name == f"{new.key}.1"
    assert Store(tmp_path).runs(superseded=False) == [new]
    assert same(Store(tmp_path).result(old), first)
    with pytest.raises(Killed):
        ask(tmp_path, fresh=True, progress=killed_after(20))
    assert ask(tmp_path).resumed == 16, "what is resumed is the latest attempt"


def test_strongest_mode_and_targets_resume_too(tmp_path):
    for options in ({"mode": "strongest"}, {"targets": "second"}, {"targets": torch.arange(N) % 10}):
        whole = ask(None, keep_adv=True, **options)
        with pytest.raises(Killed):
            ask(tmp_path, progress=killed_after(20), **options)
        resumed = ask(tmp_path, keep_adv=True, **options)
        assert same(resumed, whole)
        assert resumed.resumed == 16
        assert torch.equal(resumed.adv, whole.adv)


def test_compare_stores_every_run(tmp_path):
    model, data = tmifpe.load_model("digits-robust"), tmifpe.load_data("digits", limit=16)
    options = {"losses": ["ce", "tmifpe"], "attack": tmifpe.PGD(steps=3), "seeds": (0, 1), "store": tmp_path}
    options["checks"] = False
    tmifpe.compare(model, data, THREAT, **options)
    again = tmifpe.compare(model, data, THREAT, **options)
    assert [result.resumed for results in again.results.values() for result in results] == [16] * 4
    assert len(Store(tmp_path).runs()) == 4


@pytest.mark.usefixtures("unchecked")
def test_a_callable_needs_a_name(tmp_path):
    def model(x):
        return x.flatten(1)[:, :3]

    x, y = torch.rand(6, 1, 2, 2), torch.zeros(6, dtype=torch.long)
    with pytest.raises(InputError, match="name="):
        tmifpe.evaluate(model, (x, y), THREAT, tmifpe.PGD(steps=2), store=tmp_path)
    for resumed in (0, 6):
        result = tmifpe.evaluate(model, (x, y), THREAT, tmifpe.PGD(steps=2), store=tmp_path, name="mine")
        assert result.resumed == resumed


def test_a_run_says_what_it_was_computed_with(tmp_path, stored):
    stored(tmp_path)
    (run,) = Store(tmp_path).runs()
    (session,) = Store(tmp_path).sessions(run)
    assert session.versions["torch"] == torch.__version__
    assert {"python", "tmifpe", "numpy"} <= set(session.versions)
    assert session.machine["device"] == "cpu"
    assert session.shards == N // SHARD


def test_database_is_wal_and_holds_every_column(tmp_path, stored):
    stored(tmp_path)
    connection = sqlite3.connect(tmp_path / "runs.sqlite")
    assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    columns = [row[1] for row in connection.execute("PRAGMA table_info(outcomes)")]
    connection.close()
    assert columns == ["run", "position", *Outcomes.columns()]


def _work(folder, begun):
    def wait(step):
        begun.set()
        time.sleep(300)

    ask(folder, progress=wait)


def test_two_processes_on_one_run(tmp_path):
    spawn = multiprocessing.get_context("spawn")
    begun = spawn.Event()
    other = spawn.Process(target=_work, args=(tmp_path, begun))
    other.start()
    try:
        assert begun.wait(600)
        with pytest.raises(StoreError, match=r"another process is working on run [0-9a-f]{16}; wait"):
            ask(tmp_path)
        with pytest.raises(StoreError, match="another process"):
            Store(tmp_path).remove(Store(tmp_path).runs()[0])
        assert ask(tmp_path, seed=1).n == N, "another run in the same store is free"
        other.kill()  # SIGKILL: the lock goes with its process
        other.join()
        assert ask(tmp_path).n == N
    finally:
        other.kill()
        other.join()


def test_a_removed_lock_file_is_not_mistaken_for_a_lock(tmp_path):
    first, second = RunLock(tmp_path / "locks" / "a.lock"), RunLock(tmp_path / "locks" / "a.lock")
    first.acquire()
    with pytest.raises(StoreError):
        second.acquire()
    first.release(remove=True)
    second.acquire()
    with pytest.raises(StoreError):
        first.acquire()
    second.release()


def test_a_lock_file_removed_at_the_wrong_moment(tmp_path, monkeypatch):
    """Another process removes the run, and its lock file, between our opening the file and our locking it."""
    path, kept = tmp_path / "locks" / "a.lock", lock._lock

    def removed_first(handle):
        monkeypatch.setattr(lock, "_lock", kept)
        path.unlink()
        kept(handle)

    monkeypatch.setattr(lock, "_lock", removed_first)
    first, second = RunLock(path), RunLock(path)
    first.acquire()
    with pytest.raises(StoreError):
        second.acquire()
    first.release()


def test_result_of_a_stored_run_is_the_result(tmp_path, stored):
    first = stored(tmp_path)
    (run,) = Store(tmp_path).runs()
    read = Store(tmp_path).result(run)
    assert same(read, first)
    ignored = {"resumed": None, "seconds": None}
    assert read.to_json() | ignored == first.to_json() | ignored
    assert run.result | ignored == first.to_json() | ignored
    assert json.dumps(run.to_json())


def test_models_that_differ_in_more_than_tensors_are_different_runs(tmp_path):
    def made(layer):
        torch.manual_seed(1)
        return nn.Sequential(nn.Flatten(), nn.Linear(16, 32), layer, nn.Linear(32, 4)).eval()

    data = torch.rand(12, 1, 4, 4), torch.zeros(12, dtype=torch.long)
    for layer in (nn.ReLU(), nn.Tanh(), nn.LeakyReLU(0.1), nn.LeakyReLU(0.2)):
        result = tmifpe.evaluate(made(layer), data, Threat("linf", 0.1), PGD(steps=1), store=tmp_path, checks=False)
        assert result.resumed == 0
    assert (
        tmifpe.evaluate(made(nn.Tanh()), data, Threat("linf", 0.1), PGD(steps=1), store=tmp_path, checks=False).resumed
        == 12
    )


def test_a_loaded_model_whose_weights_were_changed_is_another_run(tmp_path):
    data = tmifpe.load_data("digits", limit=12)
    resumed = []
    for _ in range(2):
        model = tmifpe.load_model("digits-robust")
        for change in (0.0, 1e-3):
            with torch.no_grad():
                next(iter(model.module.parameters())).add_(change)
            found = tmifpe.evaluate(model, data, Threat("linf", 0.15), PGD(steps=1), store=tmp_path, checks=False)
            resumed.append(found.resumed)
    assert resumed == [0, 0, 12, 12]
