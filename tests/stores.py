"""A small evaluation to store, interrupt and resume, in this process or in another."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tmifpe
from tmifpe.run.outcomes import Outcomes
from tmifpe.run.result import Result
from tmifpe.run.shown.progress import Progress
from tmifpe.store import StoreError

N, SHARD = 48, 8
THREAT = tmifpe.Threat("linf", 0.15)
CLI = ["evaluate", "digits-robust", "--eps", "0.15", "--limit", str(N), "--attack", "paper", "--steps", "3"]
CLI += ["--shard-size", str(SHARD), "--batch-size", "8", "--no-checks"]


class Killed(BaseException):
    """As sudden as a signal: nothing catches it on the way."""


def ask(store: Any = None, **options: Any) -> Result:
    """48 digits in 6 shards; the checks, which have tests of their own, only where asked for."""
    chosen: dict[str, Any] = {"limit": N, "shard_size": SHARD, "batch_size": 8, "attack": tmifpe.PGD(steps=3)}
    chosen["checks"] = False
    return tmifpe.evaluate(*_sources(), THREAT, store=store, **(chosen | options))


@cache
def _stored(folder: Path) -> Result:
    return ask(folder)


def copy_stored(master: Path, folder: Path) -> Result:
    """A store in `folder` that holds the run of `ask`, which is computed once, in `master`."""
    result = _stored(master)
    shutil.copytree(master, folder, dirs_exist_ok=True)
    return result


def attempt(store: Any) -> Result | str:
    """The result, or the sentence that says why there is none."""
    try:
        return ask(store)
    except StoreError as error:
        return str(error)


@cache
def _sources() -> tuple[tmifpe.Classifier, tmifpe.Data]:
    return tmifpe.load_model("digits-robust"), tmifpe.load_data("digits")


def killed_after(examples: int) -> Callable[[Progress], None]:
    """A progress callback that ends the run once more than so many examples have a verdict."""

    def told(step: Progress) -> None:
        if step.done > examples:
            raise Killed

    return told


def same(a: Result, b: Result) -> bool:
    """Outcome by outcome, to the last bit."""
    return all(
        np.array_equal(getattr(a.outcomes, name), getattr(b.outcomes, name), equal_nan=True)
        for name in Outcomes.columns()
    )


def command(*words: str) -> list[str]:
    return [sys.executable, "-c", "from tmifpe.cli import main; main()", *words]


def environment(store: Path) -> dict[str, str]:
    return os.environ | {"OMP_NUM_THREADS": "1", "TMIFPE_STORE": str(store), "COLUMNS": "200"}


def call(store: Path, *words: str, timeout: float = 600) -> subprocess.CompletedProcess[str]:
    """The command line in a process of its own."""
    return subprocess.run(
        command(*words), env=environment(store), capture_output=True, text=True, timeout=timeout, check=False
    )


@contextmanager
def small_disk(folder: Path, size: str) -> Iterator[Path]:
    """A tmpfs of that size; only root may mount one."""
    if sys.platform != "linux" or os.geteuid() != 0:
        pytest.skip("mounting a small tmpfs needs root on Linux")
    folder.mkdir()
    made = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", folder], capture_output=True)
    if made.returncode:
        pytest.skip(f"this machine does not let root mount a tmpfs: {made.stderr.decode().strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", folder], check=True)
