"""Files that are there completely or not at all."""

from __future__ import annotations

__all__ = ["write_durably"]

import os
from pathlib import Path


def write_durably(path: Path, content: bytes) -> None:
    """A file that is there completely or not at all, even after a power cut."""
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        temporary.unlink(missing_ok=True)
        with temporary.open("xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    if os.name != "nt":  # the name is durable only when the folder is
        handle = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
