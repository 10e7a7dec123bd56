"""Putting runs and shards into the database: shards that were just computed, and shards that are there as files."""

from __future__ import annotations

__all__ = ["adopt", "discard_shard", "insert_run", "insert_shard", "read_fitting"]

import json
import sqlite3
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from tmifpe.run.shard import ShardResult
from tmifpe.run.spec import Plan, RunSpec
from tmifpe.store.columns import columns_digest, list_columns, listed_columns, sql_columns
from tmifpe.store.errors import StoreError
from tmifpe.store.files import About, ShardFile, read_shard
from tmifpe.store.rows import StoredRun
from tmifpe.store.schema import add_columns
from tmifpe.store.stages import plain_stages


def insert_run(
    connection: sqlite3.Connection, key: str, attempt: int, spec: dict[str, Any], plan: dict[str, Any], started: str
) -> None:
    """The row of a run, unless it is there, inside the caller's transaction."""
    connection.execute(
        "INSERT OR IGNORE INTO runs (key, attempt, spec, plan, n, batch_size, shard_size, started) "
        "VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
        (key, attempt, json.dumps(spec), json.dumps(plan), plan["n"], plan["batch_size"], plan["shard_size"], started),
    )


def insert_shard(
    connection: sqlite3.Connection,
    run: StoredRun,
    result: ShardResult,
    columns: Mapping[str, NDArray[Any]],
    session: int | None,
) -> None:
    """The rows of one shard, with these columns, inside the caller's transaction."""
    tally, hashed = result.tally, (columns_digest(columns), list_columns(columns))
    stages = json.dumps(plain_stages(result.stages))
    connection.execute(
        "INSERT INTO shards (run, shard, session, forwards, backwards, seconds, digest, columns, stages) "
        "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (run.id, result.shard, session, tally.forwards, tally.backwards, result.seconds, *hashed, stages),
    )
    names = ", ".join(f'"{name}"' for name in columns)
    marks = ", ".join("?" * (2 + len(columns)))
    connection.executemany(
        f"INSERT INTO outcomes (run, position, {names}) VALUES ({marks})",  # noqa: S608 - checked names
        _numbered(run, result.shard, columns),
    )


def discard_shard(connection: sqlite3.Connection, run: StoredRun, shard: int) -> None:
    """Forget a shard and its rows, inside the caller's transaction."""
    positions = run.plan.positions(shard)
    connection.execute("DELETE FROM shards WHERE run = ? AND shard = ?", (run.id, shard))
    connection.execute(
        "DELETE FROM outcomes WHERE run = ? AND position >= ? AND position < ?",
        (run.id, positions.start, positions.stop),
    )


def read_fitting(path: Path, key: str, attempt: int) -> tuple[ShardFile, RunSpec, Plan]:
    """The shard in a file of this run, by any version; a StoreError if it is damaged or not of this run."""
    file = read_shard(path)
    about, shard = file.about, file.result
    if (about.key, about.attempt) != (key, attempt) or path.stem != f"{shard.shard:06d}":
        raise StoreError(f"{path} belongs to run {about.key}-{about.attempt}, shard {shard.shard}, and is left alone")
    try:
        spec, plan = RunSpec.from_dict(about.spec), Plan.from_dict(about.plan)
        fits = 0 <= shard.shard < len(plan) and len(plan.positions(shard.shard)) == len(shard.outcomes)
        # Another version may make another key of this spec, so a header with a hash is believed; one without is of
        # 0.1.0, whose key is the same today.
        fits = fits and isinstance(about.started, str) and (file.hashed or about.key == spec.key())
    except (TypeError, KeyError, ValueError, AttributeError, OverflowError, RecursionError) as error:
        raise StoreError(f"{path} is damaged ({error})") from error
    if not fits:
        raise StoreError(f"{path} does not fit the run that it names")
    return file, spec, plan


def adopt(connection: sqlite3.Connection, run: StoredRun, file: ShardFile) -> None:
    """Insert a shard that is there as a file, inside the caller's transaction."""
    # Also columns that only a later version knows: the hash covers them, and nothing of the file is lost.
    add_columns(connection, "outcomes", sql_columns(listed_columns(list_columns(file.columns))))
    insert_shard(connection, run, file.result, file.columns, _session(connection, run, file.about))


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


def _numbered(run: StoredRun, shard: int, columns: Mapping[str, NDArray[Any]]) -> Iterator[tuple[object, ...]]:
    """Rows of plain numbers: a bool would take SQLite's slow way of adapting unknown types."""
    positions = run.plan.positions(shard)
    numbers = [(values.view("uint8") if values.dtype == bool else values).tolist() for values in columns.values()]
    return zip([run.id] * len(positions), positions, *numbers, strict=True)
