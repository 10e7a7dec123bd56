"""The database: its tables, its version, and how one of an older version is read and written."""

from __future__ import annotations

__all__ = ["DATABASE", "TABLES", "VERSION", "add_columns", "connect", "transaction"]

import sqlite3
import time
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path

from tmifpe.run.outcomes import Outcomes
from tmifpe.store.columns import sql_columns
from tmifpe.store.errors import StoreError

DATABASE = "runs.sqlite"
VERSION = 2
APPLICATION = 0x746D6966
"""Spells `tmif` in the file's header, so that no other program's database is ever taken for a run store."""
WAIT_SECONDS = 10.0

_OUTCOMES = sql_columns(Outcomes.dtypes())

TABLES = (
    # The same request repeated with --fresh is another attempt; the highest attempt is the one that counts.
    # `plan` is JSON. Rows of 0.1.0 have n, batch_size and shard_size instead, which therefore cannot go away.
    """CREATE TABLE runs (
        id INTEGER PRIMARY KEY, key TEXT NOT NULL, attempt INTEGER NOT NULL, spec TEXT NOT NULL,
        n INTEGER NOT NULL, batch_size INTEGER NOT NULL, shard_size INTEGER NOT NULL,
        started TEXT NOT NULL, finished TEXT, result TEXT, plan TEXT, UNIQUE (key, attempt))""",
    # A process that worked on a run, with what it worked with: resuming may happen on another machine.
    """CREATE TABLE sessions (
        id INTEGER PRIMARY KEY, run INTEGER NOT NULL REFERENCES runs ON DELETE CASCADE,
        started TEXT NOT NULL, versions TEXT NOT NULL, machine TEXT NOT NULL)""",
    # `columns` lists what the digest covers; NULL is the list of 0.1.0. `stages` is JSON, NULL where unknown.
    """CREATE TABLE shards (
        run INTEGER NOT NULL REFERENCES runs ON DELETE CASCADE, shard INTEGER NOT NULL,
        session INTEGER REFERENCES sessions ON DELETE SET NULL,
        forwards INTEGER NOT NULL, backwards INTEGER NOT NULL, seconds REAL NOT NULL, digest TEXT NOT NULL,
        columns TEXT, stages TEXT, PRIMARY KEY (run, shard)) WITHOUT ROWID""",
    # No foreign key: it would be checked for each of very many rows. A trigger removes them with their run.
    f"""CREATE TABLE outcomes (
        run INTEGER NOT NULL, position INTEGER NOT NULL,
        {", ".join(f'"{name}" {kind}' for name, kind in _OUTCOMES.items())},
        PRIMARY KEY (run, position)) WITHOUT ROWID""",
    "CREATE TRIGGER removed AFTER DELETE ON runs BEGIN DELETE FROM outcomes WHERE run = old.id; END",
)

LATER: Mapping[str, Mapping[str, str]] = {
    "runs": {"plan": "TEXT"},
    "shards": {"columns": "TEXT", "stages": "TEXT"},
    "outcomes": _OUTCOMES,
}
"""Columns that an older database may lack, by table. They are added when it is written and read as NULL until then,
so that a new one needs an entry here and no migration; a new column of `Outcome` does not even need that."""


def connect(folder: Path, *, write: bool) -> sqlite3.Connection:
    """The database of a store. To write to it makes it if need be and brings it to the current version; to read it
    changes nothing, whatever its version."""
    path = folder / DATABASE
    if path.is_symlink():
        raise StoreError(f"{path} is a symbolic link; a run store keeps its files in itself")
    if path.exists() and not path.is_file():  # to open a pipe would be to wait for ever
        raise StoreError(f"{path} is not a file; choose another store with `store=DIR`")
    if write:
        folder.mkdir(parents=True, exist_ok=True)
    elif not path.is_file():
        raise StoreError(f"there is no run store at {folder}; tmifpe evaluate writes one, `store=DIR` names another")
    if write and path.exists():
        with closing(_readable(path)) as looked_at:  # to write is to change the file, even if it is not ours
            _version(looked_at, folder)
    connection = _writable(path) if write else _readable(path)
    try:
        found = _version(connection, folder)
        if not write and found < 0:  # its process was killed before it made the tables
            connection.close()
            connection = sqlite3.connect(":memory:", isolation_level=None)
            _bring_up(connection, folder)
        elif not write:
            _show_missing(connection)
        elif found != VERSION or any(_missing(connection, table, LATER[table]) for table in LATER):
            _bring_up(connection, folder)
        connection.execute("PRAGMA foreign_keys = ON")
        connection.execute("PRAGMA trusted_schema = OFF")  # a store may come from elsewhere
    except BaseException:
        connection.close()
        raise
    return connection


def add_columns(connection: sqlite3.Connection, table: str, wanted: Mapping[str, str]) -> None:
    """Add those of the columns, given by name and SQL type, that the table lacks."""
    for name in _missing(connection, table, wanted):
        connection.execute(f'ALTER TABLE {table} ADD COLUMN "{name}" {wanted[name]}')


@contextmanager
def transaction(connection: sqlite3.Connection) -> Iterator[None]:
    """All of it or nothing, whatever ends the process."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


def _writable(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(path, timeout=WAIT_SECONDS, isolation_level=None)
    until = time.monotonic() + WAIT_SECONDS
    while True:  # the switch to WAL does not wait by itself when another process makes the same switch
        try:
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("PRAGMA synchronous = FULL")
            return connection
        except sqlite3.Error as error:
            if "locked" not in str(error) or time.monotonic() > until:
                connection.close()
                raise
            time.sleep(0.05)


def _readable(path: Path) -> sqlite3.Connection:
    """Read-only; on a medium that cannot be written at all, SQLite must be told that nobody else writes either."""
    uri = path.absolute().as_uri() + "?mode=ro"
    connection = sqlite3.connect(uri, uri=True, timeout=WAIT_SECONDS, isolation_level=None)
    try:
        connection.execute("SELECT 1 FROM sqlite_master").fetchone()
        return connection
    except sqlite3.OperationalError as error:
        connection.close()
        log = path.with_name(path.name + "-wal")
        if "unable to open" not in str(error) or (log.exists() and log.stat().st_size):
            raise
    return sqlite3.connect(uri + "&immutable=1", uri=True, isolation_level=None)


def _version(connection: sqlite3.Connection, folder: Path) -> int:
    """The version of the database, -1 for one that is still empty."""
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    (application,) = connection.execute("PRAGMA application_id").fetchone()
    (tables,) = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    if not tables and not version:
        return -1
    if application != APPLICATION:
        raise StoreError(f"{folder / DATABASE} is a database of another program, not a run store")
    if version > VERSION:
        raise StoreError(
            f"the run store {folder} was written by a newer tmifpe (schema {version}, this one knows {VERSION}); "
            "upgrade tmifpe or choose another store with `store=DIR`"
        )
    return version


def _bring_up(connection: sqlite3.Connection, folder: Path) -> None:
    """Make the tables, or add what they lack, in one transaction."""
    with transaction(connection):
        if _version(connection, folder) < 0:  # again: another process may have done it while this one waited
            for statement in TABLES:
                connection.execute(statement)
        for table, columns in LATER.items():
            add_columns(connection, table, columns)
        connection.execute(f"PRAGMA application_id = {APPLICATION}")
        connection.execute(f"PRAGMA user_version = {VERSION}")


def _show_missing(connection: sqlite3.Connection) -> None:
    """Let an older database that is only read look like a current one: a view, seen by this connection alone, takes
    the place of a table. Outcomes need none, since each shard lists the columns it has."""
    connection.execute("PRAGMA temp_store = MEMORY")
    for table in ("runs", "shards"):
        if missing := _missing(connection, table, LATER[table]):
            nulls = ", ".join(f'NULL AS "{name}"' for name in missing)
            connection.execute(f"CREATE TEMP VIEW {table} AS SELECT *, {nulls} FROM main.{table}")  # noqa: S608


def _missing(connection: sqlite3.Connection, table: str, wanted: Mapping[str, str]) -> list[str]:
    there = {row[1] for row in connection.execute(f"PRAGMA table_info({table})")}
    return [name for name in wanted if name not in there]
