"""`from tmifpe.compat.lightning import RobustAccuracyCallback`: for a Trainer of Lightning (extra `lightning`)."""

from __future__ import annotations

__all__ = ["RobustAccuracyCallback"]

import importlib.util
from typing import Any

from tmifpe.attacks import Attack
from tmifpe.compat.training import RobustProbe
from tmifpe.core.extras import import_extra
from tmifpe.core.types import Threat

_package = "pytorch_lightning" if importlib.util.find_spec("lightning") is None else "lightning.pytorch"
# Any: the base class is only known once the extra is there.
_Callback: Any = import_extra(_package, "Lightning callbacks", "lightning", uses_torchvision=True).Callback


class RobustAccuracyCallback(_Callback):
    """Logs `robust_accuracy` and `clean_accuracy` every `every` epochs, to whatever loggers the trainer has.

    It is a `RobustProbe` after every training epoch; the module's `forward` must return logits. Only the first process
    of several measures. `probe.history` keeps the numbers.

    >>> import torch
    >>> data = torch.rand(30, 1, 2, 2), torch.arange(30) % 3
    >>> callback = RobustAccuracyCallback(data, Threat("linf", 8 / 255), n=12, every=2)
    >>> callback.probe.is_due(1)
    True
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
    ) -> None:
        super().__init__()
        self.probe = RobustProbe(data, threat, n, every, attack, seed=seed, batch_size=batch_size)

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        if trainer.is_global_zero and self.probe(pl_module, trainer.current_epoch) is not None:
            pl_module.log_dict(self.probe.history[trainer.current_epoch], rank_zero_only=True)
