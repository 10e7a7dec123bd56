"""How long a run takes on so many workers: a simulation of the driver and its workers, and what it says of ImageNet.

    python benchmarks/simulate.py              the tables of docs/cluster.md
    python benchmarks/simulate.py --check      against real worker processes on this machine (two minutes)

The driver goes in rounds: it reads one shard ahead, or waits for a result if all are read; it takes some results, hands
shards to whoever is idle, and stores the results. A worker computes one shard at a time. That is what
`engines/processes.py` and `engines/ray_actors.py` do; everything else about a cluster is in five numbers (`Costs`).
"""

from __future__ import annotations

import argparse
import heapq
import json
import tempfile
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

import tmifpe
from tmifpe.engines.reader import AT_ONCE
from tmifpe.store import Store

IMAGES, SHARD = 50_000, 32
STEP = 0.001
"""Seconds of a GPU per example and step, a forward and a backward pass: about a ResNet-50 in float32 on a GPU of a data
centre. An assumption, and the first thing to replace by a measurement."""
START = 30.0


@dataclass(frozen=True)
class Costs:
    """In seconds."""

    compute: float
    """Of a worker per example: forward and backward passes times steps."""
    read: float = 0.0
    """Of the driver per example, before it is computed: from the disk, and to the worker."""
    keep: float = 0.0
    """Of the driver per example, afterwards: from the worker, and to the store."""
    shard: float = 0.0
    """Of the driver per shard: a transaction, two files forced to disk."""
    start: float = 0.0
    """Until the workers are ready."""


def simulate(examples: int, shard: int, workers: int, costs: Costs) -> float:
    """Seconds from the start to the last stored shard."""
    waiting = deque(min(shard, examples - first) for first in range(0, examples, shard))
    now, idle, ahead = costs.start, workers, 0
    busy: list[tuple[float, int]] = []  # when a worker is done, and with how many examples
    results: list[int] = []  # the sizes of the shards that are to be stored
    while waiting or busy or results:
        while idle and waiting:
            size = waiting.popleft()
            now += 0 if ahead else costs.read * size
            ahead, idle = max(0, ahead - 1), idle - 1
            heapq.heappush(busy, (now + costs.compute * size, size))
        now += sum(costs.shard + costs.keep * size for size in results)
        results.clear()
        if ahead < min(workers, len(waiting)):
            now += costs.read * waiting[ahead]
            ahead += 1
        elif busy:
            now = max(now, busy[0][0])
        while busy and busy[0][0] <= now and len(results) < AT_ONCE:
            results.append(heapq.heappop(busy)[1])
            idle += 1
    return now


def busiest(costs: Costs, shard: int) -> float:
    """The workers that one driver can keep busy."""
    return costs.compute / (costs.read + costs.keep + costs.shard / shard)


class Sleeper(torch.nn.Module):
    """Takes its time for every example without using the processor, so that two cores can play many workers."""

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self.seconds = seconds
        self.weight = torch.nn.Parameter(torch.linspace(-1, 1, 12).reshape(3, 4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        time.sleep(self.seconds * len(x))
        return x.flatten(1) @ self.weight.t()


class SlowData:
    """Every example takes the driver some time to read."""

    name, shape, classes, identity = "slow", (1, 2, 2), 3, "slow"

    def __init__(self, examples: int, seconds: float) -> None:
        self.indices, self.seconds = range(examples), seconds

    def __len__(self) -> int:
        return len(self.indices)

    def fetch(self, positions: Sequence[int]) -> tuple[torch.Tensor, torch.Tensor]:
        time.sleep(self.seconds * len(positions))
        return torch.full((len(positions), 1, 2, 2), 0.5), torch.full((len(positions),), 2)


def check(workers: Sequence[int], engine: str, out: Path | None) -> None:
    """Against real workers that sleep. One worker and a driver that reads for nothing say what an example costs; the
    simulation says the rest: workers that are busy, and workers that wait for a driver that reads slowly."""
    rows, compute = [], 0.0
    for count in workers:
        for read in (0.0, 0.04):
            n, size = 40 * count + 40, 10
            measured = measure(n, size, count, read, engine)
            compute = compute or measured / n
            said = simulate(n, size, count, Costs(compute, read))
            rows.append({"workers": count, "read": read, "examples": n, "measured": measured, "simulated": said})
            print(json.dumps(rows[-1]), flush=True)
    if out is not None:
        out.write_text(json.dumps(rows, indent=1) + "\n")


def measure(n: int, size: int, workers: int, read: float, engine: str) -> float:
    """Seconds of a run with a store, the start of the workers not counted."""
    from tmifpe.evaluation.prepare import prepare
    from tmifpe.run.request import Request

    asked = Request(
        engine=engine, workers=workers, shard_size=size, batch_size=size, checks=False, mode="strongest", name="sleeper"
    )
    data, threat = SlowData(n, read), tmifpe.Threat("linf", 0.0)
    with tempfile.TemporaryDirectory() as store, prepare(Sleeper(0.02), data, threat, asked) as prepared:
        first = Store(f"{store}/first").recorder()
        prepared.run(tmifpe.PGD(steps=1), recorder=first)  # the workers start, and model and data are identified
        began = time.perf_counter()
        prepared.run(tmifpe.PGD(steps=2), recorder=Store(f"{store}/second").recorder())
        return time.perf_counter() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="against real workers on this machine")
    parser.add_argument("--workers", nargs="+", type=int, default=[1, 2, 4])
    parser.add_argument("--engine", default="processes")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    if options.check:
        check(options.workers, options.engine, options.out)
        return
    tables()


def tables() -> None:
    """ImageNet's 50,000 images on 1 to 1,000 GPUs, with one driver and as array jobs, each with a driver of its own."""
    rows = json.loads((Path(__file__).parent / "results" / "cluster.json").read_text())["driver"]
    # The processor's time: the machine of the measurement was shared, and a driver has a core to itself.
    read = min(row["read_busy"] for row in rows)
    rest = {name: min(row[f"{name}_busy"] for row in rows) for name in ("pack", "unpack", "store")}
    ways = {
        "JPEG files": Costs(0, read + rest["pack"], rest["unpack"] + rest["store"], start=START),
        "arrays": Costs(0, rest["pack"], rest["unpack"] + rest["store"], start=START),
    }
    print(f"driver per example, ms: read {1e3 * read:.1f}, " + ", ".join(f"{k} {1e3 * v:.2f}" for k, v in rest.items()))
    print(
        "\n| GPUs | "
        + " | ".join(f"{way}, {steps} steps" for steps in (100, 1000) for way in [*ways, "array jobs"])
        + " |"
    )
    print("|---:|" + "---:|" * 6)
    for gpus in (1, 4, 16, 64, 256, 1000):
        cells = []
        for steps in (100, 1000):
            cells += [hours(simulate(IMAGES, SHARD, gpus, replace(way, compute=STEP * steps))) for way in ways.values()]
            alone = replace(ways["JPEG files"], compute=STEP * steps)
            shards = -(-IMAGES // SHARD)
            cells.append(hours(simulate(-(-shards // gpus) * SHARD, SHARD, 1, alone)))
        print(f"| {gpus} | " + " | ".join(cells) + " |")
    for name, way in ways.items():
        most = [
            f"{busiest(replace(way, compute=STEP * steps), SHARD):.0f} GPUs at {steps} steps" for steps in (100, 1000)
        ]
        print(f"{name}: one driver keeps {' and '.join(most)} busy")


def hours(seconds: float) -> str:
    return f"{seconds / 3600:.1f} h" if seconds >= 3600 else f"{seconds / 60:.1f} min"


if __name__ == "__main__":
    main()
