"""Run as a script: evaluate many examples of a tiny model and say what it took, as one JSON object: the time, and,
since that depends on the machine and its load, the work of storing as it can be counted.

python tests/store_load.py EXAMPLES STEPS [STORE]
"""

from __future__ import annotations

import json
import os
import resource
import sys
import time
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch

import tmifpe
from tmifpe.store import Store, recorder

CLASSES = 10


class Tiny(torch.nn.Module):
    """26,000 weights: next to it, whatever a store costs is seen at its worst.

    No convolution: oneDNN keeps compiled kernels for up to 1024 input shapes, so that memory would grow with the
    number of batch sizes that were seen, which is not what is measured here.
    """

    def __init__(self) -> None:
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(0)
            widths = [(64, 128), (128, 128)]
            hidden = [layer for width in widths for layer in (torch.nn.Linear(*width), torch.nn.ReLU())]
            self.layers = torch.nn.Sequential(torch.nn.Flatten(), *hidden, torch.nn.Linear(128, CLASSES))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x)


class Made:
    """Images made from their indices when they are fetched, labelled as the model sees nine in ten of them."""

    name, shape, classes = "made", (1, 8, 8), CLASSES

    def __init__(self, model: Tiny, examples: int) -> None:
        self.model, self.indices, self.identity = model, range(examples), f"made-{examples}"

    def __len__(self) -> int:
        return len(self.indices)

    def fetch(self, positions: Sequence[int]) -> tuple[torch.Tensor, torch.Tensor]:
        parts = [self.make(part) for part in torch.as_tensor(positions).split(512)]
        images, labels = zip(*parts, strict=True)
        return torch.cat(images), torch.cat(labels)

    def make(self, index: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x = (torch.arange(64).reshape(1, 1, 8, 8) * (index % 9973 + 1)[:, None, None, None] % 251) / 250
        with torch.no_grad():
            labels = self.model(x).argmax(dim=1)
        return x, torch.where(index % 10 == 0, index // 10 % CLASSES, labels)


class Timed:
    """A recorder that measures the time spent in it."""

    def __init__(self, recorder: Any) -> None:
        self.recorder, self.seconds, self.busy = recorder, 0.0, 0.0

    def __getattr__(self, name: str) -> Any:
        return partial(self.call, getattr(self.recorder, name))

    def uncounted(self, plan: Any) -> Any:
        """Planning measures the model, which is done without a store, too."""

        def planned() -> Any:
            since = time.perf_counter()
            made = plan()
            self.seconds -= time.perf_counter() - since
            return made

        return planned

    def call(self, method: Any, *args: Any) -> Any:
        since, busy = time.perf_counter(), time.process_time()
        found = method(*(self.uncounted(arg) if callable(arg) else arg for arg in args))
        found = list(found) if hasattr(found, "__next__") else found
        self.seconds += time.perf_counter() - since
        self.busy += time.process_time() - busy
        return found


class Work:
    """What storing does: instructions of SQLite's virtual machine, by the hundred, and files forced to disk."""

    def __init__(self) -> None:
        self.instructions = self.forced = 0
        connect, fsync = recorder.connect, os.fsync

        def counted_connection(*args: Any, **options: Any) -> Any:
            connection = connect(*args, **options)
            connection.set_progress_handler(self.note_instructions, 100)
            return connection

        def counted_fsync(handle: int) -> None:
            self.forced += 1
            fsync(handle)

        recorder.connect, os.fsync = counted_connection, counted_fsync

    def note_instructions(self) -> int:
        self.instructions += 100
        return 0


def main(examples: int, steps: int, store: str | None) -> None:
    model, work = Tiny(), Work()
    timed = Timed(Store(store).recorder()) if store else None
    since = time.perf_counter()
    result = tmifpe.evaluate(
        model,
        Made(model, examples),
        tmifpe.Threat("linf", 0.02),
        tmifpe.PGD(steps=steps),
        recorder=timed,
        checks=False,
    )
    found = {
        "seconds": time.perf_counter() - since,
        "storing": timed.seconds if timed else 0.0,
        "storing_busy": timed.busy if timed else 0.0,
        "busy": time.process_time(),
        "instructions": work.instructions,
        "forced": work.forced,
        "peak": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss,
        "n": result.n,
        "broken": result.broken,
        "shards": len(result.plan),
    }
    sys.stdout.write(json.dumps(found) + "\n")


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3] if len(sys.argv) > 3 else None)
