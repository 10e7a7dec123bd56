"""One run out of the stores of its parts: what array jobs computed, each in a store of its own."""

from __future__ import annotations

__all__ = ["Merged", "merge"]

import json
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, fields, replace
from datetime import datetime, timezone
from pathlib import Path

from tmifpe.attacks.loop.queries import Tally
from tmifpe.core.files import write_durably
from tmifpe.run.outcomes import Mark
from tmifpe.run.result import Result
from tmifpe.run.shard import ShardFailure
from tmifpe.run.spec import FailedExits, RunSpec
from tmifpe.store.errors import StoreError, explained
from tmifpe.store.failures import forget_failure, keep_failure
from tmifpe.store.files import read_shard, run_folder, shard_files
from tmifpe.store.lock import RunLock
from tmifpe.store.rows import StoredRun, read_runs, stored_shards
from tmifpe.store.schema import DATABASE, connect, transaction
from tmifpe.store.shards import adopt, insert_run, read_fitting
from tmifpe.store.store import Store


@dataclass(frozen=True)
class Merged:
    """A run in the store that it was merged into, and what the parts had of it."""

    result: Result
    key: str
    added: int
    missing: tuple[int, ...]
    """Shards that no part has."""
    twice: tuple[int, ...]
    """Shards that several parts have, with the same outcomes: they count once."""
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class _Source:
    folder: Path
    run: StoredRun
    failures: tuple[ShardFailure, ...]

    @property
    def shards(self) -> dict[int, Path]:
        return shard_files(run_folder(self.folder, self.run.key, self.run.attempt))


def merge(folders: Sequence[str | Path], into: str | Path) -> list[Merged]:
    """Copy the shards of every run that these stores hold to `into`, which may have some already.

    Checked before anything is written: that the stores belong together (each shares a run with another), that a run
    is cut alike everywhere, and that shards which are there twice have the same outcomes. What is merged is finished
    if nothing is missing; parts are not checked, so that asking for the run again makes the checks.
    """
    target = Store(into)
    named = [Store(folder).folder for folder in folders]
    named += [target.folder] if (target.folder / DATABASE).exists() else []
    sources = [source for folder in _different(named) for source in _sources(folder)]
    _check_together(_different([Store(folder).folder for folder in folders]), sources)
    by_key: dict[str, list[_Source]] = {}
    for source in sources:
        by_key.setdefault(source.run.key, []).append(source)
    wanted = {source.run.key for source in sources if source.folder != target.folder} or set(by_key)
    twice = {key: _check_alike(by_key[key]) for key in wanted}
    return [_merge_run(target, by_key[key], twice[key]) for key in by_key if key in wanted]


def _different(folders: Sequence[Path]) -> list[Path]:
    return list({folder.resolve(): folder for folder in folders}.values())


def _sources(folder: Path) -> list[_Source]:
    store = Store(folder)
    if not (folder / DATABASE).exists():
        raise StoreError(f"there is no run store at {folder}; name the folders that the jobs wrote")
    return [_Source(folder, run, store.result(run).failures) for run in store.runs(superseded=False)]


def _check_together(folders: Sequence[Path], sources: Sequence[_Source]) -> None:
    """`StoreError` if a store shares no run with the others; what they disagree in."""
    held = {folder: {s.run.key: s.run for s in sources if s.folder == folder} for folder in folders}
    for folder, runs in held.items():
        if not runs:
            raise StoreError(f"the run store {folder} holds no run; nothing was merged")
        others = {key: run for other, has in held.items() if other != folder for key, run in has.items()}
        if others and not set(runs) & set(others):
            mine, theirs = next(iter(runs.values())).spec, next(iter(others.values())).spec
            raise StoreError(
                f"{folder} does not belong to the others: its run differs in {_difference(mine, theirs)}; nothing was "
                "merged"
            )


def _difference(mine: RunSpec, theirs: RunSpec) -> str:
    named = [field.name for field in fields(RunSpec) if getattr(mine, field.name) != getattr(theirs, field.name)]
    words = {
        "model_identity": "the model",
        "data_identity": "the data",
        "subset": "the examples",
        "threat": "the threat",
    }
    said = dict.fromkeys(
        words.get(name, name) for name in named if name not in ("model", "model_options", "data", "total")
    )
    return ", ".join(said) or "its key"


def _check_alike(sources: Sequence[_Source]) -> tuple[int, ...]:
    """The shards that are there twice; `StoreError` if they, or the cuts, differ."""
    first = sources[0]
    for other in sources[1:]:
        if other.run.plan != first.run.plan:
            raise StoreError(
                f"{first.folder} and {other.folder} cut run {first.run.key} differently: {_cut(first)} and "
                f"{_cut(other)}; nothing was merged"
            )
        if other.run.attempt != first.run.attempt:
            raise StoreError(
                f"{first.folder} holds attempt {first.run.attempt} at run {first.run.key}, {other.folder} attempt "
                f"{other.run.attempt}; nothing was merged"
            )
    twice: list[int] = []
    for shard in range(len(first.run.plan)):
        paths = [source.shards[shard] for source in sources if shard in source.shards]
        if len({read_shard(path).digest for path in paths}) > 1:
            raise StoreError(
                f"shard {shard} of run {first.run.key} has different outcomes in {' and '.join(map(str, paths))}; "
                "nothing was merged"
            )
        twice += [shard] if len(paths) > 1 else []
    return tuple(twice)


def _cut(source: _Source) -> str:
    plan = source.run.plan
    return f"{plan.n} examples in shards of {plan.shard_size}, batches of {plan.batch_size}"


def _merge_run(target: Store, sources: Sequence[_Source], twice: tuple[int, ...]) -> Merged:
    key, attempt, folder = sources[0].run.key, sources[0].run.attempt, target.folder
    lock = RunLock(folder / "locks" / f"{key}.lock")
    added, torches = 0, set[str]()
    with explained(folder), closing(connect(folder, write=True)) as connection:
        lock.acquire()
        try:
            failed = _failed_exits(sources)
            for source in sources:
                for shard, path in source.shards.items():
                    file, _, _ = read_fitting(path, key, attempt)
                    torches.add(str(file.about.versions.get("torch", "")))
                    with transaction(connection):
                        insert_run(connection, key, attempt, file.about.spec, file.about.plan, file.about.started)
                        run = _run(connection, folder, key, attempt)
                        # Early exit is off for such a run: asked for again, it computes this shard anew.
                        stopped = failed is not None and file.result.outcomes.marked(Mark.STOPPED_EARLY)
                        if stopped or shard in stored_shards(connection, run, folder):
                            continue
                        place = run_folder(folder, key, attempt)
                        place.mkdir(parents=True, exist_ok=True)
                        write_durably(place / path.name, path.read_bytes())
                        adopt(connection, run, file)
                        forget_failure(connection, run, shard)
                        added += 1
            run = _run(connection, folder, key, attempt)
            if failed is not None:
                plan = json.dumps(replace(run.plan, failed_exits=failed).as_dict())
                with transaction(connection):
                    connection.execute("UPDATE runs SET plan = ? WHERE id = ?", (plan, run.id))
                run = _run(connection, folder, key, attempt)
            there = stored_shards(connection, run, folder)
            missing = tuple(shard for shard in range(len(run.plan)) if shard not in there)
            with transaction(connection):
                for failure in (failure for source in sources for failure in source.failures):
                    if failure.shard in missing:
                        keep_failure(connection, run, failure)
            result = target.result(run)
            if not missing and run.finished is None:
                with transaction(connection):
                    now = datetime.now(timezone.utc).isoformat(timespec="seconds")
                    told = json.dumps(result.to_json())
                    connection.execute("UPDATE runs SET finished = ?, result = ? WHERE id = ?", (now, told, run.id))
        finally:
            lock.release()
    versions = " and ".join(sorted(torches))
    notes = (f"its shards were computed with torch {versions}: last digits may differ",) if len(torches) > 1 else ()
    return Merged(result, key, added, missing, twice, notes)


def _failed_exits(sources: Sequence[_Source]) -> FailedExits | None:
    """What all parts together say of early exit: one wrong exit that a check found switches it off for the run."""
    known = next((source.run.plan.failed_exits for source in sources if source.run.plan.failed_exits), None)
    if known is not None:
        return known
    shards = {shard: path for source in sources for shard, path in source.shards.items()}
    found = [read_shard(path).result for path in shards.values()]
    wrong = sum(one.outcomes.marked(Mark.EXIT_WRONG) for one in found)
    if not wrong:
        return None
    lost = sum((one.tally for one in found if one.outcomes.marked(Mark.STOPPED_EARLY)), Tally())
    checked = sum(one.outcomes.marked(Mark.EXIT_CHECKED) for one in found)
    return FailedExits(checked, wrong, lost.forwards, lost.backwards)


def _run(connection: sqlite3.Connection, folder: Path, key: str, attempt: int) -> StoredRun:
    return next(run for run in read_runs(connection, folder, key) if run.attempt == attempt)
