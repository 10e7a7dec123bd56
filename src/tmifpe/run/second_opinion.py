"""A second opinion: the same model in another precision, which reads every adversarial example too."""

from __future__ import annotations

__all__ = ["as_precision", "second_opinion"]

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from tmifpe.attacks.loop.queries import Queries
from tmifpe.core.errors import InputError, ModelError, first_line
from tmifpe.core.rng import preserved_rng
from tmifpe.core.types import Data, Model
from tmifpe.run.prepared_model import PreparedModel, prepare_model
from tmifpe.run.spec import get_precision

_ALIASES = {"float64": "fp64", "float32": "fp32", "bfloat16": "bf16", "float16": "fp16"}


def as_precision(name: str) -> str:
    """The one spelling of a precision: `fp64` for `float64` too.

    >>> as_precision("float64"), as_precision("fp32")
    ('fp64', 'fp32')
    """
    name = _ALIASES.get(name, name)
    get_precision(name)
    return name


@contextmanager
def second_opinion(
    model: Model, prepared: PreparedModel, verify: str | None, data: Data
) -> Iterator[PreparedModel | None]:
    """The model in the precision of the second opinion; tried on one image, to fail now and not after the attack."""
    if verify is None:
        yield None
        return
    precision = as_precision(verify)
    if prepared.precision == precision:
        raise InputError(f"the run is in {precision} already; give verify another precision")
    apple = prepared.device.type == "mps" and precision == "fp64"  # Apple's GPUs have no float64
    place = torch.device("cpu") if apple else prepared.device
    with prepare_model(model, precision, place) as second:
        x, _ = data.fetch(range(1))
        try:
            with preserved_rng(place):
                Queries(second.model, second.dtype).logits(x.to(place, second.image_dtype))
        except ModelError as error:  # any network may fail in any way on a dtype it was not made for
            reason = first_line(error.__cause__ or error)
            raise InputError(f"the model cannot be read in {precision} for a second opinion: {reason}") from error
        yield second
