"""Running what torch.compile made as the Python code that it was made from, where that code is to be watched."""

from __future__ import annotations

__all__ = ["uncompiled"]

import sys
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from tmifpe.core.rng import FirstStates

_STANCES = FirstStates()
"""torch knows one stance for all threads: the first to enter takes it, the last to leave gives it back."""


@contextmanager
def uncompiled() -> Iterator[None]:
    """Within, compiled models and functions run as if they had not been compiled: hooks and modes see their operations.

    torch.compile can trace no mode that changes the backward pass. In other threads compiled models compute the same
    meanwhile, only more slowly. Before torch 2.6 nothing changes.
    """
    # Where nothing has been compiled, to ask torch for a stance would be to import its compiler.
    if "torch._dynamo.eval_frame" not in sys.modules or not hasattr(torch.compiler, "set_stance"):
        yield
        return
    with _STANCES.lock:
        _STANCES.hold(torch.compiler, torch.compiler.set_stance("force_eager"))
    try:
        yield
    finally:
        with _STANCES.lock:
            for stance in _STANCES.release(torch.compiler):
                stance.__exit__(None, None, None)
