"""Shards that could not be computed, with the reason, until they are."""

from __future__ import annotations

__all__ = ["forget_failure", "keep_failure", "read_failures"]

import sqlite3
from pathlib import Path

from tmifpe.run.shard import ShardFailure
from tmifpe.store.errors import StoreError, damaged
from tmifpe.store.rows import StoredRun

# Made when the first shard fails, so that a store without failures stays as every version knows it.
_TABLE = """CREATE TABLE IF NOT EXISTS failures (
    run INTEGER NOT NULL REFERENCES runs ON DELETE CASCADE, shard INTEGER NOT NULL,
    attempts INTEGER NOT NULL, error TEXT NOT NULL, traceback TEXT NOT NULL,
    PRIMARY KEY (run, shard)) WITHOUT ROWID"""


def keep_failure(connection: sqlite3.Connection, run: StoredRun, failure: ShardFailure) -> None:
    """Inside the caller's transaction; a later failure of the same shard takes its place."""
    connection.execute(_TABLE)
    connection.execute(
        "INSERT OR REPLACE INTO failures (run, shard, attempts, error, traceback) VALUES (?, ?, ?, ?, ?)",
        (run.id, failure.shard, failure.attempts, failure.error, failure.traceback),
    )


def forget_failure(connection: sqlite3.Connection, run: StoredRun, shard: int) -> None:
    """Inside the caller's transaction: the shard has been computed after all."""
    if _there(connection):
        connection.execute("DELETE FROM failures WHERE run = ? AND shard = ?", (run.id, shard))


def read_failures(connection: sqlite3.Connection, run: StoredRun, folder: Path) -> list[ShardFailure]:
    if not _there(connection):
        return []
    rows = connection.execute(
        "SELECT shard, attempts, error, traceback FROM failures WHERE run = ? ORDER BY shard", (run.id,)
    ).fetchall()
    for shard, attempts, *texts in rows:
        if not (isinstance(shard, int) and isinstance(attempts, int) and all(isinstance(text, str) for text in texts)):
            raise StoreError(damaged(folder, f"the failures of run {run.name} cannot be read"))
    return [ShardFailure(*row) for row in rows]


def _there(connection: sqlite3.Connection) -> bool:
    found = connection.execute("SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = 'failures'")
    return found.fetchone() is not None
