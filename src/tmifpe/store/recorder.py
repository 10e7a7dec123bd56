"""The recorder of an evaluation that writes to a store: one transaction per finished shard."""

from __future__ import annotations

__all__ = ["StoreRecorder"]

import json
import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from torch import Tensor

from tmifpe.run.environment import machine, versions
from tmifpe.run.evidence.evidence import STATED
from tmifpe.run.result import Result
from tmifpe.run.shard import ShardFailure, ShardResult
from tmifpe.run.spec import Plan, RunSpec
from tmifpe.store.errors import StoreError, damaged, explained
from tmifpe.store.failures import forget_failure, keep_failure
from tmifpe.store.files import (
    About,
    attempts_on_disk,
    clean,
    read_adv,
    read_points,
    run_folder,
    shard_files,
    write_points,
    write_shard,
)
from tmifpe.store.lock import RunLock
from tmifpe.store.rows import StoredRun, read_shards, run_at, stored_shards
from tmifpe.store.schema import DATABASE, connect, transaction
from tmifpe.store.shards import adopt, discard_shard, insert_run, insert_shard, read_fitting


class StoreRecorder:
    """For one evaluation. A finished run is only read; anything else is locked first, so that a run is worked on by
    one process at a time."""

    def __init__(self, folder: Path, fresh: bool = False) -> None:
        self._folder, self._fresh = folder, fresh
        self._connection: sqlite3.Connection | None = None
        self._lock: RunLock | None = None
        self._run: StoredRun | None = None
        self._session: int | None = None
        self._about: About | None = None

    def settled(self, spec: RunSpec, plan: Plan) -> RunSpec | None:
        if self._fresh or not (self._folder / DATABASE).exists():
            return None
        with explained(self._folder), closing(connect(self._folder, write=False)) as connection:
            for asked in (spec, replace(spec, cut=plan.cut)):
                run = run_at(connection, self._folder, asked.key())
                if run is not None and run.finished is not None and (run.knows_cut or run.plan == plan):
                    return asked
        return None

    def begin(self, spec: RunSpec, plan: Plan, device: str) -> Plan:
        with explained(self._folder):
            self._connection = connect(self._folder, write=True)
            self._run = self._current(spec)
            if self._run is None or self._run.finished is None:
                key = spec.key() if self._run is None else self._run.key
                self._lock = RunLock(self._folder / "locks" / f"{key}.lock")
                self._lock.acquire()
                self._run = self._current(spec)  # again: it may have been finished in between
        if self._run is None:
            with explained(self._folder):
                self._run = self._create(spec, plan)
        if self._run.finished is None:
            with explained(self._folder):
                self._open_session(self._run, device)
        return self._run.plan

    def key(self) -> str:
        return self._open[1].key

    def recall(self, with_adv: bool) -> Iterable[ShardResult]:
        connection, run = self._open
        folder = run_folder(self._folder, run.key, run.attempt)
        with explained(self._folder):
            digests = stored_shards(connection, run, self._folder)
            for shard in read_shards(connection, run, self._folder):
                if with_adv:
                    shard.adv = read_adv(folder, shard.shard, digests[shard.shard])
                yield shard

    def finished(self) -> dict[str, Any] | None:
        return self._open[1].result

    def points(self) -> Mapping[int, Tensor]:
        _, run = self._open
        with explained(self._folder):
            return read_points(run_folder(self._folder, run.key, run.attempt)) if run.result else {}

    def keep(self, points: Mapping[int, Tensor]) -> None:
        _, run = self._open
        with explained(self._folder):
            write_points(run_folder(self._folder, run.key, run.attempt), points)

    def replan(self, plan: Plan) -> None:
        connection, run = self._open
        if self._about is None:  # a finished run is only read
            return
        with explained(self._folder), transaction(connection):
            connection.execute("UPDATE runs SET plan = ? WHERE id = ?", (json.dumps(plan.as_dict()), run.id))
        self._run, self._about = replace(run, plan=plan), replace(self._about, plan=plan.as_dict())

    def discard(self, shards: Sequence[int]) -> None:
        connection, run = self._open
        if self._about is None:  # a finished run is only read
            return
        paths = shard_files(run_folder(self._folder, run.key, run.attempt))
        with explained(self._folder):
            with transaction(connection):
                for shard in shards:
                    discard_shard(connection, run, shard)
            for shard in shards:  # a file that is left, by a killed process, is adopted and discarded again
                paths[shard].unlink(missing_ok=True)

    def save(self, result: ShardResult) -> None:
        connection, run = self._open
        if self._about is None:
            raise StoreError(damaged(self._folder, f"run {run.name} is finished but shard {result.shard} is missing"))
        with explained(self._folder):
            # The file first: a row that is there speaks of a file that is there; a file too many is adopted.
            write_shard(run_folder(self._folder, run.key, run.attempt), self._about, result)
            with transaction(connection):
                insert_shard(connection, run, result, result.outcomes.arrays, self._session)
                forget_failure(connection, run, result.shard)

    def fail(self, failure: ShardFailure) -> None:
        connection, run = self._open
        with explained(self._folder), transaction(connection):
            keep_failure(connection, run, failure)

    def end(self, result: Result) -> None:
        connection, run = self._open
        # A finished run that is asked again keeps its result, unless more was checked or stated this time.
        before, now = run.result or {}, result.to_json()
        stated = {name: now[name] for name in STATED if name in now}
        if run.finished is None or result.check_forwards > before.get("check_forwards", 0):
            told = {name: before[name] for name in STATED if name in before} | now
        else:
            told = before | stated
        if told != before:
            with explained(self._folder), transaction(connection):
                connection.execute(
                    "UPDATE runs SET finished = ?, result = ? WHERE id = ?",
                    (run.finished or _now(), json.dumps(told), run.id),
                )

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
        if self._lock is not None:
            self._lock.release()
        self._connection = self._lock = None

    @property
    def _open(self) -> tuple[sqlite3.Connection, StoredRun]:
        if self._connection is None or self._run is None:
            raise StoreError(f"the run store {self._folder} was used before a run was begun")
        return self._connection, self._run

    def _current(self, spec: RunSpec) -> StoredRun | None:
        """The run to resume or return, under whichever of its keys it was stored."""
        assert self._connection is not None  # noqa: S101 - opened by begin
        for key in () if self._fresh else spec.keys():
            run = run_at(self._connection, self._folder, key)
            # 0.1.0 had no cut in its keys: its run is the same only if it was cut in the same way.
            if run is not None and spec.cut in ("", run.plan.cut):
                return run
        return None

    def _create(self, spec: RunSpec, plan: Plan) -> StoredRun:
        assert self._connection is not None  # noqa: S101 - opened by begin
        key = spec.key()
        # Folders count too: with its database lost, a store still keeps its shards, and `runs repair` finds them.
        taken = [attempt for found, attempt in attempts_on_disk(self._folder) if found == key]
        with transaction(self._connection):
            last = run_at(self._connection, self._folder, key)
            attempt = max([0 if last is None else last.attempt, *taken]) + 1
            insert_run(self._connection, key, attempt, spec.as_dict(), plan.as_dict(), _now())
        made = run_at(self._connection, self._folder, key)
        assert made is not None  # noqa: S101 - inserted above
        return made

    def _open_session(self, run: StoredRun, device: str) -> None:
        connection, _ = self._open
        folder = run_folder(self._folder, run.key, run.attempt)
        clean(folder, len(run.plan))
        with_what, where = versions(), machine(device)
        self._about = About(run.key, run.attempt, run.spec.as_dict(), run.plan.as_dict(), run.started, with_what, where)
        with transaction(connection):
            made = connection.execute(
                "INSERT INTO sessions (run, started, versions, machine) VALUES (?, ?, ?, ?)",
                (run.id, _now(), json.dumps(with_what), json.dumps(where)),
            )
            self._session = made.lastrowid
        self._adopt_orphans(run, folder)

    def _adopt_orphans(self, run: StoredRun, folder: Path) -> None:
        """Take over shards that were written but not committed, when a process was killed between the two."""
        connection, _ = self._open
        known = stored_shards(connection, run, self._folder)
        for shard, path in shard_files(folder).items():
            if shard not in known:
                with suppress(StoreError):  # what is damaged or of another run is computed, and written, anew
                    file, spec, plan = read_fitting(path, run.key, run.attempt)
                    if (spec, plan) == (run.spec, run.plan):
                        with transaction(connection):
                            adopt(connection, run, file)


def _now() -> str:
    return datetime.now(timezone.utc).isoformat(timespec="seconds")
