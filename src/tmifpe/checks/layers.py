"""Does the gradient die in a module that can be named?"""

from __future__ import annotations

__all__ = ["check_layers"]

from collections.abc import Iterator, Sequence

from tmifpe.attacks.hooks.layers import LayerGradient, Layers
from tmifpe.checks.flags import flag
from tmifpe.run.result import Flag

_LISTED = 4


def check_layers(layers: Layers, passed: Sequence[str]) -> Iterator[Flag]:
    """A flag that names the modules, but for those that the attack passed as the identity (`straight_through`)."""
    dying = [layer for layer in layers.dying if not any(f"{layer.name}.".startswith(f"{name}.") for name in passed)]
    if not dying:
        return
    said = [f"{layer} {_lost(layer)}" for layer in dying[:_LISTED]]
    more = f"; and {len(dying) - _LISTED} more" if len(dying) > _LISTED else ""
    yield flag("gradient-dies", f"Of {layers.rows} images, {'; '.join(said)}{more}.")


def _lost(layer: LayerGradient) -> str:
    parts = [
        (layer.none, "leaves {} without a gradient"),
        (layer.faint, "leaves {} nearly none"),
        (layer.shattered, "gives {} one that points elsewhere a step away"),
    ]
    text = " and ".join(words.format(f"{share:.0%}") for share, words in parts if share)
    return text + (", by calls in its own forward pass" if layer.own else "")
