"""Adversarial examples inside a training loop, for the price of a loop written by hand."""

from __future__ import annotations

__all__ = ["MADRY", "attack"]

import torch
from torch import Tensor

from tmifpe.attacks.ascent import Ascent
from tmifpe.attacks.loop.frozen import dtype_of, frozen
from tmifpe.attacks.loop.queries import Queries
from tmifpe.attacks.loop.rows import Problem
from tmifpe.attacks.pgd import PGD
from tmifpe.core.errors import InputError, shown
from tmifpe.core.types import Classifier, Model, Threat

MADRY = PGD(loss="ce", steps=10, schedule="constant", step_size=0.25, momentum=0.0)
"""What most adversarial training climbs with: ten steps of eps/4 on cross-entropy, from a random start."""


@torch.inference_mode(False)  # an attack needs gradients, wherever it is called
def attack(
    model: Model | Classifier,
    x: Tensor,
    labels: Tensor,
    threat: Threat,
    by: Ascent = MADRY,
    *,
    targets: Tensor | None = None,
    seed: int = 0,
) -> Tensor:
    """The last point of `by` for every image of a batch, and nothing else: no verdicts, no checks, no store.

    The batch must be right: floating images in the threat's box and int64 labels, on the device of the model. The
    model is in eval mode meanwhile. Its mode, gradients and buffers and the RNG state are left as they were; give
    `seed` the number of the training step, or every step starts from the same noise. To evaluate, use `evaluate`,
    or call an attack itself: `PGD()(model, x, labels, threat)` returns the strongest point.

    >>> import torch, tmifpe
    >>> model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(4, 3))
    >>> x, y = torch.rand(8, 1, 2, 2), torch.zeros(8, dtype=torch.long)
    >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    >>> for step in range(2):
    ...     adv = tmifpe.attack(model, x, y, tmifpe.Threat("linf", 8 / 255), seed=step)
    ...     optimizer.zero_grad()
    ...     torch.nn.functional.cross_entropy(model(adv), y).backward()
    ...     optimizer.step()
    >>> bool(((adv - x).abs() <= 8 / 255 + 1e-6).all())
    True
    """
    if not isinstance(by, Ascent) or by.reads_clean or by.restarts != 1:
        raise InputError(f"in training an attack climbs once from one start, such as PGD(steps=10), got {shown(by)}")
    network: Model = model.module if isinstance(model, Classifier) else model
    indices = torch.arange(len(x), device=x.device)
    problem = Problem(x.detach(), labels, targets, indices, threat, seed)
    with frozen(network) as still:
        queries, state = Queries(still, dtype_of(network)), by.init(problem)
        for _ in range(by.steps):
            found = queries.look(state.x, by.objective(problem, state), by.smoothness(state))
            state = by.step(problem, state, found)
    return state.x
