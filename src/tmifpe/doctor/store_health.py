"""The run store: where it is, whether it can be read and written. Nothing in it is changed."""

from __future__ import annotations

__all__ = ["find_store"]

import os
import sqlite3
import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

from tmifpe.core.errors import InputError
from tmifpe.doctor.diagnosis import Diagnosis

if TYPE_CHECKING:
    from tmifpe.store import Store

ABOUT = "store"


def find_store(folder: str) -> Iterator[Diagnosis]:
    """Where the store is, whether it can be written to, and whether its database is sound."""
    from tmifpe.store import Store
    from tmifpe.store.schema import DATABASE

    try:
        store = Store(folder)
    except InputError as error:
        yield Diagnosis(ABOUT, "place", "broken", str(error))
        return
    place = Path(os.path.abspath(store.folder))  # noqa: PTH100 - as it is written; a link stays a link
    known = (store.folder / DATABASE).exists() if store.folder.is_dir() else False
    yield Diagnosis(ABOUT, "place", "ok", f"{place}{'' if known else ' (none yet; the first run makes it)'}")
    yield _judged("writable", lambda: _write(store.folder, known))
    if known:
        yield _judged("database", lambda: _check(store))


def _judged(name: str, look: Callable[[], str]) -> Diagnosis:
    try:
        return Diagnosis(ABOUT, name, "ok", look())
    except InputError as error:
        return Diagnosis(ABOUT, name, "broken", str(error))


def _write(folder: Path, known: bool) -> str:
    """A file is made and removed where the store is or will be, and a transaction begun and given up."""
    from tmifpe.store.errors import explained
    from tmifpe.store.schema import DATABASE

    nearest = next(place for place in (folder, *folder.absolute().parents) if place.exists())
    with explained(folder):
        with tempfile.TemporaryFile(dir=nearest):
            pass
        if not known:
            return f"{nearest} can be written to"
        uri = (folder / DATABASE).absolute().as_uri() + "?mode=rw"
        with closing(sqlite3.connect(uri, uri=True, timeout=1.0, isolation_level=None)) as connection:
            try:
                connection.execute("BEGIN IMMEDIATE")
                connection.execute("ROLLBACK")
            except sqlite3.OperationalError as error:
                if "locked" not in str(error):
                    raise
                return "another process writes to it now"
    return "yes"


def _check(store: Store) -> str:
    from tmifpe.store.errors import StoreError, damaged, explained
    from tmifpe.store.schema import connect

    with explained(store.folder), closing(connect(store.folder, write=False)) as connection:
        (said,) = connection.execute("PRAGMA quick_check(1)").fetchone()
    if said != "ok":
        raise StoreError(damaged(store.folder, said))
    runs = store.runs()
    return f"sound, {len(runs)} run{'s' * (len(runs) != 1)}"
