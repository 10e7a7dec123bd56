"""What t* costs: the solver on a batch of 256 rows against one forward and backward of a ResNet-50.

    python benchmarks/solver.py

The model (25.6 million parameters, 224 x 224 images, gradient of the input only) is timed at batch 8, where it fits
any machine, and scaled by 256/8: its cost is proportional to the batch. The solver is timed at 256 rows outright, in
float32, with the label on top in every row, so that nothing is skipped. Medians; one thread unless --threads says more.
The budget is 5 % of the model for 10 classes and 10 % for 1000.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import torch
from torch import Tensor, nn

from tmifpe.losses import get_loss
from tmifpe.theory.solver import solve_t

ROWS, BATCH = 256, 8
BUDGET = {10: 0.05, 100: 0.10, 1000: 0.10}


class Bottleneck(nn.Module):
    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        outputs = 4 * width
        self.body = nn.Sequential(
            *(nn.Conv2d(inputs, width, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU()),
            *(nn.Conv2d(width, width, 3, stride, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU()),
            *(nn.Conv2d(width, outputs, 1, bias=False), nn.BatchNorm2d(outputs)),
        )
        same = stride == 1 and inputs == outputs
        self.skip = (
            nn.Identity()
            if same
            else nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))
        )

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.body(x) + self.skip(x))


def resnet50() -> nn.Module:
    layers: list[nn.Module] = [
        nn.Conv2d(3, 64, 7, 2, 3, bias=False),
        nn.BatchNorm2d(64),
        nn.ReLU(),
        nn.MaxPool2d(3, 2, 1),
    ]
    inputs = 64
    for width, count, stride in ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2)):
        for k in range(count):
            layers.append(Bottleneck(inputs, width, stride if k == 0 else 1))
            inputs = 4 * width
    layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, 1000)]
    return nn.Sequential(*layers).eval().requires_grad_(False)


def median(work: Callable[[], object], repeats: int) -> float:
    work()
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def model_seconds(repeats: int) -> float:
    """Forward and backward to the input of 256 images, from the time of 8."""
    model, x = resnet50(), torch.rand(BATCH, 3, 224, 224)

    def work() -> Tensor:
        leaf = x.requires_grad_()
        return torch.autograd.grad(model(leaf).sum(), leaf)[0]

    return median(work, repeats) * ROWS / BATCH


def logits_of(classes: int) -> tuple[Tensor, Tensor]:
    """Half Gaussian, half confident, as trained models have."""
    z = torch.randn(ROWS, classes, generator=torch.Generator().manual_seed(0))
    z[ROWS // 2 :, 0] += 6.0
    return z, z.argmax(dim=1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=5)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    bare = model_seconds(arguments.repeats)
    print(f"ResNet-50 forward+backward, {ROWS} images (timed at {BATCH}): {bare:.2f} s")
    loss = get_loss("tmifpe")
    for classes, budget in BUDGET.items():
        z, labels = logits_of(classes)
        ordered = z.sort(dim=1, descending=True).values
        d = (ordered[:, :1] - ordered[:, 1:]) / (ordered[:, :1] - ordered[:, 1:2])
        solver = median(lambda d=d: solve_t(d), 20 * arguments.repeats)
        leaf = z.requires_grad_()
        whole = median(lambda: torch.autograd.grad(loss(leaf, labels).sum(), leaf), 20 * arguments.repeats)  # noqa: B023
        verdict = "within" if solver <= budget * bare else "ABOVE"
        print(
            f"K = {classes:4d}: t* {1e3 * solver:8.2f} ms = {solver / bare:.5%} of the model, {verdict} {budget:.0%}"
            f" (whole loss with gradient {1e3 * whole:.2f} ms)"
        )


if __name__ == "__main__":
    main()
