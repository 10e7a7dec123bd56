"""A zip archive of torch, read once: what is looked at here is exactly what torch is given afterwards.

Two readers of one zip file need not see the same entries: Python finds the directory from the end of the file, torch
by the offset that the file states. So a screened archive is packed anew, and torch reads that.
"""

from __future__ import annotations

__all__ = ["check_unpacked", "packed", "read_archive"]

import io
import zipfile
from pathlib import Path
from typing import IO

from tmifpe.core.errors import InputError

_TEXT = 64 << 20
"""What the compressed text of a program may unpack to; tensors are stored as they are."""


def read_archive(path: Path, what: str) -> dict[str, bytes]:
    """Every entry by name; `what` says in an error what the file should have been."""
    try:
        with zipfile.ZipFile(path) as archive:
            names = archive.namelist()
            _check_sizes(archive, path.stat().st_size, str(path))
            if len(set(names)) < len(names):
                raise InputError(f"{path} holds two entries of one name, which torch never writes")
            return {name: archive.read(name) for name in names}
    except InputError:
        raise
    except Exception as error:  # a damaged zip can fail in any way
        raise InputError(f"{path} is not {what}: {error}") from error


def packed(entries: dict[str, bytes]) -> io.BytesIO:
    """The entries as an archive in memory."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, content in entries.items():
            archive.writestr(name, content)
    buffer.seek(0)
    return buffer


def check_unpacked(file: Path | IO[bytes], size: int, what: str) -> None:
    """`InputError` for a zip that unpacks to more than it holds; what is no zip at all is left to its reader."""
    try:
        with zipfile.ZipFile(file) as archive:
            _check_sizes(archive, size, what)
    except InputError:
        raise
    except Exception:  # noqa: S110 - the reader that follows says what is wrong with it
        pass


def _check_sizes(archive: zipfile.ZipFile, size: int, what: str) -> None:
    unpacked = sum(entry.file_size for entry in archive.infolist())
    if unpacked > size + _TEXT:
        raise InputError(f"{what} would unpack from {size} bytes to {unpacked}; torch does not compress its tensors")
