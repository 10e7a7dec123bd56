"""The store as its user sees it: a folder of runs that can be listed, read, removed and resumed."""

from __future__ import annotations

__all__ = ["Store"]

import re
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path

from torch import Tensor

from tmifpe.attacks.loop.queries import Tally
from tmifpe.core.errors import InputError, shown
from tmifpe.run.evidence.evidence import evidence_of
from tmifpe.run.evidence.repair import Repair, repaired
from tmifpe.run.outcomes import Outcomes
from tmifpe.run.result import Flag, Result
from tmifpe.store.errors import StoreError, explained
from tmifpe.store.failures import read_failures
from tmifpe.store.files import read_adv, read_points, run_folder
from tmifpe.store.lock import RunLock
from tmifpe.store.recorder import StoreRecorder
from tmifpe.store.rows import (
    Session,
    StoredRun,
    read_runs,
    read_sessions,
    read_shards,
    stored_shards,
    transferred_of,
)
from tmifpe.store.schema import DATABASE, connect, transaction
from tmifpe.store.stages import read_stages

_NAME = re.compile(r"([0-9a-f]{4,16})(?:\.([0-9]{1,9}))?")


class Store:
    """A folder with one SQLite database and, beside it, one safetensors file per finished shard.

    >>> import tempfile, tmifpe
    >>> model, data = tmifpe.load_model("digits-robust"), tmifpe.load_data("digits", limit=8)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     once = tmifpe.evaluate(model, data, tmifpe.Threat("linf", 0.1), tmifpe.PGD(steps=5), store=folder)
    ...     again = tmifpe.evaluate(model, data, tmifpe.Threat("linf", 0.1), tmifpe.PGD(steps=5), store=folder)
    ...     once.resumed, again.resumed, len(Store(folder).runs())
    (0, 8, 1)
    """

    def __init__(self, folder: str | Path) -> None:
        try:
            self.folder = Path(folder).expanduser()
            self.folder.is_dir()
        except (OSError, ValueError, RuntimeError) as error:  # a name too long, with a null byte, or of no user
            raise StoreError(f"{shown(folder)} cannot be the folder of a run store: {error}") from None
        if not str(folder) or "\0" in str(folder):
            raise StoreError("a run store needs a folder; name one with `store=DIR`")

    def recorder(self, fresh: bool = False) -> StoreRecorder:
        """What `evaluate` writes to; with `fresh`, as a new attempt beside those that are there."""
        return StoreRecorder(self.folder, fresh)

    def runs(self, *, superseded: bool = True) -> list[StoredRun]:
        """Oldest first; `superseded` includes those that were repeated. A store that does not exist has no runs."""
        with explained(self.folder):
            if not (self.folder / DATABASE).exists():
                return []
        with self._reading() as connection:
            return [run for run in read_runs(connection, self.folder) if superseded or not run.superseded]

    def find(self, name: str) -> StoredRun:
        """The run of that key, or of the beginning of it (4 digits or more); KEY.2 is its second attempt."""
        match = _NAME.fullmatch(name)
        if match is None:
            raise InputError(f"{shown(name)} is not the name of a run; tmifpe runs list shows them")
        with self._reading() as connection:
            runs = [run for run in read_runs(connection, self.folder) if run.key.startswith(match[1])]
        found = [run for run in runs if (run.attempt == int(match[2]) if match[2] else not run.superseded)]
        if not found:
            raise InputError(f"there is no run {name} in {self.folder}; tmifpe runs list shows those that are")
        if len(found) > 1:
            raise InputError(f"{name} is the beginning of {len(found)} runs: {', '.join(run.name for run in found)}")
        return found[0]

    def result(self, run: StoredRun) -> Result:
        """What the run has found so far, as `evaluate` returns it, without the adversarial examples."""
        with self._reading() as connection:
            shards = list(read_shards(connection, run, self.folder))
            failures = tuple(read_failures(connection, run, self.folder))
        outcomes = Outcomes.concat([shard.outcomes for shard in shards])
        repairs = tuple(Repair.from_json(one) for one in (run.result or {}).get("repairs", ()))
        outcomes = repaired(outcomes, repairs, len(run.spec.attacks), run.spec.threat.eps)
        tally = sum((shard.tally for shard in shards), Tally())
        plain = run.result or {}
        flags = tuple(Flag(**flag) for flag in plain.get("flags", ()))
        checks = int(plain.get("check_forwards", 0))
        repeated = tuple(plain.get("repeated", ()))
        files, names = tuple(plain.get("files", ())), tuple(plain.get("class_names", ()))
        found = Result(
            run.spec,
            run.plan,
            outcomes,
            tally,
            run.seconds,
            len(outcomes),
            flags,
            checks,
            repeated=repeated,
            transferred=transferred_of(plain),
            files=files if len(files) == len(outcomes) else (),
            class_names=names,
            stages=read_stages(plain.get("stages")),
            key=run.key,
            checks_cut=tuple(plain.get("checks_cut", ())),
            notes=tuple(plain.get("notes", ())),
            missing=run.plan.n - len(outcomes),
            failures=failures,
            check_backwards=int(plain.get("check_backwards", 0)),
            check_seconds=float(plain.get("check_seconds", 0.0)),
            repairs=repairs,
        )
        return replace(found, **evidence_of(plain)._asdict())

    def adv(self, run: StoredRun) -> Iterator[Tensor]:
        """The adversarial examples of the finished shards in order, one shard at a time."""
        with self._reading() as connection:
            shards = stored_shards(connection, run, self.folder)
        folder = run_folder(self.folder, run.key, run.attempt)
        with explained(self.folder):
            points = read_points(folder) if run.result else {}
        for shard, expected in shards.items():
            with explained(self.folder):
                adv = read_adv(folder, shard, expected)
            for row, position in enumerate(run.plan.positions(shard)):
                if position in points:
                    adv[row] = points[position]
            yield adv

    def sessions(self, run: StoredRun) -> list[Session]:
        """The processes that worked on it: more than one where it was resumed."""
        with self._reading() as connection:
            return read_sessions(connection, run, self.folder)

    def remove(self, run: StoredRun) -> None:
        """Delete a run and its files; refused while a process works on it."""
        lock = RunLock(self.folder / "locks" / f"{run.key}.lock")
        with explained(self.folder), closing(connect(self.folder, write=True)) as connection:
            folder = run_folder(self.folder, run.key, run.attempt)
            lock.acquire()
            try:
                with transaction(connection):
                    connection.execute("DELETE FROM runs WHERE id = ?", (run.id,))
                if folder.exists():
                    shutil.rmtree(folder)
            finally:
                lock.release(remove=True)

    @contextmanager
    def _reading(self) -> Iterator[sqlite3.Connection]:
        with explained(self.folder), closing(connect(self.folder, write=False)) as connection:
            yield connection
