"""Robust accuracy while a model is trained, in any loop: cheap, in memory, and without a trace in the training."""

from __future__ import annotations

__all__ = ["RobustProbe"]

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from tmifpe.attacks import Attack
from tmifpe.core.numbers import whole_number
from tmifpe.core.rng import preserved_rng
from tmifpe.core.types import Classifier, Data, Model, Threat
from tmifpe.data import as_data, stratified
from tmifpe.evaluation.evaluate import evaluate
from tmifpe.run.result import Result

Sink: TypeAlias = Callable[[Mapping[str, float], int], None]
"""Given the numbers and the epoch: say, `lambda numbers, epoch: wandb.log(dict(numbers), step=epoch)`."""


class RobustProbe:
    """Every `every` epochs, clean and robust accuracy of the same `n` examples, each class by its share.

    The model is in eval mode meanwhile. Its weights, gradients, buffers and mode, the optimiser and the RNG state are
    as before: a training with the probe gives the same weights, bit for bit, as one without.

    log: told of the numbers; `history` keeps them, by epoch.

    >>> import torch
    >>> model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(4, 3))
    >>> data = torch.rand(30, 1, 2, 2), torch.arange(30) % 3
    >>> probe = RobustProbe(data, Threat("linf", 8 / 255), n=12, every=2, attack="pgd(steps=5)")
    >>> for epoch in range(4):
    ...     found = probe(model, epoch)  # after the epoch's own steps
    >>> sorted(probe.history), sorted(probe.history[1])
    ([1, 3], ['clean_accuracy', 'robust_accuracy'])
    """

    def __init__(
        self,
        data: Any,
        threat: Threat,
        n: int = 256,
        every: int = 1,
        attack: Attack | str = "quick",
        *,
        seed: int = 0,
        batch_size: int | None = None,
        log: Sink | None = None,
    ) -> None:
        with preserved_rng():  # to read labels may be to draw
            self.data: Data = stratified(as_data(data), whole_number("n", n), seed)
        self.threat, self.attack, self.every = threat, attack, whole_number("every", every)
        self.seed, self.batch_size, self.log = seed, batch_size, log
        self.history: dict[int, dict[str, float]] = {}

    def is_due(self, epoch: int) -> bool:
        """Whether this epoch, counted from 0, is the last of `every`."""
        return (epoch + 1) % self.every == 0

    def __call__(self, model: Model | Classifier, epoch: int) -> Result | None:
        """The result after this epoch, or None if it is not due."""
        if not self.is_due(epoch):
            return None
        found = evaluate(
            model,
            self.data,
            self.threat,
            self.attack,
            seed=self.seed,
            batch_size=self.batch_size,
            checks=False,
        )
        self.history[epoch] = {"clean_accuracy": found.clean_accuracy, "robust_accuracy": found.robust_accuracy}
        if self.log is not None:
            self.log(self.history[epoch], epoch)
        return found
