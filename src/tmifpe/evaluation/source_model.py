"""Another model, whose gradients lead an attack on the one that is evaluated."""

from __future__ import annotations

__all__ = ["source_model"]

from collections.abc import Iterator
from contextlib import contextmanager

from tmifpe.attacks import Queries
from tmifpe.checks.survivors import Source
from tmifpe.core.errors import MisfitError, ModelError, first_line
from tmifpe.core.types import Classifier, Data, Model
from tmifpe.models import check_compatible, model_identity
from tmifpe.run.prepared_model import PreparedModel, prepare_model
from tmifpe.run.request import require_model


@contextmanager
def source_model(given: Model | Classifier | None, target: PreparedModel, data: Data) -> Iterator[Source | None]:
    """The model made ready where the evaluated one is, in its own precision; both are tried on one image, to fail now
    and not after the attack."""
    if given is None:
        yield None
        return
    classifier = given if isinstance(given, Classifier) else None
    network: Model = classifier.module if classifier is not None else given
    require_model(network)
    if classifier is not None:
        check_compatible(classifier, data)
    name = classifier.name if classifier is not None else type(network).__name__
    said = classifier.identity if classifier is not None else ""
    with prepare_model(network, device=target.device) as prepared:
        mine, theirs = _classes(target, data, "the model"), _classes(prepared, data, f"from_model ({name})")
        if mine != theirs:
            raise MisfitError(f"from_model ({name}) has {theirs} classes, and the model that it is to break has {mine}")
        yield Source(prepared, name, model_identity(network, [said] if said else []) or "")


def _classes(prepared: PreparedModel, data: Data, what: str) -> int:
    x, _ = data.fetch(range(1))
    try:
        return Queries(prepared.model, prepared.dtype).logits(x.to(prepared.device, prepared.image_dtype)).shape[1]
    except ModelError as error:
        reason = first_line(error.__cause__ or error)
        raise MisfitError(f"{what} does not take images of shape {tuple(x.shape[1:])}: {reason}") from error
