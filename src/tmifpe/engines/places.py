"""How many workers, on which devices, with how many threads each."""

from __future__ import annotations

__all__ = ["Places", "count_cores", "find_places"]

import os
from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Places:
    """One place per worker. With CUDA, worker i has GPU i, counted round if there are more workers than GPUs."""

    workers: int
    threads: int
    devices: tuple[str, ...]

    def device(self, place: int) -> str:
        return self.devices[place % len(self.devices)]


def find_places(workers: int | str, device: torch.device) -> Places:
    """`auto`: one worker per GPU where the model is on one, else one per core, and the cores are shared out.

    A device other than the first GPU was chosen on purpose, and all workers share it; CUDA_VISIBLE_DEVICES narrows
    the choice otherwise.

    >>> find_places(3, torch.device("cpu")).devices
    ('cpu',)
    """
    several = device.type == "cuda" and device.index in (None, 0)
    devices = tuple(f"cuda:{i}" for i in range(torch.cuda.device_count())) if several else (str(device),)
    cores = count_cores()
    usual = cores if device.type == "cpu" else len(devices)
    count = usual if workers == "auto" else int(workers)
    return Places(count, max(1, cores // count), devices)


def count_cores() -> int:
    """The cores that this process may use: under Slurm or in a container fewer than the machine has."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
