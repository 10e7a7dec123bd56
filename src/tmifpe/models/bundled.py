"""`digits-robust` and `digits-distilled`: the models that come with the package."""

from __future__ import annotations

__all__ = ["bundled"]

from importlib import resources

from tmifpe.core.errors import InputError
from tmifpe.core.types import UNIT
from tmifpe.models.digits import DigitsCNN
from tmifpe.models.source import Asked, Loaded, nothing_after
from tmifpe.models.weights import load_weights


def bundled(asked: Asked) -> Loaded:
    """A `DigitsCNN` with the weights shipped under its name, or with the user's own."""
    nothing_after(asked)
    module = DigitsCNN()
    if asked.weights is not None:
        load_weights(module, asked.weights, asked.source)
    else:
        with resources.as_file(resources.files("tmifpe.models") / "weights" / f"{asked.source}.safetensors") as path:
            if not path.is_file():
                raise InputError(
                    f"the weights of {asked.source} are not in this installation ({path.name}); "
                    "make them with scripts/train_digits.py or reinstall"
                )
            load_weights(module, path, asked.source)
    return Loaded(module, stamp="digits", classes=10, input_shape=(1, 8, 8), box=UNIT)
