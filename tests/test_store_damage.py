"""A store that is full, read-only, locked, damaged, too new or not a store: one sentence each, and nothing is lost."""

from __future__ import annotations

import contextlib
import errno
import os
import random
import sqlite3
import subprocess
import tempfile
from pathlib import Path

import pytest
from typer.testing import CliRunner

import tmifpe
from tests.stores import SHARD, Killed, N, ask, attempt, killed_after, same, small_disk
from tmifpe import PGD, Threat
from tmifpe.cli import app
from tmifpe.core.errors import InputError
from tmifpe.store import Store, StoreError, schema
from tmifpe.store.repair import repair

DATABASE = "runs.sqlite"


def database(folder, statement, *values):
    connection = sqlite3.connect(folder / DATABASE, isolation_level=None)
    try:
        return connection.execute(statement, values).fetchall()
    finally:
        connection.close()


def fill(path: Path) -> None:
    """Write until there is no room left."""
    with contextlib.suppress(OSError), path.open("wb", buffering=0) as file:
        while file.write(bytes(4096)):
            pass


@pytest.fixture(scope="module")
def reference():
    return ask(keep_adv=True)


def one_sentence(error) -> str:
    text = str(error.value)
    assert "\n" not in text
    assert isinstance(error.value, InputError)
    return text


def test_full_disk(tmp_path, reference):
    with small_disk(tmp_path / "disk", "1m") as disk:
        store = disk / "runs"
        with pytest.raises(Killed):
            ask(store, progress=killed_after(17))
        filler = disk / "filler"
        fill(filler)
        with pytest.raises(StoreError) as error:
            ask(store)
        assert "is full; finished shards are kept: make room" in one_sentence(error)
        filler.unlink()
        (run,) = Store(store).runs()
        assert run.done >= 16, "nothing that was stored is lost"
        resumed = ask(store, keep_adv=True)
        assert resumed.resumed == run.done
        assert same(resumed, reference)
        assert not list(store.rglob("*.tmp"))


@pytest.mark.slow
def test_full_disk_at_every_moment(tmp_path, reference):
    """From no room at all to room for all of it, in small steps."""
    stages = set()
    with small_disk(tmp_path / "disk", "400k") as disk:
        store, filler = disk / "runs", disk / "filler"
        for spare in range(0, 200, 12):
            fill(filler)
            os.truncate(filler, filler.stat().st_size - 1024 * spare)
            found = attempt(store)
            assert "is full" in found if isinstance(found, str) else same(found, reference)
            filler.unlink()
            stages.add(sum(run.done for run in Store(store).runs()))
            assert same(ask(store), reference)
            Store(store).remove(Store(store).runs()[0])
    assert len(stages) > 2, f"the disk was to fill up at different moments, but stopped at {stages}"


@pytest.mark.parametrize(
    ("number", "said"),
    [
        (errno.ENOSPC, "is full; finished shards are kept"),
        (errno.EDQUOT, "is full; finished shards are kept"),
        (errno.EROFS, "cannot be written"),
        (errno.EIO, "cannot be used: .*Input/output error"),
    ],
)
def test_shard_file_cannot_be_written(tmp_path, monkeypatch, number, said):
    def broken(handle):
        raise OSError(number, os.strerror(number))

    with pytest.raises(Killed):
        ask(tmp_path, progress=killed_after(17))
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", broken)
        with pytest.raises(StoreError, match=said):
            ask(tmp_path)
    assert not list(tmp_path.rglob("*.tmp"))
    assert ask(tmp_path).resumed == 16


def test_read_only_store(tmp_path, stored):
    with small_disk(tmp_path / "disk", "2m") as disk:
        first = stored(disk / "runs")
        subprocess.run(["mount", "-o", "remount,ro", disk], check=True)
        with pytest.raises(StoreError) as error:
            ask(disk / "runs", seed=1)
        assert "cannot be written" in one_sentence(error)
        (run,) = Store(disk / "runs").runs()
        assert same(Store(disk / "runs").result(run), first), "it can still be read"
        subprocess.run(["mount", "-o", "remount,rw", disk], check=True)


@contextlib.contextmanager
def nobody():
    """Root may write anywhere, so root becomes someone else for a while."""
    root = os.geteuid() == 0
    if root:
        os.seteuid(65534)
    try:
        yield
    finally:
        if root:
            os.seteuid(0)


def test_refused_by_permissions():
    ask()  # loads all that is needed while it may still be read
    with tempfile.TemporaryDirectory() as name:  # pytest's own folder is closed to others
        folder = Path(name)
        folder.chmod(0o555)
        with nobody(), pytest.raises(StoreError, match="cannot be written"):
            ask(folder / "runs")
        folder.chmod(0o700)


def test_a_file_where_the_folder_should_be(tmp_path):
    (tmp_path / "runs").write_text("mine")
    with pytest.raises(StoreError, match="not a folder"):
        ask(tmp_path / "runs")
    assert (tmp_path / "runs").read_text() == "mine"


@pytest.mark.parametrize("where", [0.0, 0.2, 0.4, 0.6, 0.8])
def test_database_damaged_mid_file(tmp_path, reference, where):
    with pytest.raises(Killed):
        ask(tmp_path, progress=killed_after(33))
    done = Store(tmp_path).runs()[0].done
    assert done == 32
    database(tmp_path, "PRAGMA wal_checkpoint(TRUNCATE)")
    path = tmp_path / DATABASE
    whole = path.read_bytes()
    start = int(where * len(whole)) // 4096 * 4096
    broken = whole[:start] + random.Random(start).randbytes(4096) + whole[start + 4096 :]
    path.write_bytes(broken)
    found = attempt(tmp_path)
    if isinstance(found, str):
        assert "damaged" in found
        assert "tmifpe runs repair" in found
        mended = repair(tmp_path)
        assert (mended.runs, mended.shards, mended.unreadable) == (1, done // SHARD, ())
        assert mended.kept.read_bytes()[start : start + 4096] == broken[start : start + 4096]
        found = ask(tmp_path, keep_adv=True)
        assert found.resumed == done
    assert same(found, reference), "a damaged database is noticed or does no harm, but is never believed"


@pytest.mark.parametrize("statement", ["UPDATE outcomes SET fooled = 1 - fooled WHERE position = 5",
                                       "UPDATE outcomes SET margin = 'x' WHERE position = 5",
                                       "DELETE FROM outcomes WHERE position = 5",
                                       "UPDATE runs SET spec = '{'",
                                       "UPDATE runs SET plan = '{}'",
                                       """UPDATE runs SET plan = '{"n": 48, "batch_size": 8, "shard_size": 0}'""",
                                       "UPDATE shards SET columns = NULL",
                                       "UPDATE shards SET columns = '{}'",
                                       "UPDATE runs SET result = 'x'",
                                       "DROP TABLE shards"])  # fmt: skip
def test_changed_values_are_noticed(tmp_path, stored, statement):
    stored(tmp_path)
    database(tmp_path, statement)
    with pytest.raises(StoreError) as error:
        ask(tmp_path)
    assert "damaged" in one_sentence(error)
    repair(tmp_path)
    assert ask(tmp_path).resumed == N


def test_lost_database_is_rebuilt(tmp_path, stored):
    reference = stored(tmp_path)
    for path in tmp_path.glob(DATABASE + "*"):
        path.unlink()
    assert Store(tmp_path).runs() == []
    assert ask(tmp_path).resumed == 0, "without its database a store knows nothing ..."
    assert len(list((tmp_path / "adv").iterdir())) == 2, "... but takes nothing away either"
    assert repair(tmp_path).shards == 12
    again = ask(tmp_path)
    assert again.resumed == N
    assert same(again, reference)
    assert [run.attempt for run in Store(tmp_path).runs()] == [1, 2]


def test_there_is_nothing_to_repair(tmp_path):
    with pytest.raises(StoreError, match="no run store"):
        repair(tmp_path / "typo")
    assert not (tmp_path / "typo").exists()


def test_not_a_database(tmp_path):
    tmp_path.joinpath(DATABASE).write_bytes(b"this is not a database at all, but a text of some length" * 100)
    with pytest.raises(StoreError, match="damaged"):
        ask(tmp_path)
    with pytest.raises(StoreError, match="damaged"):
        Store(tmp_path).runs()


def test_database_of_another_program(tmp_path):
    database(tmp_path, "CREATE TABLE notes (text)")
    with pytest.raises(StoreError, match="another program"):
        ask(tmp_path)
    assert database(tmp_path, "SELECT name FROM sqlite_master") == [("notes",)]


def test_locked_database(tmp_path, stored, monkeypatch):
    stored(tmp_path)
    monkeypatch.setattr(schema, "WAIT_SECONDS", 0.1)
    connection = sqlite3.connect(tmp_path / DATABASE, isolation_level=None)
    connection.execute("BEGIN EXCLUSIVE")
    with pytest.raises(StoreError) as error:
        ask(tmp_path, seed=1)
    assert "locked by another program" in one_sentence(error)
    connection.close()
    assert ask(tmp_path, seed=1).n == N


def test_newer_store_is_refused(tmp_path, stored):
    stored(tmp_path)
    database(tmp_path, f"PRAGMA user_version = {schema.VERSION + 1}")
    for question in (ask, lambda folder: Store(folder).runs()):
        with pytest.raises(StoreError) as error:
            question(tmp_path)
        assert "newer tmifpe" in one_sentence(error)
    database(tmp_path, f"PRAGMA user_version = {schema.VERSION}")
    assert ask(tmp_path).resumed == N


def shard_file(folder):
    return next((folder / "adv").rglob("000001.safetensors"))


def test_missing_damaged_and_foreign_shard_files(tmp_path, stored):
    stored(tmp_path)
    path = shard_file(tmp_path)
    content = path.read_bytes()
    other = path.with_name("000002.safetensors").read_bytes()
    for bad, said in ((content[:-8] + b"\0" * 8, "damaged"), (content[:100], "damaged"), (other, "does not belong")):
        path.write_bytes(bad)
        with pytest.raises(StoreError, match=said):
            ask(tmp_path, keep_adv=True)
        assert ask(tmp_path).resumed == N, "the number does not need the images"
    path.unlink()
    with pytest.raises(StoreError, match="missing"):
        ask(tmp_path, keep_adv=True)


def test_repair_leaves_alone_what_does_not_fit(tmp_path, stored):
    stored(tmp_path)
    path = shard_file(tmp_path)
    path.write_bytes(path.with_name("000002.safetensors").read_bytes())
    mended = repair(tmp_path)
    assert mended.shards == N // SHARD - 1
    assert len(mended.unreadable) == 1
    assert ask(tmp_path).resumed == N - SHARD


def test_links_out_of_the_store_are_not_followed(tmp_path, stored):
    stored(tmp_path / "runs")
    path = shard_file(tmp_path / "runs")
    outside = tmp_path / "outside.safetensors"
    path.rename(outside)
    path.symlink_to(outside)
    with pytest.raises(StoreError, match="symbolic link"):
        ask(tmp_path / "runs", keep_adv=True)
    folder = path.parent
    folder.rename(tmp_path / "elsewhere")
    folder.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(StoreError, match="symbolic link"):
        Store(tmp_path / "runs").remove(Store(tmp_path / "runs").runs()[0])
    assert len(list((tmp_path / "elsewhere").iterdir())) == N // SHARD


def test_a_key_that_is_a_path_is_refused(tmp_path, stored):
    stored(tmp_path / "runs")
    treasure = tmp_path / "treasure-1"
    treasure.mkdir()
    database(tmp_path / "runs", "UPDATE runs SET key = '../../treasure'")
    (run,) = Store(tmp_path / "runs").runs()
    with pytest.raises(StoreError, match="not the name of a run"):
        Store(tmp_path / "runs").remove(run)
    assert treasure.is_dir()


def test_repair_waits_for_a_run_that_has_no_shard_yet(tmp_path, robust_digits):
    model, x, y = robust_digits
    seen = []

    def repairing(step):
        if not seen:
            seen.append(CliRunner().invoke(app, ["runs", "repair", "--store", str(tmp_path)]))

    tmifpe.evaluate(model, (x, y), Threat("linf", 0.15), PGD(steps=2), store=tmp_path, progress=repairing, checks=False)
    assert seen[0].exit_code != 0
    assert "another process is working" in seen[0].output
    assert len(tmifpe.Store(tmp_path).runs()) == 1
