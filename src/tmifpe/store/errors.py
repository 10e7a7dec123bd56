"""What can go wrong with a folder on a disk, in one sentence each."""

from __future__ import annotations

__all__ = ["StoreError", "damaged", "explained"]

import errno
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tmifpe.core.errors import InputError

_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_REFUSED = {errno.EACCES, errno.EPERM, errno.EROFS}


class StoreError(InputError):
    """The run store cannot be used as requested. Its contents are unchanged."""


@contextmanager
def explained(folder: Path) -> Iterator[None]:
    """Turn the errors of SQLite and of the file system into a `StoreError` that says what to do."""
    try:
        yield
    except sqlite3.Error as error:
        raise StoreError(_of_sqlite(folder, str(error))) from error
    except UnicodeDecodeError as error:  # SQLite quotes what it cannot read, and Python cannot read the quotation
        raise StoreError(damaged(folder, "malformed text")) from error
    except OSError as error:
        raise StoreError(_of_system(folder, error)) from error


def _of_sqlite(folder: Path, text: str) -> str:
    # Python 3.10 has no error codes on the exception, so that the text must do.
    if "locked" in text or "busy" in text:
        return f"the run store {folder} is locked by another program; try again when it has finished"
    if "full" in text or ("disk I/O" in text and _no_room(folder)):
        return _full(folder)
    if "readonly" in text or "unable to open" in text:
        return _refused(folder)
    if "malformed" in text or "not a database" in text or "constraint" in text or "no such" in text:
        return damaged(folder, text)
    return f"the run store {folder} cannot be used: {text}"


def _of_system(folder: Path, error: OSError) -> str:
    if error.errno in _FULL:
        return _full(folder)
    if error.errno in _REFUSED:
        return _refused(folder)
    if isinstance(error, FileExistsError | NotADirectoryError):
        return f"the run store {folder} is not a folder; choose another with `store=DIR`"
    return f"the run store {folder} cannot be used: {error}"


def damaged(folder: Path, what: str) -> str:
    return (
        f"the run store {folder} is damaged ({what}); nothing in it was changed: "
        f"rebuild it from its shard files with tmifpe runs repair --store {folder}"
    )


def _full(folder: Path) -> str:
    return (
        f"the disk of the run store {folder} is full; finished shards are kept: make room and ask for the same again "
        "to resume"
    )


def _refused(folder: Path) -> str:
    return f"the run store {folder} cannot be written to or read; choose another with `store=DIR`, or use `store=None`"


def _no_room(folder: Path) -> bool:
    try:
        return shutil.disk_usage(folder).free < 1 << 20
    except OSError:
        return False
