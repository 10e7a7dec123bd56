"""Does the model take these images? Asked before any compute is spent."""

from __future__ import annotations

__all__ = ["check_compatible", "count_classes", "resizing_note"]

import torch
from torch import Tensor, nn

from tmifpe.core.errors import InputError, MisfitError, first_line, shown
from tmifpe.core.outputs import as_logits
from tmifpe.core.rng import preserved_rng
from tmifpe.core.types import UNIT, Box, Classifier, Data, Model


def check_compatible(classifier: Classifier, data: Data, box: Box = UNIT) -> None:
    """`MisfitError` where box, channels, size or classes of the data differ from what the model states.

    A model that states no input size is shown two grey images of the data's shape.
    """
    shape = tuple(data.shape)
    if classifier.box not in (None, box):
        made_for, given = (f"[{low:g}, {high:g}]" for low, high in (classifier.box, box))
        raise MisfitError(
            f"{classifier.name} takes images in {made_for}, not in {given}; leave out the box"
            + ("" if classifier.takes_bytes else f", or give its normalisation in units of {given} (`mean` and `std`)")
        )
    if classifier.input_shape is not None and not _takes(classifier, shape):
        raise MisfitError(
            f"{classifier.name} takes images of shape {_times(classifier.input_shape)}, "
            f"but those of {data.name} have {_times(shape)}"
        )
    if classifier.mean is not None and len(classifier.mean) != shape[0]:
        raise MisfitError(
            f"mean and std have {len(classifier.mean)} numbers, but the images of {data.name} have {shape[0]} channels"
        )
    classes = classifier.classes
    if shape != classifier.input_shape or classes is None:
        classes = count_classes(classifier.module, shape, classifier.name)
    named: tuple[str, ...] = getattr(data, "class_names", ())
    if data.classes is not None and data.classes != classes:
        hint = "; name all of the model's, in its order, with `classes=FILE`" if named else ""
        raise MisfitError(f"{classifier.name} has {classes} classes, but {data.name} has {data.classes}{hint}")
    _check_order(classifier, named, data.name)
    labels = getattr(data, "labels", None)
    if isinstance(labels, Tensor) and int(labels.max()) >= classes:
        raise MisfitError(
            f"{data.name} has label {int(labels.max())}, but {classifier.name} has only {classes} classes "
            f"(0 … {classes - 1})"
        )


def _takes(classifier: Classifier, shape: tuple[int, ...]) -> bool:
    stated = classifier.input_shape
    if classifier.resizes and stated is not None and len(shape) == 3:
        return shape[0] == stated[0]
    return shape == stated


def resizing_note(classifier: Classifier, shape: tuple[int, ...]) -> tuple[str, ...]:
    """A remark where the model resizes images of this shape."""
    stated = classifier.input_shape
    if not classifier.resizes or stated is None or tuple(shape) == stated:
        return ()
    sizes = _times(tuple(shape)[1:]), _times(stated[1:])
    return (f"the model resizes images of {sizes[0]} to {sizes[1]} by itself; eps is measured on those of {sizes[0]}",)


def _check_order(classifier: Classifier, named: tuple[str, ...], data: str) -> None:
    """`MisfitError` if a class that both know by name has another number in the data than in the model."""
    own = {name.casefold(): number for number, name in enumerate(classifier.class_names)}
    for number, name in enumerate(named):
        if own.get(name.casefold(), number) != number:
            raise MisfitError(
                f"the class {shown(name)} is number {number} in {data}, but {own[name.casefold()]} in "
                f"{classifier.name}; name the classes in the model's order with `classes=FILE`"
            )


def count_classes(model: Model, shape: tuple[int, ...], name: str) -> int:
    """K, from one forward pass of two grey images; changes no random state and keeps no graph."""
    example = next(model.parameters(), None) if isinstance(model, nn.Module) else None
    dtype = example.dtype if example is not None and example.dtype.is_floating_point else torch.float32
    device = None if example is None else example.device
    try:
        with torch.no_grad(), preserved_rng():
            output = model(torch.full((2, *shape), 0.5, dtype=dtype, device=device))
    except InputError:
        raise
    except Exception as error:  # any network may fail in any way on a shape it was not made for
        first = first_line(error)
        raise MisfitError(f"{name} does not take images of shape {_times(shape)}: {first}") from error
    try:
        return int(as_logits(output, 2).shape[1])
    except InputError as error:
        raise InputError(f"{name}: {error}") from None


def _times(shape: tuple[int, ...]) -> str:
    return "x".join(str(side) for side in shape)
