"""From rows of the database to the types of an evaluation."""

from __future__ import annotations

__all__ = [
    "Session",
    "StoredRun",
    "read_runs",
    "read_sessions",
    "read_shards",
    "run_at",
    "stored_shards",
    "transferred_of",
]

import json
import math
import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from tmifpe.attacks.loop.queries import Tally
from tmifpe.run.evidence.evidence import evidence_of
from tmifpe.run.evidence.repair import Repair
from tmifpe.run.outcomes import Outcomes, as_columns
from tmifpe.run.shard import ShardResult
from tmifpe.run.spec import Plan, RunSpec
from tmifpe.run.verify import Transferred
from tmifpe.store.columns import columns_digest, listed_columns
from tmifpe.store.errors import StoreError, damaged
from tmifpe.store.stages import read_stages

_RUNS = """
    SELECT id, key, attempt, attempt < (SELECT max(attempt) FROM runs WHERE key = r.key), spec,
        plan, n, batch_size, shard_size, started, finished, result,
        (SELECT group_concat(shard) FROM shards WHERE run = r.id),
        (SELECT total(seconds) FROM shards WHERE run = r.id)
    FROM runs r """


@dataclass(frozen=True)
class StoredRun:
    """A run as the store knows it. `done` examples have an outcome; `result` is its JSON once it is finished."""

    id: int
    key: str
    attempt: int
    superseded: bool
    """Whether it was repeated with --fresh, so that the same request no longer returns this one."""
    spec: RunSpec
    plan: Plan
    started: str
    finished: str | None
    result: dict[str, Any] | None = field(repr=False)
    done: int
    seconds: float
    knows_cut: bool
    """Whether it was checked if the model is randomised, and so if its spec needs a cut; 0.1.0 did not check."""

    @property
    def name(self) -> str:
        """What the command line calls it: the key, with the attempt where a later one has taken its place."""
        return f"{self.key}.{self.attempt}" if self.superseded else self.key

    def to_json(self) -> dict[str, Any]:
        return {
            "run": self.name,
            "key": self.key,
            "attempt": self.attempt,
            "superseded": self.superseded,
            "model": self.spec.model,
            "data": self.spec.data,
            "norm": self.spec.threat.norm,
            "eps": self.spec.threat.eps,
            "attacks": list(self.spec.attacks),
            "targets": self.spec.targets,
            "mode": self.spec.mode,
            "precision": self.spec.precision,
            "eot": self.spec.eot,
            "verify": self.spec.verify,
            "seed": self.spec.seed,
            "n": self.plan.n,
            "done": self.done,
            "started": self.started,
            "finished": self.finished,
            "seconds": self.seconds,
            "robust_accuracy": self.result["robust_accuracy"] if self.result else None,
        }


@dataclass(frozen=True)
class Session:
    """A process that worked on a run, and how many shards it finished."""

    started: str
    versions: dict[str, str]
    machine: dict[str, str]
    shards: int


def read_runs(connection: sqlite3.Connection, folder: Path, key: str | None = None) -> list[StoredRun]:
    """All runs, or all attempts at one, oldest first."""
    if key is None:
        rows = connection.execute(_RUNS + "ORDER BY id")
    else:
        rows = connection.execute(_RUNS + "WHERE key = ? ORDER BY attempt", (key,))
    return [_run(row, folder) for row in rows]


def run_at(connection: sqlite3.Connection, folder: Path, key: str) -> StoredRun | None:
    """The attempt that counts."""
    attempts = read_runs(connection, folder, key)
    return attempts[-1] if attempts else None


def _run(row: tuple[Any, ...], folder: Path) -> StoredRun:
    run, key, attempt, superseded, spec, plan, *sizes, started, finished, result, shards, seconds = row
    try:
        written = json.loads(spec)
        read = RunSpec.from_dict(written)
        _check_text(key, started, "" if finished is None else finished, *read.attacks, *read.model_options)
        _check_text(*(getattr(read, entry.name) for entry in fields(RunSpec) if entry.type == "str"))
        n, batch, size = map(int, sizes)
        cut = Plan(n, batch, size) if plan is None else Plan.from_dict(json.loads(plan))  # none: by 0.1.0
        return StoredRun(
            id=int(run),
            key=key,
            attempt=int(attempt),
            superseded=bool(superseded),
            spec=read,
            plan=cut,
            started=started,
            finished=finished,
            result=None if result is None else _summary(json.loads(result)),
            done=sum(len(cut.positions(int(shard))) for shard in (shards or "").split(",") if shard),
            seconds=_finite(seconds),
            knows_cut="cut" in written,
        )
    except _UNREADABLE as error:
        raise StoreError(damaged(folder, f"run {run} cannot be read")) from error


_UNREADABLE = (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError)
"""What a database can raise that holds other kinds of values than were stored."""


def _check_text(*values: object) -> None:
    if not all(isinstance(value, str) for value in values):
        raise TypeError("text is expected")


def _finite(value: Any) -> float:
    if not math.isfinite(value):
        raise ValueError("a finite number is expected")
    return float(value)


_LISTS = ("files", "class_names", "checks_cut", "notes")


def _summary(plain: Any) -> dict[str, Any]:
    """The JSON of a finished run, if what is read out of it again is what was written."""
    if not 0 <= float(plain["robust_accuracy"]) <= 1 or int(plain["check_forwards"]) < 0:
        raise ValueError("no accuracy")
    for flag in plain["flags"]:
        _check_text(flag["name"], flag["seen"], flag["advice"])
        if len(flag) != 3:
            raise ValueError("no flag")
    _check_text(*(text for name in _LISTS for text in plain.get(name, ())))
    if not all(0 <= float(value) <= 1 for value in plain.get("repeated", ())):
        raise ValueError("no accuracy")
    evidence_of(plain)
    transferred_of(plain)
    _ = [Repair.from_json(one) for one in plain.get("repairs", ())]
    return dict(plain)


def transferred_of(plain: dict[str, Any]) -> Transferred | None:
    """What was found of given examples, if a run was asked for that."""
    return Transferred.from_json(plain["transfer"]) if "transfer" in plain else None


def stored_shards(connection: sqlite3.Connection, run: StoredRun, folder: Path) -> dict[int, str]:
    """The finished shards in order, and the hash of the outcomes of each."""
    rows = connection.execute("SELECT shard, digest FROM shards WHERE run = ? ORDER BY shard", (run.id,))
    try:
        return {int(shard): str(found) for shard, found in rows.fetchall()}
    except _UNREADABLE as error:
        raise StoreError(damaged(folder, f"the shards of run {run.name} cannot be read")) from error


def read_shards(connection: sqlite3.Connection, run: StoredRun, folder: Path) -> Iterator[ShardResult]:
    """The finished shards without their adversarial examples, each checked against its hash."""
    costs = connection.execute(
        "SELECT shard, forwards, backwards, seconds, digest, columns, stages FROM shards WHERE run = ? ORDER BY shard",
        (run.id,),
    ).fetchall()
    for shard, forwards, backwards, seconds, expected, listed, staged in costs:
        try:
            positions = run.plan.positions(int(shard))
            columns = _read_columns(connection, run, positions, listed_columns(listed))
            outcomes = Outcomes.of_columns(columns)
            cost = Tally(int(forwards), int(backwards))
            stages = read_stages(json.loads(staged) if staged else None)
            read = ShardResult(int(shard), outcomes, None, cost, _finite(seconds), stages)
        except _UNREADABLE as error:
            raise StoreError(damaged(folder, f"shard {shard} of run {run.name} cannot be read")) from error
        if not 0 <= read.shard < len(run.plan) or len(outcomes) != len(positions) or not outcomes.is_table():
            raise StoreError(damaged(folder, f"shard {shard} of run {run.name} is not one of its shards"))
        if columns_digest(columns) != expected:
            raise StoreError(damaged(folder, f"shard {shard} of run {run.name} does not match its hash"))
        yield read


def _read_columns(
    connection: sqlite3.Connection, run: StoredRun, positions: range, dtypes: dict[str, str]
) -> dict[str, NDArray[Any]]:
    names = ", ".join(f'outcomes."{name}"' for name in dtypes)
    rows = connection.execute(
        f"SELECT {names} FROM outcomes WHERE run = ? AND position >= ? AND position < ? ORDER BY position",  # noqa: S608
        (run.id, positions.start, positions.stop),
    )
    return as_columns(rows.fetchall(), dtypes)


def read_sessions(connection: sqlite3.Connection, run: StoredRun, folder: Path) -> list[Session]:
    rows = connection.execute(
        "SELECT started, versions, machine, (SELECT count(*) FROM shards WHERE session = s.id) "
        "FROM sessions s WHERE run = ? ORDER BY id",
        (run.id,),
    )
    try:
        return [_session(*row) for row in rows.fetchall()]
    except _UNREADABLE as error:
        raise StoreError(damaged(folder, f"the sessions of run {run.name} cannot be read")) from error


def _session(started: Any, versions: Any, machine: Any, shards: Any) -> Session:
    told = dict(json.loads(versions)), dict(json.loads(machine))
    _check_text(started, *(text for each in told for pair in each.items() for text in pair))
    return Session(started, *told, int(shards))
