"""A model that misbehaves where a worker computes, on the shards whose first image is marked; and who is alive."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest
import torch

import tmifpe
from tests.stores import same
from tmifpe.core.errors import IncompleteError
from tmifpe.store import Store

# In a worker process or a Ray actor; a file called "calm" in its folder ends the trouble, one called "slow" makes it
# take its time.
SOURCE = """
import multiprocessing, os, signal, sys, time
from pathlib import Path
import torch

HERE = Path(__file__).parent
WORKER = multiprocessing.parent_process() is not None or "default_worker" in sys.argv[0]

class Trouble(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.linspace(-1, 1, 12).reshape(3, 4))

    def forward(self, x):
        mark = x.flatten(1)[:, 0]
        if WORKER and (HERE / "slow").exists():
            time.sleep(0.2)
        if WORKER and not (HERE / "calm").exists():
            if (mark == 0.25).any() and not (HERE / "killed").exists():
                (HERE / "killed").touch()
                os.kill(os.getpid(), signal.SIGKILL)
            if (mark == 0.5).any():
                raise ValueError("poisoned")
            if (mark == 0.75).any():
                time.sleep(1000)
        return x.flatten(1) @ self.weight.t()

def make():
    return Trouble()
"""
KILLED, POISONED, HUNG = 1, 3, 4
SHARDS = 6
THREAT = tmifpe.Threat("linf", 0.1)
ONE = tmifpe.PGD(steps=2)

Images = tuple[torch.Tensor, torch.Tensor]


def make_trouble(folder: Path) -> tuple[tmifpe.Classifier, Images]:
    """The model, and twelve images in six shards of two."""
    (folder / "trouble.py").write_text(SOURCE)
    x = torch.rand(2 * SHARDS, 1, 2, 2, generator=torch.Generator().manual_seed(0)) * 0.2
    for shard, mark in ((KILLED, 0.25), (POISONED, 0.5), (HUNG, 0.75)):
        x[2 * shard, 0, 0, 0] = mark
    return tmifpe.load_model(f"{folder}/trouble.py:make"), (x, torch.arange(2 * SHARDS) % 3)


def check_trouble(model, data, store: Path, failing: dict[int, int], **engine) -> None:
    """One worker, one retry: the shards that fail are reported with their attempts, the others counted, and asked
    again without workers the run is whole."""
    n, lost = len(data[0]), 2 * len(failing)
    options = {"shard_size": 2, "batch_size": 2, "checks": False, "store": store}
    limit = engine.setdefault("shard_timeout", 20)
    found = tmifpe.evaluate(model, data, THREAT, ONE, workers=1, retries=1, **engine, **options)
    assert {failure.shard: failure.attempts for failure in found.failures} == failing
    assert (store.parent / "killed").exists()
    assert "poisoned" in found.failures[0].error
    assert "ValueError: poisoned" in found.failures[0].traceback
    assert all(f"limit of {limit} seconds" in failure.error for failure in found.failures[1:])
    assert (found.missing, len(found.outcomes)) == (lost, n - lost)
    with pytest.raises(IncompleteError, match=f"{lost} of {n} examples have no verdict"):
        _ = found.robust_accuracy
    low, high = found.bounds
    assert (low, high) == (found.robust / n, (found.robust + lost) / n)
    assert found.to_json()["robust_accuracy"] is None
    (run,) = Store(store).runs()
    assert run.finished is None
    kept = Store(store).result(run)
    assert kept.failures == found.failures, "with their tracebacks"
    assert kept.bounds == found.bounds
    # Asked again, here: finished shards come from the store, failed ones are computed.
    whole = tmifpe.evaluate(model, data, THREAT, ONE, **options)
    assert whole.resumed == n - lost
    assert low <= whole.robust_accuracy <= high
    assert same(whole, tmifpe.evaluate(model, data, THREAT, ONE, **(options | {"store": None})))
    assert not Store(store).result(Store(store).runs()[0]).failures


def alive(pid: int) -> bool:
    """Whether a process runs; one that has ended and waits to be read is gone."""
    if not Path("/proc/self/stat").exists():
        return pid in {child.pid for child in multiprocessing.active_children()}
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def offspring(pid: int) -> dict[int, str]:
    """The processes below one, and what they are called."""
    told = ["ps", "-ww", "-eo", "pid=,ppid=,args="]  # whole lines, whatever COLUMNS says
    listed = subprocess.run(told, capture_output=True, text=True, check=True).stdout
    rows = [line.split(None, 2) for line in listed.splitlines()]
    found, parents = {}, {pid}
    while parents:
        below = {int(row[0]): row[2] for row in rows if int(row[1]) in parents}
        parents = set(below) - set(found)
        found |= below
    return found


def wait_for(said: str, condition: Callable[[], object], seconds: float = 300) -> None:
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until, said
        time.sleep(0.05)


def all_gone(pids: Iterable[int]) -> Callable[[], bool]:
    return lambda: not any(alive(pid) and pid != os.getpid() for pid in pids)
