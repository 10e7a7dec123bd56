"""What an attack costs inside a training loop: tmifpe.attack beside PGD-10 written by hand and torchattacks.

On a small CNN, and on a model that costs nothing, so that only what surrounds the model is left.

python benchmarks/training_attack.py [--peers DIR]     (DIR: pip install --no-deps --target DIR torchattacks)

CPU time of one process with one thread, the candidates in turn, so that other work on the machine hits all alike.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
import warnings
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

import tmifpe

EPS, ALPHA, STEPS = 8 / 255, 2 / 255, 10


def network() -> nn.Module:
    torch.manual_seed(0)
    layers: list[nn.Module] = []
    for before, after, stride in ((3, 16, 1), (16, 32, 2), (32, 32, 2)):
        layers += [nn.Conv2d(before, after, 3, stride, 1), nn.BatchNorm2d(after), nn.ReLU()]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(32 * 64, 10)).train()


def by_hand(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    model.eval()
    adv = (x + torch.empty_like(x).uniform_(-EPS, EPS)).clamp(0, 1)
    for _ in range(STEPS):
        adv.requires_grad_()
        (grad,) = torch.autograd.grad(functional.cross_entropy(model(adv), y), adv)
        adv = (x + (adv.detach() + ALPHA * grad.sign() - x).clamp(-EPS, EPS)).clamp(0, 1)
    model.train()
    return adv


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--peers", help="a folder that holds torchattacks")
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--repeats", type=int, default=15)
    options = parser.parse_args()
    torch.set_num_threads(1)
    free = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(3, 10))
    for title, model in (("a small CNN", network()), ("a model that costs nothing", free)):
        print(title)
        measure(model, options)


def measure(model: nn.Module, options: argparse.Namespace) -> None:
    x, y = torch.rand(options.batch, 3, 32, 32), torch.randint(10, (options.batch,))
    threat, pgd = tmifpe.Threat("linf", EPS), tmifpe.PGD("ce", STEPS, 1, "constant", 0.25, 0.0)
    candidates: dict[str, Callable[[], Tensor]] = {
        "by hand": lambda: by_hand(model, x, y),
        "tmifpe.attack": lambda: tmifpe.attack(model, x, y, threat),
        "tmifpe.PGD(...)(...), which also judges": lambda: pgd(model, x, y, threat),
    }
    if options.peers:
        sys.path.append(options.peers)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            import torchattacks
        theirs = torchattacks.PGD(model, EPS, ALPHA, STEPS)
        candidates["torchattacks.PGD"] = lambda: theirs(x, y)
    spent: dict[str, list[float]] = {name: [] for name in candidates}
    for _ in range(options.repeats + 1):
        for name, run in candidates.items():
            began = time.process_time()
            run()
            spent[name].append(time.process_time() - began)
    hand = spent["by hand"][1:]
    for name, times in spent.items():
        ratio = statistics.median(a / b for a, b in zip(times[1:], hand, strict=True))
        best = min(times[1:])
        print(f"  {name:40s} {1e3 * best:7.1f} ms, {best / min(hand):.3f} x by hand; median of ratios {ratio:.3f}")


if __name__ == "__main__":
    main()
