"""What the loop costs on top of the bare forward and backward passes that it needs.

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
from tmifpe.attacks import PGD, Loop, Problem, Queries
from tmifpe.core.process import keep_freed_memory


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
    PGD(loss=loss, steps=steps).run(problem, queries, Loop(batch_size, mode, tick=turn))
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


def tiny(options: argparse.Namespace):
    model = tmifpe.load_model("mnist-fast", weights=options.weights_dir / "mnist_fast_at.pth").module
    count = 4 * options.batch_size + 100
    return model, *tmifpe.load_data(f"mnist:{options.data_dir / 'mnist'}").fetch(range(count)), 0.3


def residual(options: argparse.Namespace):
    mean, std = (0.4914, 0.4822, 0.4465), (0.2471, 0.2435, 0.2616)
    model = tmifpe.load_model(str(options.weights_dir / "cifar10_resnet4b.onnx"), mean=mean, std=std).module
    return model, *tmifpe.load_data(f"npz:{options.data_dir / 'cifar10/test_first_846.npz'}").fetch(range(846)), 2 / 255


MODELS = {"mnist-fast": tiny, "cifar10_resnet4b": residual}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--weights-dir", type=Path, required=True, help="holds mnist_fast_at.pth, cifar10_resnet4b.onnx"
    )
    parser.add_argument("--data-dir", type=Path, required=True, help="holds mnist/ and cifar10/")
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--loss", default="tmifpe")
    parser.add_argument(
        "--keep-memory", action="store_true", help="keep freed memory as the commands do; both contestants gain"
    )
    options = parser.parse_args()
    kept = options.keep_memory and keep_freed_memory()
    rows = []
    for name in options.models:
        model, x, labels, eps = MODELS[name](options)
        found = measure(name, model, x, labels, eps, options.batch_size, options.rounds, options.steps, options.loss)
        rows.append(found)
    found = {"torch": torch.__version__, "threads": torch.get_num_threads(), "keep_memory": kept, "rows": rows}
    json.dump(found, sys.stdout, indent=2)
    print()


if __name__ == "__main__":
    main()
