"""Train the two bundled models, `digits-robust` and `digits-distilled`, and say how they stand under attack.

    python scripts/train_digits.py [--out FOLDER]

It takes about two minutes on one core and, on one machine, gives the same bytes each time. It uses none of the
attacks of the package: the few lines of PGD here are a second opinion on what `tmifpe compare` says of these models.
"""

from __future__ import annotations

import argparse
import hashlib
import math
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors.torch import save
from torch import Tensor, nn

from tmifpe.data.digits import digits
from tmifpe.models.digits import DigitsCNN

WEIGHTS = Path(__file__).resolve().parent.parent / "src" / "tmifpe" / "models" / "weights"
EPS = 0.15
TEMPERATURE = 50.0


@dataclass(frozen=True)
class Recipe:
    """How a network is trained: Adam with one cycle of the learning rate, cross-entropy of logits / temperature."""

    seed: int
    epochs: int = 60
    batch: int = 64
    rate: float = 2e-3
    temperature: float = 1.0
    eps: float = 0.0
    attack_steps: int = 10


def main() -> None:
    parser = argparse.ArgumentParser(description="Train the bundled models.")
    parser.add_argument("--out", type=Path, default=WEIGHTS, help="folder for the .safetensors files")
    out = parser.parse_args().out
    out.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)  # sums in one order, so that the weights do not depend on the number of cores

    test = images("test")
    print(
        "| model | clean | CE, float32 | CE, float64 | margin, float32 | median gap | no gradient, float32, float64 |"
    )
    print("|---|---|---|---|---|---|---|")
    for name, train in (("digits-robust", robust), ("digits-distilled", distilled)):
        model = train(*images("train"))
        path = out / f"{name}.safetensors"
        path.write_bytes(save(model.state_dict()))
        print(f"| `{name}` | {describe(model, *test)} |", flush=True)
        print(f"{path.name}: sha256 {hashlib.sha256(path.read_bytes()).hexdigest()}", file=sys.stderr)


def images(part: str) -> tuple[Tensor, Tensor]:
    data = digits(part)
    return data.fetch(range(len(data)))


def robust(x: Tensor, labels: Tensor) -> nn.Module:
    """Adversarial training (Madry et al., 2018) at Linf `EPS`."""
    return fit(x, F.one_hot(labels, 10).float(), Recipe(seed=0, eps=EPS))


def distilled(x: Tensor, labels: Tensor) -> nn.Module:
    """Defensive distillation (Papernot et al., 2016).

    Teacher and student are trained at a high temperature, the student on the teacher's soft labels; the student is used
    at temperature 1, where its logits are `TEMPERATURE` times as far apart as the training needed.
    """
    teacher = fit(x, F.one_hot(labels, 10).float(), Recipe(seed=1, temperature=TEMPERATURE))
    with torch.no_grad():
        soft = (teacher(x) / TEMPERATURE).softmax(dim=1)
    return fit(x, soft, Recipe(seed=2, temperature=TEMPERATURE))


def fit(x: Tensor, targets: Tensor, recipe: Recipe) -> nn.Module:
    """Train a fresh network on soft `targets` (n, 10), on adversarial examples where the recipe has an eps."""
    torch.manual_seed(recipe.seed)
    model = DigitsCNN()
    optimiser = torch.optim.Adam(model.parameters())
    steps = recipe.epochs * math.ceil(len(x) / recipe.batch)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, recipe.rate, total_steps=steps)
    for epoch in range(recipe.epochs):
        # The ball grows over the first third: at once at full size the network would learn to say nothing.
        eps = recipe.eps * min(1.0, 3 * (epoch + 1) / recipe.epochs)
        for rows in torch.randperm(len(x)).split(recipe.batch):
            inputs = x[rows]
            if eps:
                labels = targets[rows].argmax(dim=1)
                inputs, _ = attack(model, inputs, labels, cross_entropy, eps, recipe.attack_steps)
            optimiser.zero_grad()
            F.cross_entropy(model(inputs) / recipe.temperature, targets[rows]).backward()
            optimiser.step()
            schedule.step()
    return model.eval().requires_grad_(False)


Loss = Callable[[Tensor, Tensor], Tensor]


def cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    return F.cross_entropy(logits, labels, reduction="sum")


def margin(logits: Tensor, labels: Tensor) -> Tensor:
    own = F.one_hot(labels, logits.shape[1]).bool()
    return (logits.masked_fill(own, -math.inf).amax(dim=1) - logits[own]).sum()


def attack(model: nn.Module, x: Tensor, labels: Tensor, loss: Loss, eps: float, steps: int) -> tuple[Tensor, Tensor]:
    """Linf PGD from a random start: the last point, and which examples were misclassified at any point.

    Step sizes are eps(1 + cos(pi i / steps)), the momentum of the iterate is 0.75, as in the paper.
    """

    def inside(point: Tensor) -> Tensor:
        return torch.clamp(point, x - eps, x + eps).clamp(0, 1)

    broken = torch.zeros_like(labels, dtype=torch.bool)
    adv = inside(x + eps * (2 * torch.rand_like(x) - 1))
    before = adv
    for i in range(steps):
        adv.requires_grad_()
        logits = model(adv)
        broken |= logits.argmax(dim=1) != labels
        (grad,) = torch.autograd.grad(loss(logits, labels), adv)
        adv = adv.detach()
        ahead = inside(adv + eps * (1 + math.cos(math.pi * i / steps)) * grad.sign())
        if i:
            ahead = inside(adv + 0.75 * (ahead - adv) + 0.25 * (adv - before))
        before, adv = adv, ahead
    with torch.no_grad():
        broken |= model(adv).argmax(dim=1) != labels
    return adv, broken


def describe(model: nn.Module, x: Tensor, labels: Tensor) -> str:
    """Accuracy: clean, then under PGD-100 by CE in both precisions and by the margin. Then what explains it: the
    median gap of the two largest logits, and the share of clean images at which the gradient of CE is exactly zero."""

    def accuracy(loss: Loss | None, dtype: torch.dtype) -> float:
        torch.manual_seed(0)
        net, inputs = model.to(dtype), x.to(dtype)
        correct = net(inputs).argmax(dim=1) == labels
        if loss is not None:
            correct &= ~attack(net, inputs, labels, loss, EPS, 100)[1]
        return 100 * correct.double().mean().item()

    def starved(dtype: torch.dtype) -> float:
        inputs = x.to(dtype, copy=True).requires_grad_()
        (grad,) = torch.autograd.grad(cross_entropy(model.to(dtype)(inputs), labels), inputs)
        return 100 * (grad.flatten(1).abs().amax(dim=1) == 0).double().mean().item()

    numbers = [accuracy(None, torch.float32), accuracy(cross_entropy, torch.float32)]
    numbers += [accuracy(cross_entropy, torch.float64), accuracy(margin, torch.float32)]
    top = model.float()(x).topk(2, dim=1).values
    numbers.append((top[:, 0] - top[:, 1]).median().item())
    shares = f"{starved(torch.float32):.1f}, {starved(torch.float64):.1f}"
    return " | ".join([*(f"{number:.1f}" for number in numbers), shares])


if __name__ == "__main__":
    main()
