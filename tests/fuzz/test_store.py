"""A run store damaged in every way: its outcomes are those that were stored, or one sentence; nothing is made up."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import strategies as st
from torch import nn

import tmifpe
from tests.fuzz.fuzzing import NASTY, damage, fuzz, mix, tried
from tests.stores import same
from tmifpe.core.errors import InputError
from tmifpe.run.outcomes import Outcomes
from tmifpe.run.result import Result
from tmifpe.store import Store, StoredRun
from tmifpe.store.export import outcomes_file
from tmifpe.store.files import run_folder
from tmifpe.store.repair import repair

Spoil = Callable[[bytes], bytes]
THREAT = tmifpe.Threat("linf", 0.2)


class Tiny(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.linspace(-1, 1, 12).reshape(3, 4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.flatten(1) @ self.weight.t()


@cache
def examples() -> tuple[torch.Tensor, torch.Tensor]:
    x = torch.rand(6, 1, 2, 2, generator=torch.Generator().manual_seed(0))
    return x, Tiny()(x).argmax(dim=1)


def ask(store: Path | None, **options: Any) -> Result:
    """Six examples in three shards."""
    asked: dict[str, Any] = {"shard_size": 2, "batch_size": 2, "checks": False, "name": "tiny"}
    return tmifpe.evaluate(Tiny(), examples(), THREAT, tmifpe.PGD(steps=1), store=store, **(asked | options))


@cache
def truth() -> Result:
    return ask(None)


@cache
def pristine(folder: Path) -> Path:
    """A finished run, and one that was begun by another seed and never finished."""
    store = folder / "pristine"
    ask(store)

    def stop(step: Any) -> None:
        if step.done >= 4:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        ask(store, seed=1, progress=stop)
    return store


@pytest.fixture(autouse=True, scope="module")
def _pristine(tmp_path_factory: pytest.TempPathFactory) -> Any:
    global HERE
    HERE = tmp_path_factory.mktemp("store")
    pristine(HERE)


HERE = Path()


def copied() -> Path:
    shutil.rmtree("store", ignore_errors=True)
    shutil.copytree(pristine(HERE), "store", symlinks=True)
    with closing(sqlite3.connect("store/runs.sqlite")) as connection:
        connection.execute("PRAGMA journal_mode = DELETE")  # all of it in one file
    return Path("store")


def look(folder: Path) -> None:
    """Everything that reads. Outcomes are protected by hashes, so what is read is what was stored."""
    store = Store(folder)
    for run in tried(store.runs) or []:
        result = tried(lambda run=run: store.result(run))
        if result is not None and run.spec.seed == 0 and len(result.outcomes) == 6 and run.spec.n == 6:
            assert same(result, truth())
        tried(lambda run=run: store.sessions(run))
        tried(lambda run=run: list(store.adv(run)))
        tried(lambda run=run: outcomes_file(store, run, "json"))
        tried(lambda run=run: store.find(run.key))


def resume(folder: Path) -> None:
    """Asking for the same again gives the same, or says why not."""
    result = tried(lambda: ask(folder))
    assert result is None or same(result, truth())


@fuzz(10, 70, spoil=damage())
def test_damaged_database(spoil: Spoil) -> None:
    folder = copied()
    database = folder / "runs.sqlite"
    database.write_bytes(spoil(database.read_bytes()))
    look(folder)
    resume(folder)


@fuzz(8, 40, spoil=damage(), which=st.integers(0, 4), mend=st.booleans())
def test_damaged_shard(spoil: Spoil, which: int, mend: bool) -> None:
    folder = copied()
    shards = sorted((folder / "adv").rglob("*.safetensors"))
    path = shards[which % len(shards)]
    path.write_bytes(spoil(path.read_bytes()))
    look(folder)
    if mend:
        done = tried(lambda: repair(folder))
        assert done is None or done.shards >= len(shards) - 1
        look(folder)
    resume(folder)


TABLES = {
    "runs": ["id", "key", "attempt", "spec", "n", "batch_size", "shard_size", "started", "finished", "result", "plan"],
    "sessions": ["id", "run", "started", "versions", "machine"],
    "shards": ["run", "shard", "session", "forwards", "backwards", "seconds", "digest", "columns"],
    "outcomes": ["run", "position", *(f'"{name}"' for name in Outcomes.columns())],
}
CELLS = st.sampled_from([(table, column) for table, columns in TABLES.items() for column in columns])
NUMBERS = [None, 0, -1, 1, 2**31, 2**62, -(2**63), 1.5, float("inf")]
TEXTS = [b"\x00\xff", "", "x", "{}", "[]", "null", "[" * 3000, "../../x", '"\\ud800"', "0" * 16, "[red]", "\x1b[31m"]
JSONS = [
    '{"robust_accuracy": "x"}',
    '{"robust_accuracy": 2, "flags": 5}',
    '{"threat": {}, "attacks": []}',
    '{"a": 1e999}',
    '{"index": "int64", "label": "float64"}',
    '{"index": "object", "x\\" FROM runs --": "int64"}',
]
RANDOM = st.integers(-(2**63), 2**63 - 1) | st.text(max_size=5) | st.binary(max_size=5)
VALUES = st.sampled_from([*NUMBERS, *TEXTS, *JSONS]) | RANDOM


@fuzz(12, 100, cell=CELLS, value=VALUES)
def test_any_value_in_any_cell(cell: tuple[str, str], value: Any) -> None:
    folder = copied()
    with closing(sqlite3.connect(folder / "runs.sqlite")) as connection:
        try:
            connection.execute(f"UPDATE OR IGNORE {cell[0]} SET {cell[1]} = ?", (value,))
            connection.commit()
        except (sqlite3.Error, UnicodeEncodeError):
            return  # the database itself refuses it
    look(folder)
    if cell not in (("runs", "spec"), ("runs", "n")):  # else it may be another, longer or shorter run
        resume(folder)


@fuzz(12, 250, name=mix("0123", "0123456789abcdef", "0123456789abcdef.1", "abcd.99999999999"))
def test_names_of_runs(name: str) -> None:
    store = Store(pristine(HERE))
    assert tried(lambda: store.find(name)) is None


@fuzz(10, 150, folder=st.sampled_from([name for name in NASTY if not name.startswith("/")]) | mix("store"))
def test_folders_of_any_name(folder: str) -> None:
    if len(Path(folder).parts) > 100:
        return
    tried(lambda: Store(folder).runs())
    tried(lambda: repair(Store(folder).folder))


@pytest.mark.parametrize("part", ["runs.sqlite", "adv", "adv/run", "adv/run/shard", "locks"])
def test_links_out_of_the_store(part: str) -> None:
    """Another's files are neither read nor written nor removed through a link."""
    folder, outside = copied(), Path("outside")
    (run,) = [run for run in Store(folder).runs() if run.finished]
    place = run_folder(folder, run.key, run.attempt)
    path = {"adv/run": place, "adv/run/shard": place / "000000.safetensors"}.get(part, folder / part)
    path.rename(outside)
    path.symlink_to(outside.resolve())
    before = {p: p.stat().st_mtime_ns for p in [outside, *outside.rglob("*")]}
    store = Store(folder)

    def everything() -> None:
        list(store.adv(run))
        ask(folder, seed=2)

    with pytest.raises(InputError, match="symbolic link"):
        everything()
    if part != "adv/run/shard":  # a link in the place of a file is removed as a link
        with pytest.raises(InputError, match="symbolic link"):
            store.remove(run)
    assert {p: p.stat().st_mtime_ns for p in [outside, *outside.rglob("*")]} == before


@pytest.mark.parametrize("key", ["../../../outside", "..", "/etc", "0123456789abcde/", "a" * 17, ""])
def test_key_that_is_a_path(key: str) -> None:
    folder = copied()
    Path("outside-1").mkdir()
    run = Store(folder).runs()[0]
    forged = StoredRun(**{**vars(run), "key": key})
    for act in (Store(folder).remove, lambda run: list(Store(folder).adv(run))):
        with pytest.raises(InputError):
            act(forged)
    assert Path("outside-1").is_dir()


@pytest.mark.parametrize("what", ["folder", "fifo", "text", "other", "newer"])
def test_something_else_in_the_place_of_the_database(what: str) -> None:
    folder = copied()
    database = folder / "runs.sqlite"
    if what in ("folder", "fifo", "text", "other"):
        database.unlink()
    if what == "folder":
        database.mkdir()
    elif what == "fifo":
        import os

        os.mkfifo(database)
    elif what == "text":
        database.write_text("hello\n" * 100)
    else:
        with closing(sqlite3.connect(database)) as connection:
            connection.execute("CREATE TABLE mine (x)")
            connection.execute("PRAGMA user_version = 99")
            connection.commit()
    kept = database.read_bytes() if database.is_file() else b""
    with pytest.raises(InputError):
        ask(folder)
    with pytest.raises(InputError):
        Store(folder).find("0123")
    assert not kept or database.read_bytes() == kept
