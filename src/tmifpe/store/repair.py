"""A database made anew from the shard files, each of which says what it belongs to."""

from __future__ import annotations

__all__ = ["Repaired", "repair"]

import sqlite3
from contextlib import ExitStack, closing
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path

from tmifpe.store.errors import StoreError, explained
from tmifpe.store.files import attempts_on_disk, run_folder, shard_files
from tmifpe.store.lock import RunLock
from tmifpe.store.rows import read_runs
from tmifpe.store.schema import DATABASE, connect, transaction
from tmifpe.store.shards import adopt, insert_run, read_fitting


@dataclass(frozen=True)
class Repaired:
    """What came back, where the damaged database is kept, and the shard files that could not be read."""

    runs: int
    shards: int
    kept: Path | None
    unreadable: tuple[str, ...]


def repair(folder: Path) -> Repaired:
    """Set the database aside and rebuild it from the shards. Runs come back unfinished: requesting one again takes
    all its shards from the store and finishes it."""
    if not folder.is_dir():
        raise StoreError(f"there is no run store at {folder}")
    with explained(folder), ExitStack() as held:
        found = list(attempts_on_disk(folder))
        # Also for runs without a shard yet: a process that writes to the database must not lose it while it runs.
        running = {path.stem for path in (folder / "locks").glob("*.lock")}
        for key in sorted({key for key, _ in found} | running):
            lock = RunLock(folder / "locks" / f"{key}.lock")
            lock.acquire()
            held.callback(lock.release)
        kept = _set_aside(folder)
        unreadable: list[str] = []
        shards = runs = 0
        with closing(connect(folder, write=True)) as connection:
            for key, attempt in found:
                added = 0
                for path in shard_files(run_folder(folder, key, attempt)).values():
                    try:
                        _add(connection, folder, key, attempt, path)
                        added += 1
                    except StoreError as error:
                        unreadable.append(str(error))
                shards, runs = shards + added, runs + bool(added)
        return Repaired(runs, shards, kept, tuple(unreadable))


def _set_aside(folder: Path) -> Path | None:
    """Rename the database and what SQLite keeps beside it; nothing is deleted."""
    if not (folder / DATABASE).exists():
        return None
    stamp = datetime.now(timezone.utc).strftime("%Y%m%dT%H%M%S%f")
    kept = folder / f"damaged-{stamp}-{DATABASE}"
    for suffix in ("-wal", "-shm", ""):
        part = folder / (DATABASE + suffix)
        if part.exists():
            part.rename(kept.with_name(kept.name + suffix))
    return kept


def _add(connection: sqlite3.Connection, folder: Path, key: str, attempt: int, path: Path) -> None:
    file, _, _ = read_fitting(path, key, attempt)
    with transaction(connection):
        insert_run(connection, key, attempt, file.about.spec, file.about.plan, file.about.started)
        run = next(run for run in read_runs(connection, folder, key) if run.attempt == attempt)
        adopt(connection, run, file)
