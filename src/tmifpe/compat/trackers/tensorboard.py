"""A result in TensorBoard (extra `tensorboard`)."""

from __future__ import annotations

__all__ = ["log_result"]

import re
from pathlib import Path
from typing import Any

from tmifpe.compat.trackers.numbers import numbers_of, settings_of, title_of
from tmifpe.core.extras import import_extra
from tmifpe.run.result import Result


def log_result(result: Result, where: Any = None, step: int | None = None) -> None:
    """Scalars, and what was evaluated as text.

    where: a folder, by default `runs`, in which the result gets a folder of its own, so that TensorBoard shows it as a
    run; or a SummaryWriter of yours, which stays open.
    """
    import_extra("tensorboard", "TensorBoard files", "tensorboard")
    writers: Any = import_extra("torch.utils.tensorboard", "TensorBoard files", "tensorboard")
    numbers, settings = numbers_of(result), settings_of(result)
    own = where is None or isinstance(where, str | Path)
    writer: Any = writers.SummaryWriter(str(Path(where or "runs").expanduser() / _folder(result))) if own else where
    try:
        for name, number in numbers.items():
            writer.add_scalar(f"tmifpe/{name}", number, step)
        lines = [f"- {name}: `{' '.join(text.split()).replace('`', chr(39))}`" for name, text in settings.items()]
        writer.add_text("tmifpe/evaluated", "\n".join(lines), step)
    finally:
        writer.close() if own else writer.flush()


def _folder(result: Result) -> str:
    """A name for a folder on every system: names come from files, and the key tells two runs apart."""
    words = f"{title_of(result)[:80]} {(result.key or result.spec.key())[:8]}"
    return re.sub(r"[^A-Za-z0-9.]+", "-", words).strip("-.")
