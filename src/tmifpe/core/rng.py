"""Random numbers that belong to an example, not to a batch.

The stream of an example is a function of (seed, example index, stage, restart) alone, so a random start does
not depend on batch size, order, shard, engine or device. A counter-based integer hash (splitmix64) does this
for a whole batch at once; `torch.Generator` would need one generator and one kernel launch per example, and
gives other numbers on other devices.
"""

from __future__ import annotations

__all__ = ["FirstStates", "normal", "preserved_rng", "seed_rng", "uniform", "uniform_at"]

import hashlib
import math
import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor

_GOLDEN = 0x9E3779B97F4A7C15
_MASK = (1 << 64) - 1
_CACHE = 1 << 16  # numbers


def uniform(seed: int, indices: Tensor, stage: int, restart: int, shape: tuple[int, ...]) -> Tensor:
    """Uniform numbers in [0, 1), float32 with 24 random bits, one row of `shape` per example index.

    >>> a = uniform(0, torch.tensor([3, 5]), 0, 0, (2,)); b = uniform(0, torch.tensor([5]), 0, 0, (2,))
    >>> bool((a[1] == b[0]).all())
    True
    """
    return _drawn(_streams(seed, indices, stage, restart), shape)


def uniform_at(seed: int, indices: Tensor, stage: int, restart: int, number: Tensor, shape: tuple[int, ...]) -> Tensor:
    """`uniform` for draws that follow one another: each example's draw of that number (n,), whatever the others' are.

    >>> indices, number = torch.tensor([3, 5]), torch.tensor([0, 7])
    >>> a = uniform_at(0, indices, 0, 0, number, (2,)); b = uniform_at(0, indices[1:], 0, 0, number[1:], (2,))
    >>> bool((a[1] == b[0]).all())
    True
    """
    # The row's own stream begins elsewhere for every number, as it does for every index.
    return _drawn(_mix(_streams(seed, indices, stage, restart) ^ _mix(number.to(torch.int64) + 1)), shape)


def normal(seed: int, indices: Tensor, stage: int, restart: int, shape: tuple[int, ...]) -> Tensor:
    """Standard normal numbers by Box and Muller, from the same kind of stream."""
    pair = uniform(seed, indices, stage, restart, (2, *shape))
    # 1 - u lies in (0, 1], so the logarithm is finite.
    return torch.sqrt(-2.0 * torch.log(1.0 - pair[:, 0])) * torch.cos((2.0 * math.pi) * pair[:, 1])


class FirstStates:
    """What things were before the first of those who hold them came; to be given back when the last has gone.

    Several threads may hold the same thing at once, each for a while of its own. Use it under its `lock`.

    >>> states, model = FirstStates(), object()
    >>> states.hold(model, "train"); states.hold(model, "eval")
    >>> states.release(model), states.release(model)
    ([], ['train'])
    """

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self._held: dict[int, tuple[Any, Any, int]] = {}  # the thing itself, so that its id is not given to another

    def hold(self, thing: Any, state: Any) -> None:
        _, first, holders = self._held.get(id(thing), (thing, state, 0))
        self._held[id(thing)] = (thing, first, holders + 1)

    def release(self, thing: Any) -> list[Any]:
        """The first state, alone in a list, if nobody else holds the thing."""
        _, first, holders = self._held.pop(id(thing))
        if holders == 1:
            return [first]
        self._held[id(thing)] = (thing, first, holders - 1)
        return []


_RNG = FirstStates()


@contextmanager
def preserved_rng(device: torch.device | None = None) -> Iterator[None]:
    """Within, a model may draw as it likes, from torch (on any device), numpy or Python; after, the caller's generators
    are as they were. `device`: one whose generator may not have been used yet.

    Of several at once, in several threads, the last to end leaves the generators as the first found them.

    >>> before = torch.get_rng_state()
    >>> with preserved_rng():
    ...     _ = torch.rand(3)
    >>> bool((torch.get_rng_state() == before).all())
    True
    """
    if device is not None and device.type == "cuda":
        torch.cuda.init()
    with _RNG.lock:
        before = _rng_state()
        _RNG.hold(_RNG, before)
    try:
        yield
    finally:
        with _RNG.lock:
            for state in [before, *_RNG.release(_RNG)]:
                _set_rng_state(state)


def _rng_state() -> dict[str, Any]:
    """Of every generator that a model may draw from."""
    state: dict[str, Any] = {
        "python": random.getstate(),
        "numpy": np.random.get_state(),
        "cpu": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else [],
    }
    return state | ({"mps": torch.mps.get_rng_state()} if torch.backends.mps.is_available() else {})


def _set_rng_state(state: dict[str, Any]) -> None:
    random.setstate(state["python"])
    np.random.set_state(state["numpy"])
    torch.set_rng_state(state["cpu"])
    for number, one in enumerate(state["cuda"]):
        torch.cuda.set_rng_state(one, number)
    if "mps" in state:
        torch.mps.set_rng_state(state["mps"])


def seed_rng(device: torch.device, *numbers: int) -> None:
    """Begin a stream that depends on these numbers alone. Only inside `preserved_rng`, which undoes it."""
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


def _streams(seed: int, indices: Tensor, stage: int, restart: int) -> Tensor:
    """Where the stream of each example begins (n,)."""
    key = _scalar_mix(_scalar_mix(_scalar_mix(seed) ^ (stage & _MASK)) ^ (restart & _MASK))
    return _mix(indices.to(torch.int64) ^ _signed(key))


def _drawn(rows: Tensor, shape: tuple[int, ...]) -> Tensor:
    """The first numbers of each stream, in [0, 1), as a row of `shape`."""
    count = math.prod(shape)
    counter = torch.arange(1, count + 1, device=rows.device, dtype=torch.int64) * _signed(_GOLDEN)
    found = torch.empty(len(rows), count, dtype=torch.float32, device=rows.device)
    # On a CPU a few rows at a time, so that the dozen passes over the integers stay in its cache.
    size = max(1, _CACHE // max(1, count)) if rows.device.type == "cpu" else max(1, len(rows))
    for into, some in zip(found.split(size), rows.split(size), strict=True):
        into.copy_(_shift(_mix(some[:, None] + counter), 40))
    return found.mul_(2.0**-24).reshape(len(rows), *shape)


def _shift(x: Tensor, bits: int) -> Tensor:
    """Logical right shift: int64's own shift copies the sign bit."""
    return (x >> bits).bitwise_and_((1 << (64 - bits)) - 1)


def _mix(x: Tensor) -> Tensor:
    """The splitmix64 finaliser on int64, whose products wrap modulo 2^64."""
    x = _shift(x, 30).bitwise_xor_(x).mul_(_signed(0xBF58476D1CE4E5B9))
    x = _shift(x, 27).bitwise_xor_(x).mul_(_signed(0x94D049BB133111EB))
    return _shift(x, 31).bitwise_xor_(x)


def _scalar_mix(x: int) -> int:
    x = (x + _GOLDEN) & _MASK
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & _MASK
    return x ^ (x >> 31)


def _signed(x: int) -> int:
    return x - (1 << 64) if x >= 1 << 63 else x
