"""Files that are there completely or not at all, and lists of names in them."""

from __future__ import annotations

__all__ = ["as_class_names", "write_durably"]

import os
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

from tmifpe.core.errors import InputError, shown

_MAX_NAMES = 16 << 20  # bytes of a file of names


def as_class_names(given: Sequence[str] | str | Path) -> tuple[str, ...]:
    """Names of classes in the model's order: as they are, or from a text file with one per line.

    >>> as_class_names(["cat", "dog"])
    ('cat', 'dog')
    """
    names = _read_names(given) if isinstance(given, str | Path) else [str(name) for name in given]
    double = [name for name, times in Counter(names).items() if times > 1]
    if double:
        raise InputError(f"the class {shown(double[0])} is named twice; each name stands for one class")
    if not names:
        raise InputError("there are no names of classes; give one per class, in the model's order")
    return tuple(names)


def _read_names(path: str | Path) -> list[str]:
    if not str(path):
        raise InputError("`classes` needs a file")
    try:
        file = Path(path).expanduser()
        if not file.is_file():
            raise FileNotFoundError
    except (OSError, ValueError, RuntimeError):  # a name too long, with a null byte, or of a user who is not there
        raise InputError(f"no such file: {path} (`classes`)") from None
    if file.stat().st_size > _MAX_NAMES:
        raise InputError(f"{path} has more than {_MAX_NAMES >> 20} MiB, too many for names of classes")
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"cannot read the names of classes from {path}: {error}") from None
    return [line.strip() for line in lines if line.strip()]


def write_durably(path: Path, content: bytes | Iterable[bytes]) -> None:
    """A file that is there completely or not at all, even after a power cut; in pieces where it is large."""
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        temporary.unlink(missing_ok=True)
        with temporary.open("xb") as file:
            file.writelines([content] if isinstance(content, bytes) else content)
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
