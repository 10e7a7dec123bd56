"""One process per run: a lock that the operating system drops when its process dies, however it dies."""

from __future__ import annotations

__all__ = ["RunLock"]

import os
from pathlib import Path

from tmifpe.store.errors import StoreError

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None


class RunLock:
    """Held from `acquire` to `release`, or to the end of the process: kill -9 leaves a file, but no lock."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._handle: int | None = None

    def acquire(self) -> None:
        self._path.parent.mkdir(exist_ok=True)
        if self._path.parent.is_symlink() or self._path.is_symlink():
            raise StoreError(f"{self._path} is a symbolic link; a run store keeps its files in itself")
        while self._handle is None:
            handle = os.open(self._path, os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0), 0o644)
            try:
                _lock(handle)
            except OSError as error:
                os.close(handle)
                raise StoreError(
                    f"another process is working on run {self._path.stem}; wait until it has finished, or stop it: "
                    "what it has stored is kept"
                ) from error
            # Whoever removed the run removed this file too; then the lock is on a file that nobody else will find.
            if _still_there(handle, self._path):
                self._handle = handle
            else:
                os.close(handle)

    def release(self, *, remove: bool = False) -> None:
        if self._handle is None:
            return
        if remove and os.name != "nt":  # Windows does not remove a file that is open
            self._path.unlink(missing_ok=True)
        os.close(self._handle)
        self._handle = None


def _lock(handle: int) -> None:
    if fcntl is not None:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    else:
        import msvcrt

        msvcrt.locking(handle, msvcrt.LK_NBLCK, 1)  # pyright: ignore[reportAttributeAccessIssue]


def _still_there(handle: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(handle), path.stat())
    except FileNotFoundError:
        return False
