"""A model's random numbers: kept apart from the caller's, and the same whenever a shard is run again."""

from __future__ import annotations

__all__ = ["own_draws", "seed_draws", "undisturbed"]

import hashlib
import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch

from tmifpe.attacks.frozen import buffers_kept
from tmifpe.core.types import Model


@contextmanager
def own_draws(device: torch.device) -> Iterator[None]:
    """Within, a model may draw as it likes, from torch, numpy or Python; after, the caller's generators are as
    they were.

    >>> before = torch.get_rng_state()
    >>> with own_draws(torch.device("cpu")):
    ...     _ = torch.rand(3)
    >>> bool((torch.get_rng_state() == before).all())
    True
    """
    python, legacy = random.getstate(), np.random.get_state()
    mps = torch.mps.get_rng_state() if device.type == "mps" else None
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        try:
            yield
        finally:
            random.setstate(python)
            np.random.set_state(legacy)
            if mps is not None:
                torch.mps.set_rng_state(mps)


def seed_draws(device: torch.device, *numbers: int) -> None:
    """Begin a stream that depends on these numbers alone. Only inside `own_draws`, which undoes it."""
    word = hashlib.sha256(repr(numbers).encode()).digest()
    seed = int.from_bytes(word[:8], "little") >> 1
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.default_generator.manual_seed(seed)  # torch.manual_seed would seed the devices that are not ours, too
    if device.type == "cuda":
        with torch.cuda.device(device):
            torch.cuda.manual_seed(seed)
    elif device.type == "mps":
        torch.mps.manual_seed(seed)


@contextmanager
def undisturbed(model: Model, device: torch.device) -> Iterator[None]:
    """As `own_draws`, and the model's buffers are put back."""
    with own_draws(device), buffers_kept(model):
        yield
