"""BatchNorm that normalises by the batch in eval mode: no single image can be read, and the run says what it is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import tmifpe
from tmifpe import PGD, Threat

THREAT = Threat("linf", 0.05)
X = torch.rand(9, 1, 2, 2, generator=torch.Generator().manual_seed(0))


class Functional(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return F.batch_norm(x, None, None, training=True)


class Stubborn(nn.BatchNorm1d):
    def train(self, mode: bool = True) -> nn.Module:
        return super().train(True)


LAYERS: dict[str, Callable[[], nn.Module]] = {
    "functional": Functional,
    "never in eval mode": lambda: Stubborn(8),
    "no averages": lambda: nn.BatchNorm1d(8, track_running_stats=False),
}


def network(layer: nn.Module) -> tuple[nn.Module, Tensor]:
    """And its predictions, read together."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = nn.Sequential(nn.Flatten(), nn.Linear(4, 8), layer, nn.ReLU(), nn.Linear(8, 3)).eval()
    before = [buffer.clone() for buffer in model.buffers()]
    y = model(X).argmax(dim=1)
    for buffer, value in zip(model.buffers(), before, strict=True):
        buffer.copy_(value)
    return model, y


@pytest.mark.parametrize("layer", LAYERS)
@pytest.mark.parametrize("options", [{}, {"batch_size": 1}, {"batch_size": 4}, {"indices": [3]}], ids=str)
def test_it_is_evaluated_and_flagged(layer: str, options: dict[str, Any]):
    model, y = network(LAYERS[layer]())
    before = [buffer.clone() for buffer in model.buffers()]
    found = tmifpe.evaluate(model, (X, y), THREAT, PGD(steps=5, smooth=3.0), **options)
    assert "batch-dependent" in [flag.name for flag in found.flags]
    alone = any("normalises by the batch: a single image was read beside its mirror image" in n for n in found.notes)
    assert alone or options == {}  # there the last rows may have left together
    assert all(map(torch.equal, model.buffers(), before))


def test_the_gradient_of_a_single_image_is_its_own():
    """It depends on its company, and the company is none of what is moved."""
    model, y = network(Functional())
    adv = PGD("ce", 1, schedule="constant", step_size=1.0, momentum=0.0, random_start=False)(
        model, X[:1], y[:1], THREAT
    )
    leaf = X[:1].clone().requires_grad_()
    logits = model(torch.cat([leaf, X[:1].flip(1, 2, 3)]))[:1]
    (grad,) = torch.autograd.grad(F.cross_entropy(logits, y[:1]), leaf)
    best = (X[:1] + THREAT.eps * grad.sign()).clamp(0, 1)
    assert torch.equal(adv, best) or torch.equal(adv, X[:1])  # the stronger of the two
    assert bool((grad != 0).any())


def test_other_failures_of_a_single_image_are_reported():
    def model(x: Tensor) -> Tensor:
        if len(x) == 1:
            raise ValueError("no single image")
        return x.flatten(1)

    with pytest.raises(tmifpe.InputError, match="the model failed on 1 images: ValueError: no single image"):
        PGD(steps=2)(model, X[:1], torch.zeros(1, dtype=torch.long), THREAT)
