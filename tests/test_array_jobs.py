"""`--shard I/N` and `runs merge`: parts computed anywhere are one run, or the reason why they are not is said."""

from __future__ import annotations

import errno
import json
import os
from functools import partial
from pathlib import Path

import pytest
from typer.testing import CliRunner

import tmifpe
from tests.stores import SHARD, THREAT, ask, same
from tmifpe.cli import app
from tmifpe.core.errors import InputError
from tmifpe.evaluation import prepare
from tmifpe.run.cut.part import RunPart, parse_part
from tmifpe.run.shard import ShardFailure
from tmifpe.run.spec import RunSpec
from tmifpe.store import Store, StoreError, recorder
from tmifpe.store.lock import RunLock
from tmifpe.store.merge import merge

SLURM = {"SLURM_ARRAY_TASK_ID": "9", "SLURM_ARRAY_TASK_MIN": "3", "SLURM_ARRAY_TASK_STEP": "2"}


@pytest.mark.parametrize(
    ("text", "environment", "index", "count"),
    [
        ("3/16", {}, 3, 16),
        ("auto", SLURM | {"SLURM_ARRAY_TASK_COUNT": "5"}, 4, 5),
        ("auto", {"SGE_TASK_ID": "4", "SGE_TASK_FIRST": "2", "SGE_TASK_STEPSIZE": "2", "SGE_TASK_LAST": "8"}, 2, 4),
        ("auto", {"LSB_JOBINDEX": "3", "LSB_JOBINDEX_END": "8"}, 3, 8),
        ("auto", {"CI_NODE_INDEX": "2", "CI_NODE_TOTAL": "3"}, 2, 3),
        ("auto", {"AWS_BATCH_JOB_ARRAY_INDEX": "0", "AWS_BATCH_JOB_ARRAY_SIZE": "2"}, 1, 2),
        ("auto/4", {"JOB_COMPLETION_INDEX": "3"}, 4, 4),
        ("auto/4", {"PBS_ARRAY_INDEX": "1"}, 1, 4),
    ],
)
def test_which_part_a_job_is(text, environment, index, count):
    assert parse_part(text, environment) == RunPart(index, count)


@pytest.mark.parametrize(
    ("text", "environment", "said"),
    [
        ("auto", {}, "no array job"),
        ("auto", {"JOB_COMPLETION_INDEX": "3"}, "auto/N"),
        ("auto", SLURM | {"SLURM_ARRAY_TASK_COUNT": "2"}, "not one of 2 jobs"),
        ("auto", {"CI_NODE_INDEX": "x", "CI_NODE_TOTAL": "3"}, "not a whole number"),
        ("4", {}, "I/N"),
        ("17/16", {}, "does not exist"),
        (3, {}, "I/N"),
    ],
)
def test_a_part_that_is_none_is_refused(text, environment, said):
    with pytest.raises(InputError, match=said):
        parse_part(text, environment)


def test_parts_are_balanced_and_cover_everything():
    parts = [list(RunPart(i, 4).of(range(10))) for i in range(1, 5)]
    assert sorted(shard for part in parts for shard in part) == list(range(10))
    assert {len(part) for part in parts} == {2, 3}


def parts(store: Path, *which: int, count: int = 4, **options) -> list[Path]:
    return [store / RunPart(i, count).folder for i in which if ask(store, shard=f"{i}/{count}", **options)]


def test_four_parts_merged_are_the_whole(tmp_path, stored):
    whole, store = stored(tmp_path / "whole"), tmp_path / "runs"
    folders = parts(store, 1, 2, 3, 4)
    (merged,) = merge(folders, store)
    assert merged.missing == merged.twice == ()
    assert same(merged.result, whole)
    again = ask(store)
    assert again.resumed == len(whole.outcomes)
    assert same(again, whole)
    assert Store(store).runs()[0].result == merged.result.to_json(), "finished by the merge"
    assert list(Store(store).adv(Store(store).runs()[0])), "with its adversarial examples"


def test_a_part_says_which_it_is(tmp_path):
    part = ask(tmp_path, shard="2/4")
    assert part.part == part.to_json()["shard"] == "2/4"
    assert len(part.outcomes) == 2 * SHARD
    assert part.outcomes.index.tolist() == [*range(SHARD, 2 * SHARD), *range(5 * SHARD, 6 * SHARD)]
    assert Store(tmp_path / "shard-2-of-4").runs()[0].finished is None
    assert ask(tmp_path, shard="2/4").resumed == 2 * SHARD
    assert len(ask(shard="8/8").outcomes) == 0, "more parts than shards"


def test_what_is_missing_and_twice_is_said(tmp_path, stored):
    store, whole = tmp_path / "runs", stored(tmp_path / "whole")
    one, three = parts(store, 1, 3)
    half = tmp_path / "half" / "shard-1-of-2"
    parts(tmp_path / "half", 1, count=2)  # shards 0, 2, 4, of which 0, 4 are in 1/4 and 2 is in 3/4
    told = CliRunner().invoke(app, ["runs", "merge", str(one), str(three), str(half), "--into", str(store), "--json"])
    assert told.exit_code == 4
    (run,) = json.loads(told.stdout)["runs"]
    assert run["missing_shards"] == [1, 3, 5]
    assert run["shards_twice"] == [0, 2, 4]
    assert run["robust_accuracy"] is None
    low, high = run["bounds"]
    assert low <= whole.robust_accuracy <= high
    (two, four) = parts(store, 2, 4)
    (merged,) = merge([two, four], store)
    assert not merged.missing
    assert same(merged.result, whole)


def test_failures_come_along(tmp_path):
    (one,) = parts(tmp_path / "runs", 1)
    recorder = Store(one).recorder()
    run = Store(one).runs()[0]
    recorder.begin(run.spec, run.plan, "cpu")
    recorder.fail(ShardFailure(1, 3, "it was poisoned", "Traceback"))
    recorder.close()
    (merged,) = merge([one], tmp_path / "into")
    assert merged.missing == (1, 2, 3, 5)
    assert merged.result.failures == (ShardFailure(1, 3, "it was poisoned", "Traceback"),)


def test_stores_that_do_not_belong_together_are_refused(tmp_path):
    (one,) = parts(tmp_path / "a", 1)
    (seed,) = parts(tmp_path / "b", 2, seed=1)
    with pytest.raises(StoreError, match=r"differs in seed; nothing was merged"):
        merge([one, seed], tmp_path / "into")
    (cut,) = parts(tmp_path / "c", 2, shard_size=4)
    with pytest.raises(StoreError, match="shards of 8, batches of 8 and 48 examples in shards of 4"):
        merge([one, cut], tmp_path / "into")
    with pytest.raises(StoreError, match="no run store"):
        merge([one, tmp_path / "nothing"], tmp_path / "into")
    distilled = tmifpe.load_model("digits-distilled")
    tmifpe.evaluate(distilled, tmifpe.load_data("digits", limit=8), THREAT, "fgsm", store=tmp_path / "d", checks=False)
    with pytest.raises(StoreError, match="differs in the model, the data"):
        merge([one, tmp_path / "d"], tmp_path / "into")
    assert not (tmp_path / "into").exists(), "checked before anything is written"


def test_different_outcomes_of_one_shard_are_refused(tmp_path, monkeypatch):
    (one,) = parts(tmp_path / "a", 1)
    from tmifpe.run import shard as shards

    honest = shards._run_shard

    def other(job, *rest):
        result = honest(job, *rest)
        result.outcomes.margin[0] += 1
        return result

    monkeypatch.setattr(shards, "_run_shard", other)
    (two,) = parts(tmp_path / "b", 1)
    with pytest.raises(StoreError, match=r"shard 0 of run .* has different outcomes"):
        merge([one, two], tmp_path / "into")


def test_parts_of_different_versions(tmp_path, monkeypatch):
    """Versions whose numbers differ make different runs; two versions of torch make one, with a note."""
    (one,) = parts(tmp_path / "a", 1, count=2)
    honest = recorder.versions
    with monkeypatch.context() as patch:
        patch.setattr(recorder, "versions", lambda: honest() | {"torch": "9.9"})
        (two,) = parts(tmp_path / "b", 2, count=2)
    (merged,) = merge([one, two], tmp_path / "into")
    assert not merged.missing
    assert "9.9: last digits may differ" in merged.notes[0]
    assert same(merged.result, ask())
    monkeypatch.setattr(prepare, "RunSpec", partial(RunSpec, results_version=99))
    (later,) = parts(tmp_path / "c", 2, count=2)
    with pytest.raises(StoreError, match=r"differs in results_version; nothing was merged"):
        merge([one, later], tmp_path / "other")


@pytest.mark.parametrize(("number", "said"), [(errno.ENOSPC, "is full"), (errno.EROFS, "cannot be written")])
def test_merging_to_a_disk_that_takes_no_more(tmp_path, monkeypatch, number, said):
    folders, into, left = parts(tmp_path / "runs", 1, 2, count=2), tmp_path / "into", [5]
    fsync = os.fsync

    def broken(handle):
        left[0] -= 1
        if left[0] < 0:
            raise OSError(number, os.strerror(number))
        fsync(handle)

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", broken)
        with pytest.raises(StoreError, match=said):
            merge(folders, into)
    there = Store(into).runs()[0].done
    assert 0 < there < len(ask().outcomes), "some of it was merged"
    (merged,) = merge(folders, into)
    assert merged.added == (len(ask().outcomes) - there) // SHARD, "and the rest is merged when there is room"
    assert same(merged.result, ask())


def test_merging_into_a_run_that_is_being_worked_on(tmp_path):
    folders, into = parts(tmp_path / "runs", 1, 2, count=2), tmp_path / "into"
    merge(folders[:1], into)
    lock = RunLock(into / "locks" / f"{Store(into).runs()[0].key}.lock")
    lock.acquire()
    with pytest.raises(StoreError, match="another process is working on run"):
        merge(folders, into)
    lock.release()
    (merged,) = merge(folders, into)
    assert same(merged.result, ask())
