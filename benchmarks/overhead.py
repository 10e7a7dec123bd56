"""What the loop costs beside the bare forward and backward passes that it needs.

    python benchmarks/overhead.py --weights-dir DIR [--batch-size 256] [--rounds 5]

Contestants alternate within one run and the best of several rounds counts, since the machine may be shared. `bare` does
forward and backward on full batches, as many example-steps as the loop took, and nothing else.
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


def bare(model, x, looks: int, batch_size: int) -> float:
    """Seconds per example-step of forward and backward alone."""
    batch = x[:batch_size]
    began = time.perf_counter()
    for _ in range(looks):
        leaf = batch.detach().requires_grad_()
        logits = model(leaf)
        torch.autograd.grad(logits.sum(), leaf)
    return (time.perf_counter() - began) / (looks * len(batch))


def looped(model, problem, mode: str, loss: str, steps: int, batch_size: int) -> tuple[float, int]:
    """Seconds per example-step of the whole attack, and the backward passes it took."""
    queries = Queries(model)
    began = time.perf_counter()
    run(PGD(loss=loss, steps=steps), problem, queries, Loop(batch_size, mode))
    return (time.perf_counter() - began) / queries.tally.backwards, queries.tally.backwards


def measure(name: str, model, x, labels, eps: float, batch_size: int, rounds: int, steps: int, loss: str) -> dict:
    with torch.no_grad():
        correct = torch.cat([model(part).argmax(dim=1) for part in x.split(256)]) == labels
    indices = torch.arange(len(x))[correct]
    problem = Problem(x[correct], labels[correct], None, indices, tmifpe.Threat("linf", eps))
    best = {"bare": float("inf"), "strongest": float("inf"), "verdict": float("inf")}
    for _ in range(rounds):
        for mode in ("strongest", "verdict"):
            best["bare"] = min(best["bare"], bare(model, problem.x, steps, batch_size))
            best[mode] = min(best[mode], looped(model, problem, mode, loss, steps, batch_size)[0])
    return {
        "model": name,
        "loss": loss,
        "batch_size": batch_size,
        "examples": len(problem),
        "steps": steps,
        "microseconds_per_example_step": {key: 1e6 * value for key, value in best.items()},
        "strongest_over_bare": best["strongest"] / best["bare"],
        "verdict_over_bare": best["verdict"] / best["bare"],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--weights-dir", type=Path, required=True, help="holds mnist_fast_at.pth, cifar10_resnet4b.onnx"
    )
    parser.add_argument("--data-dir", type=Path, required=True, help="holds mnist/ and cifar10/")
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--loss", default="tmifpe")
    options = parser.parse_args()
    tiny = tmifpe.load_model("mnist-fast", weights=options.weights_dir / "mnist_fast_at.pth").module
    x, labels = tmifpe.load_data(f"mnist:{options.data_dir / 'mnist'}").fetch(range(4 * options.batch_size))
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
