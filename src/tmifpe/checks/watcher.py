"""What a model does inside its forward pass, seen by watching the calls it makes."""

from __future__ import annotations

__all__ = ["ForwardWatcher"]

from collections.abc import Callable
from typing import Any

from torch.overrides import TorchFunctionMode


class ForwardWatcher(TorchFunctionMode):
    """Within: notes dropout that drops, BatchNorm that uses the batch, and differentiation. Changes nothing.

    Unlike AutoAttack's check, which replaces torch.autograd.grad for the whole process and never forgets what it
    saw, this sees only the calls made inside its own `with`. Compiled TorchScript is not seen.

    >>> import torch
    >>> with ForwardWatcher() as seen:
    ...     _ = torch.nn.functional.dropout(torch.ones(2), 0.5)
    >>> seen.dropout, seen.gradient
    (True, False)
    """

    def __init__(self) -> None:
        super().__init__()
        self.dropout = self.batch_statistics = self.gradient = False

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        named = kwargs or {}
        name = getattr(func, "__name__", "")
        if "dropout" in name:  # F.dropout, F.dropout2d, F.alpha_dropout, torch.dropout, torch.feature_dropout, ...
            self.dropout |= _drops(args, named)
        elif name == "scaled_dot_product_attention":
            self.dropout |= named.get("dropout_p", 0.0) > 0
        elif name == "batch_norm":
            self.batch_statistics |= bool(named.get("training", args[5] if len(args) > 5 else False))
        elif name in ("grad", "backward"):
            self.gradient = True
        return func(*args, **named)


def _drops(args: tuple[Any, ...], named: dict[str, Any]) -> bool:
    """Functional dropout names its options when it is overridden; the operators below it take (input, p, train)."""
    p = named.get("p", args[1] if len(args) > 1 else 0.5)
    training = named.get("training", named.get("train", args[2] if len(args) > 2 else True))
    return bool(training) and float(p) > 0
