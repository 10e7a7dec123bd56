"""A database made anew from the shard files, each of which says what it belongs to."""

from __future__ import annotations

__all__ = ["Repaired", "repair"]

import json
import sqlite3
from contextlib import ExitStack, closing
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path

from tmifpe.run.shard import ShardResult
from tmifpe.run.spec import Plan, RunSpec
from tmifpe.store.errors import StoreError, explained
from tmifpe.store.files import About, attempts_on_disk, read_shard, run_folder, shard_files
from tmifpe.store.lock import RunLock
from tmifpe.store.recorder import insert_outcomes
from tmifpe.store.rows import StoredRun, read_runs
from tmifpe.store.schema import DATABASE, connect, transaction


@dataclass(frozen=True)
class Repaired:
    """What came back, where the damaged database is kept, and the shard files that could not be read."""

    runs: int
    shards: int
    kept: Path | None
    unreadable: tuple[str, ...]


def repair(folder: Path) -> Repaired:
    """Set the database aside and rebuild it from the shards. Runs come back unfinished: asking for one again takes
    all its shards from the store and finishes it."""
    if not folder.is_dir():
        raise StoreError(f"there is no run store at {folder}")
    with explained(folder), ExitStack() as held:
        found = list(attempts_on_disk(folder))
        # Also of runs that have no shard yet: whoever writes to the database must not lose it from under the feet.
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
                        added += _add(connection, folder, key, attempt, path)
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


def _add(connection: sqlite3.Connection, folder: Path, key: str, attempt: int, path: Path) -> bool:
    shard, about, digest = read_shard(path)
    if (about.key, about.attempt) != (key, attempt) or path.stem != f"{shard.shard:06d}":
        raise StoreError(f"{path} belongs to run {about.key}-{about.attempt}, shard {shard.shard}, and is left alone")
    plan = _checked(about, shard, path)
    with transaction(connection):
        run = _run(connection, folder, about, plan)
        session = _session(connection, run, about)
        insert_outcomes(connection, run, shard, session, digest)
    return True


def _checked(about: About, shard: ShardResult, path: Path) -> Plan:
    try:
        plan, spec = Plan(**about.plan), RunSpec.from_dict(about.spec)
        fits = 0 <= shard.shard < len(plan) and len(plan.positions(shard.shard)) == len(shard.outcomes)
        fits = fits and spec.key() == about.key and isinstance(about.started, str)
    except (TypeError, KeyError, ValueError, AttributeError, OverflowError, RecursionError) as error:
        raise StoreError(f"{path} is damaged ({error})") from error
    if not fits:
        raise StoreError(f"{path} does not fit the run that it names")
    return plan


def _run(connection: sqlite3.Connection, folder: Path, about: About, plan: Plan) -> StoredRun:
    connection.execute(
        "INSERT OR IGNORE INTO runs (key, attempt, spec, n, batch_size, shard_size, started) "
        "VALUES (?, ?, ?, ?, ?, ?, ?)",
        (about.key, about.attempt, json.dumps(about.spec), plan.n, plan.batch_size, plan.shard_size, about.started),
    )
    return next(run for run in read_runs(connection, folder, about.key) if run.attempt == about.attempt)


def _session(connection: sqlite3.Connection, run: StoredRun, about: About) -> int | None:
    """The session of that software and machine, made if it is the first shard of it."""
    what = (run.id, json.dumps(about.versions), json.dumps(about.machine))
    row = connection.execute("SELECT id FROM sessions WHERE run = ? AND versions = ? AND machine = ?", what).fetchone()
    if row is not None:
        return row[0]
    made = connection.execute(
        "INSERT INTO sessions (started, run, versions, machine) VALUES (?, ?, ?, ?)", (about.started, *what)
    )
    return made.lastrowid
