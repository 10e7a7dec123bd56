"""When are two models the same? When their parameters and buffers are, and what was said of the rest."""

from __future__ import annotations

__all__ = ["model_identity"]

from collections.abc import Iterable

from torch import nn

from tmifpe.core.hashing import digest
from tmifpe.core.types import Model


def model_identity(model: Model, parts: Iterable[str] = ()) -> str | None:
    """A hash of every parameter and buffer (name, dtype, shape, bytes) and of `parts`.

    `parts` says what tensors do not: the architecture's name, the hash of a factory's file. None for a callable
    without tensors and without parts, which nothing tells apart from another.
    """
    extra = list(parts)
    if isinstance(model, nn.Module):
        kind = type(model)
        extra.append(f"{kind.__module__}.{kind.__qualname__}")
        # Repeated names, since a tensor shared by two layers belongs to both.
        named = [*model.named_parameters(remove_duplicate=False), *model.named_buffers(remove_duplicate=False)]
        return digest([*extra, *(part for pair in named for part in pair)])
    return digest(extra) if extra else None
