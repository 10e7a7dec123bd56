"""What the loop costs beside the bare forward and backward passes that it needs.

    python benchmarks/overhead.py --weights-dir DIR --data-dir DIR [--batch-size 256] [--steps 100]

On a shared machine the same pass takes 17 ms now and 25 ms a second later, so the two contestants take turns at every
single look: after each of the loop, a bare forward and backward on a full batch is timed, and its time is taken
out of the loop's. `bare` is then scaled to the example-steps that the loop took.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path

import torch

import tmifpe
from tmifpe.attacks import PGD, Loop, Problem, Queries, run
from tmifpe.core.memory import keep_freed_memory


def bare(model, batch) -> float:
    """Seconds of one forward and backward alone."""
    began = time.perf_counter()
    leaf = batch.detach().requires_grad_()
    torch.autograd.grad(model(leaf).sum(), leaf)
    return time.perf_counter() - began


def ratio(model, problem, mode: str, loss: str, steps: int, batch_size: int) -> dict:
    """The loop's time over that of bare passes for as many example-steps."""
    queries, turns = Queries(model), []

    def turn(_done: int, _broken: int) -> None:
        turns.append(bare(model, problem.x[:batch_size]))

    began = time.perf_counter()
    run(PGD(loss=loss, steps=steps), problem, queries, Loop(batch_size, mode, tick=turn))
    loop = time.perf_counter() - began - sum(turns)
    alone = sum(turns) / len(turns) / batch_size * queries.tally.backwards
    return {
        "loop_seconds": loop,
        "bare_seconds": alone,
        "example_steps": queries.tally.backwards,
        "ratio": loop / alone,
    }


def measure(name: str, model, x, labels, eps: float, batch_size: int, rounds: int, steps: int, loss: str) -> dict:
    with torch.no_grad():
        correct = torch.cat([model(part).argmax(dim=1) for part in x.split(256)]) == labels
    whole = int(correct.sum()) // batch_size * batch_size  # full batches: what is measured is the loop, not a remainder
    correct &= correct.cumsum(dim=0) <= whole
    indices = torch.arange(len(x))[correct]
    problem = Problem(x[correct], labels[correct], None, indices, tmifpe.Threat("linf", eps))
    found = {"model": name, "loss": loss, "batch_size": batch_size, "examples": len(problem), "steps": steps}
    for mode in ("strongest", "verdict"):
        tries = [ratio(model, problem, mode, loss, steps, batch_size) for _ in range(rounds)]
        found[mode] = min(tries, key=lambda one: one["ratio"]) | {"ratios": [one["ratio"] for one in tries]}
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--weights-dir", type=Path, required=True, help="holds mnist_fast_at.pth, cifar10_resnet4b.onnx"
    )
    parser.add_argument("--data-dir", type=Path, required=True, help="holds mnist/ and cifar10/")
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--loss", default="tmifpe")
    options = parser.parse_args()
    keep_freed_memory()  # as the commands do; else both contestants spend a share of their time on page faults
    tiny = tmifpe.load_model("mnist-fast", weights=options.weights_dir / "mnist_fast_at.pth").module
    x, labels = tmifpe.load_data(f"mnist:{options.data_dir / 'mnist'}").fetch(range(4 * options.batch_size + 100))
    rows = [
        measure("mnist-fast", tiny, x, labels, 0.3, options.batch_size, options.rounds, options.steps, options.loss)
    ]
    mean, std = (0.4914, 0.4822, 0.4465), (0.2471, 0.2435, 0.2616)
    residual = tmifpe.load_model(str(options.weights_dir / "cifar10_resnet4b.onnx"), mean=mean, std=std).module
    x, labels = tmifpe.load_data(f"cifar10:{options.data_dir / 'cifar10'}").fetch(range(846))
    rows.append(
        measure(
            "cifar10_resnet4b",
            residual,
            x,
            labels,
            2 / 255,
            options.batch_size,
            options.rounds,
            options.steps,
            options.loss,
        )
    )
    json.dump({"threads": torch.get_num_threads(), "rows": rows}, sys.stdout, indent=2)
    print()


if __name__ == "__main__":
    main()
