"""Which of the paper's four scenarios each row of logits is in."""

from __future__ import annotations

__all__ = ["Scenario", "is_top", "scenarios"]

from enum import Enum

from torch import Tensor


class Scenario(Enum):
    """Untargeted or targeted attack, unsuccessful or successful so far."""

    U_U = "u_u"
    U_S = "u_s"
    T_U = "t_u"
    T_S = "t_s"

    @property
    def targeted(self) -> bool:
        return self in (Scenario.T_U, Scenario.T_S)

    @property
    def top(self) -> bool:
        """The class that the loss names is the largest: g has a maximum (else it only increases)."""
        return self in (Scenario.U_U, Scenario.T_S)

    def __str__(self) -> str:
        return self.value

    @staticmethod
    def of(top: bool, targeted: bool) -> Scenario:
        if targeted:
            return Scenario.T_S if top else Scenario.T_U
        return Scenario.U_U if top else Scenario.U_S


def is_top(logits: Tensor, aim: Tensor) -> Tensor:
    """Rows whose class `aim` has the largest logit; a tie counts as top, since its limit Delta -> 0 is that of u_u."""
    return logits.gather(1, aim[:, None])[:, 0] == logits.amax(dim=1)


def scenarios(logits: Tensor, labels: Tensor, targets: Tensor | None = None) -> list[Scenario]:
    """The scenario of each row of (n, K) logits.

    >>> import torch
    >>> [str(s) for s in scenarios(torch.tensor([[2.0, 1.0], [1.0, 2.0], [1.0, 1.0]]), torch.tensor([0, 0, 0]))]
    ['u_u', 'u_s', 'u_u']
    """
    top = is_top(logits, labels if targets is None else targets)
    return [Scenario.of(flag, targets is not None) for flag in top.tolist()]
