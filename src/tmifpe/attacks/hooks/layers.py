"""A look at a few images: in which module does the gradient of this model die?"""

from __future__ import annotations

__all__ = ["ROWS", "LayerGradient", "Layers", "look_at_layers"]

from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from tmifpe.attacks.hooks.layer_gradient import LayerGradient
from tmifpe.attacks.loop.frozen import preserved_state
from tmifpe.attacks.loop.queries import Queries
from tmifpe.core.errors import ModelError, first_line
from tmifpe.core.rng import seed_rng
from tmifpe.losses import get_loss

ROWS = 16
"""Images looked at: enough to see what concerns a tenth of them."""


@dataclass(frozen=True)
class Layers:
    """The modules in the order of the forward pass; or, where nothing was seen of them, a `note` that says why."""

    found: tuple[LayerGradient, ...] = ()
    note: str = ""
    rows: int = 0
    """Images looked at."""

    @property
    def dying(self) -> tuple[LayerGradient, ...]:
        return tuple(layer for layer in self.found if layer.dies)


def look_at_layers(queries: Queries, x: Tensor, labels: Tensor, targets: Tensor | None = None) -> Layers:
    """What becomes of the gradient of the margin on its way back through the model, on at most `ROWS` images.

    >>> model = nn.Sequential(nn.Flatten(), nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
    >>> seen = look_at_layers(Queries(model), torch.rand(5, 1, 2, 2), torch.zeros(5, dtype=torch.long))
    >>> [layer.kind for layer in seen.found], seen.dying
    (['Flatten', 'Linear', 'ReLU', 'Linear'], ())
    """
    # torch.compile keeps the model that it was given, with the same layers.
    queries = replace(queries, model=getattr(queries.model, "_orig_mod", queries.model))
    model, loss = queries.model, get_loss("cw")
    if not isinstance(model, nn.Module):
        return Layers(note="the model is a function: in which of its layers a gradient dies cannot be told")
    if isinstance(model, torch.jit.ScriptModule):
        return Layers(note="TorchScript runs without its modules: in which of them a gradient dies cannot be told")
    x, labels = x[:ROWS], labels[:ROWS]
    aims = None if targets is None else targets[:ROWS]
    with preserved_state(model, x.device):
        try:
            seed_rng(x.device, 0)
            plain = queries.logits(x)
            seed_rng(x.device, 0)
            logits, found = queries.layers(x, lambda z: loss(z, labels, aims))
        except ModelError as error:
            reason = first_line(error.__cause__ or error)
            return Layers(note=f"in which module a gradient dies could not be measured: {reason}")
    if not found:
        return Layers(note="no module was seen at work: in which of them a gradient dies cannot be told")
    if not torch.allclose(logits, plain, rtol=1e-3, atol=1e-3 * float(plain.abs().max()), equal_nan=True):
        return Layers(note="in which module a gradient dies could not be measured: single modules give other logits")
    return Layers(found, rows=len(x))
