"""Which modules an attack passes as the identity: those that the patterns name, if that can work."""

from __future__ import annotations

__all__ = ["passed_modules"]

from collections.abc import Sequence

from tmifpe.attacks import Queries
from tmifpe.attacks.hooks.straight_through import matching_modules, through_identity
from tmifpe.attacks.loop.frozen import preserved_state
from tmifpe.core.errors import InputError, shown
from tmifpe.core.types import Data
from tmifpe.run.prepared_model import PreparedModel


def passed_modules(prepared: PreparedModel, patterns: Sequence[str], data: Data) -> tuple[str, ...]:
    """The modules that the patterns name and that one image passes; `InputError` where the identity cannot do that."""
    names = matching_modules(prepared.model, patterns)
    if not names:
        return ()
    x, _ = data.fetch(range(1))
    with preserved_state(prepared.model, prepared.device), through_identity(prepared.model, names) as called:
        Queries(prepared.model, prepared.dtype).logits(x.to(prepared.device, prepared.image_dtype))
    for pattern in patterns:
        if not called & set(matching_modules(prepared.model, [pattern])):
            raise InputError(
                f"no module that matches {shown(pattern)} is called in the forward pass: straight_through would "
                "change nothing"
            )
    return tuple(sorted(called))
