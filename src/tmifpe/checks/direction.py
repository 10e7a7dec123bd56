"""Does the attack climb where it should? Seen in the clean logits alone, without asking the model."""

from __future__ import annotations

__all__ = ["check_direction", "logit_gradient"]

from collections.abc import Iterator

import torch
from torch import Tensor

from tmifpe.attacks import Stepwise
from tmifpe.checks.flags import flag
from tmifpe.checks.sample import Sample, share
from tmifpe.core import numerics
from tmifpe.losses.loss import as_values
from tmifpe.run.result import Flag

_MOST = 0.5
"""A loss may sacrifice a few examples on purpose; one that leads most of them back has the wrong sign."""
_ROUNDING = 1e-6


def check_direction(attacks: list[Stepwise], correct: Sample) -> Iterator[Flag]:
    """Of each loss, whether a small step along it lowers the margin, which the attack must raise."""
    if not len(correct):
        return
    p = correct.problem
    with torch.enable_grad():
        leaf = correct.logits.detach().requires_grad_()
        (uphill,) = torch.autograd.grad(numerics.margin(leaf, p.labels, p.targets).sum(), leaf)
    wrong: dict[str, int] = {}
    for attack in attacks:
        grad = logit_gradient(attack, correct, correct.logits.dtype)
        lowered = (grad * uphill).sum(dim=1) < -_ROUNDING * grad.norm(dim=1)
        if share(lowered) > _MOST:
            wrong[str(getattr(attack, "loss", attack.name)).partition("@")[0]] = int(lowered.sum())
    for name, count in wrong.items():
        seen = f"A step that raises {name} lowers the margin of {count} of {len(correct)} correct images."
        yield flag("loss-lowers-margin", seen)


def logit_gradient(attack: Stepwise, sample: Sample, dtype: torch.dtype | None) -> Tensor:
    """d objective / d logits (n, K) at the clean logits, in this dtype, or their own."""
    objective = attack.objective(sample.problem, attack.init(sample.problem))
    with torch.enable_grad():
        leaf = sample.logits.detach().to(dtype).requires_grad_()
        return torch.autograd.grad(as_values(objective(leaf), leaf).sum(), leaf)[0]
