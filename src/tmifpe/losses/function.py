"""A plain function as a loss: `f(logits, labels, targets) -> (n,)`."""

from __future__ import annotations

__all__ = ["function_loss"]

import dataclasses
import inspect
from collections.abc import Callable
from inspect import Parameter
from typing import Any, cast

from torch import Tensor

from tmifpe.core.errors import InputError
from tmifpe.losses.loss import Loss

_PLAIN = (bool, int, float, str, type(None))
_POSITIONAL = (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)


def function_loss(function: Callable[..., Tensor], name: str) -> type[Loss]:
    """A loss class around a function of logits, labels and, if attacks on it may be targeted, targets.

    Further parameters with a plain default are the options of the loss.

    >>> def hinge(logits, labels, targets=None, *, margin=1.0): ...
    >>> function_loss(hinge, "hinge")(margin=2.0)
    hinge(margin=2.0)
    """
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):  # a builtin without a signature
        raise InputError(f"{name} has no signature; wrap it as f(logits, labels, targets)") from None
    positional = [p for p in parameters if p.kind in _POSITIONAL]
    # An optional third parameter is taken for the targets only if it says so: F.cross_entropy has weights there.
    takes_targets = any(p.name == "targets" or p.default is Parameter.empty for p in positional[2:3])
    first = positional[: 3 if takes_targets else 2]
    rest = [p for p in parameters if p not in first]
    if len(first) < 2 or any(p.default is Parameter.empty and p.kind in (*_POSITIONAL, p.KEYWORD_ONLY) for p in rest):
        signature = str(inspect.signature(function))
        raise InputError(f"a loss is called as f(logits, labels, targets); {name}{signature} cannot be")
    options = [p for p in rest if p.kind is not p.POSITIONAL_ONLY and isinstance(p.default, _PLAIN)]

    def call(self: Any, logits: Tensor, labels: Tensor, targets: Tensor | None = None) -> Tensor:
        chosen = {p.name: getattr(self, p.name) for p in options}
        if takes_targets:
            return function(logits, labels, targets, **chosen)
        if targets is not None:
            raise InputError(f"{name} takes no targets, so no attack on it can be targeted; let it take targets")
        return function(logits, labels, **chosen)

    made = dataclasses.make_dataclass(
        name.rpartition(":")[2].replace("-", "_").replace(".", "_"),
        [(p.name, Any, p.default) for p in options],
        bases=(Loss,),
        namespace={"__call__": call, "__doc__": function.__doc__, "name": name},
        frozen=True,
    )
    return cast("type[Loss]", made)
