"""Does the model take these images? Asked before any compute is spent."""

from __future__ import annotations

__all__ = ["check_compatible", "count_classes"]

import torch
from torch import Tensor, nn

from tmifpe.core.errors import InputError, MisfitError, first_line
from tmifpe.core.types import Classifier, Data, Model


def check_compatible(classifier: Classifier, data: Data) -> None:
    """`MisfitError` where channels, size or classes of the data differ from what the model states.

    A model that states no input size is shown two grey images of the data's shape.
    """
    shape = tuple(data.shape)
    if classifier.input_shape is not None and shape != classifier.input_shape:
        raise MisfitError(
            f"{classifier.name} takes images of shape {_times(classifier.input_shape)}, "
            f"but those of {data.name} have {_times(shape)}"
        )
    if classifier.mean is not None and len(classifier.mean) != shape[0]:
        raise MisfitError(
            f"mean and std have {len(classifier.mean)} numbers, but the images of {data.name} have {shape[0]} channels"
        )
    classes = classifier.classes
    if classifier.input_shape is None or classes is None:
        classes = count_classes(classifier.module, shape, classifier.name)
    if data.classes is not None and data.classes != classes:
        raise MisfitError(f"{classifier.name} has {classes} classes, but {data.name} has {data.classes}")
    labels = getattr(data, "labels", None)
    if isinstance(labels, Tensor) and int(labels.max()) >= classes:
        raise MisfitError(
            f"{data.name} has label {int(labels.max())}, but {classifier.name} has only {classes} classes "
            f"(0 … {classes - 1})"
        )


def count_classes(model: Model, shape: tuple[int, ...], name: str) -> int:
    """K, from one forward pass of two grey images; changes no random state and keeps no graph."""
    example = next(model.parameters(), None) if isinstance(model, nn.Module) else None
    dtype = example.dtype if example is not None and example.dtype.is_floating_point else torch.float32
    device = None if example is None else example.device
    try:
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            logits = model(torch.full((2, *shape), 0.5, dtype=dtype, device=device))
    except InputError:
        raise
    except Exception as error:  # any network may fail in any way on a shape it was not made for
        first = first_line(error)
        raise MisfitError(f"{name} does not take images of shape {_times(shape)}: {first}") from error
    if not isinstance(logits, Tensor) or logits.ndim != 2 or len(logits) != 2:
        got = f"shape {tuple(logits.shape)}" if isinstance(logits, Tensor) else type(logits).__name__
        raise InputError(f"{name} must give logits of shape (n, K), but for 2 images gave {got}")
    return int(logits.shape[1])


def _times(shape: tuple[int, ...]) -> str:
    return "x".join(str(side) for side in shape)
