"""`from tmifpe.compat.torchmetrics import RobustAccuracy`: robust accuracy as a Metric (extra `torchmetrics`)."""

from __future__ import annotations

__all__ = ["RobustAccuracy"]

from typing import Any

import torch
from torch import Tensor

from tmifpe.attacks import Attack, get_attack
from tmifpe.core.errors import InputError
from tmifpe.core.extras import import_extra
from tmifpe.core.types import Classifier, Model, Threat
from tmifpe.evaluation.evaluate import evaluate

# Any: the base class is only known once the extra is there.
_Metric: Any = import_extra("torchmetrics", "metrics", "torchmetrics", uses_torchvision=True).Metric


class RobustAccuracy(_Metric):
    """The share of the examples that are classified correctly and withstand `attack`, over all updates.

    The model is an argument of `update` and not kept, so that the metric can be copied, moved and reset as any other.
    Random starts belong to the position of an example among all that were given: batches of another size give the
    same number. Counts are summed over processes.

    >>> model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(4, 3))
    >>> metric = RobustAccuracy(Threat("linf", 8 / 255), attack="pgd(steps=5)")
    >>> for _ in range(2):
    ...     metric.update(model, torch.rand(4, 1, 2, 2), torch.zeros(4, dtype=torch.long))
    >>> bool(0.0 <= metric.compute() <= metric.clean() <= 1.0)
    True
    """

    is_differentiable = False
    higher_is_better = True
    full_state_update = False
    robust: Tensor
    correct: Tensor
    total: Tensor

    def __init__(self, threat: Threat, attack: Attack | str = "quick", *, seed: int = 0, **settings: Any) -> None:
        """`settings` are those of every Metric, such as `dist_sync_on_step`."""
        super().__init__(**settings)
        self.threat, self.seed = threat, seed
        self.attack = get_attack(attack) if isinstance(attack, str) else attack
        for name in ("robust", "correct", "total"):
            self.add_state(name, default=torch.tensor(0), dist_reduce_fx="sum")

    def update(self, model: Model | Classifier, images: Tensor, labels: Tensor) -> None:
        """Attack a batch: images (n, ...) in the threat's box, labels (n,). The model is left as it was."""
        found = evaluate(
            model,
            _Placed(images, labels, int(self.total)),
            self.threat,
            self.attack,
            seed=self.seed,
            batch_size=len(images),
            checks=False,
        )
        self.robust += int(found.outcomes.robust.sum())
        self.correct += int(found.outcomes.correct.sum())
        self.total += len(images)

    def compute(self) -> Tensor:
        """Robust accuracy in [0, 1]."""
        return self._share(self.robust)

    def clean(self) -> Tensor:
        """Clean accuracy of the same examples, in this process."""
        return self._share(self.correct)

    def _share(self, count: Tensor) -> Tensor:
        if not int(self.total):
            raise InputError("there is no robust accuracy yet: call update(model, images, labels) first")
        return count.float() / self.total


class _Placed:
    """A batch as `Data`, at its place among all that were given."""

    name, identity, classes = "batch", "", None

    def __init__(self, images: Tensor, labels: Tensor, first: int) -> None:
        self.images, self.labels = images.detach(), labels
        self.indices = range(first, first + len(images))

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.images.shape[1:])

    def __len__(self) -> int:
        return len(self.images)

    def fetch(self, positions: Any) -> tuple[Tensor, Tensor]:
        rows = torch.as_tensor(list(positions), device=self.images.device)
        return self.images[rows], self.labels[rows.to(self.labels.device)]
