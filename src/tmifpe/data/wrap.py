"""What a Python caller hands over, as data: tensors, a Dataset, a DataLoader."""

from __future__ import annotations

__all__ = ["as_data", "as_image", "as_label", "dataset_item"]

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    IterableDataset,
    SequentialSampler,
    TensorDataset,
    default_collate,
)

from tmifpe.core.errors import InputError, is_out_of_memory, raised
from tmifpe.core.rng import preserved_rng
from tmifpe.core.types import Data
from tmifpe.data.arrays import ArrayData, Item, LazyData


def as_data(data: Any, *, name: str | None = None) -> Data:
    """`(x, y)`, a list of pairs, a torch `Dataset` or `DataLoader`, or something that already is `Data`, as `Data`.

    A Dataset is read lazily. So is a DataLoader that goes through its dataset in order; any other is read once, in
    its own order, and held in memory. uint8 images are scaled to [0, 1]; floating ones keep their dtype.

    >>> len(as_data((torch.rand(4, 1, 8, 8), torch.tensor([1, 2, 3, 4]))))
    4
    """
    if callable(getattr(data, "fetch", None)) and hasattr(data, "__len__"):
        ours = type(data).__module__.startswith("tmifpe.")
        return cast(Data, data if ours else ForeignData(data))
    if isinstance(data, DataLoader):
        if not _in_order(data):
            return _read_once(data, name or "data loader")
        data = data.dataset
        if not isinstance(data, Dataset):  # whatever has items and a length, as a list of pairs has
            return LazyData(dataset_item(data), _length(data), name or "data loader")
    if isinstance(data, TensorDataset) and len(data.tensors) == 2:
        data = data.tensors
    if (
        isinstance(data, tuple | list)
        and len(data) == 2
        and all(isinstance(part, Tensor | np.ndarray) for part in data)
    ):
        return ArrayData(data[0], data[1], name=name or "tensors")
    pairs = isinstance(data, list) and all(isinstance(example, tuple | list) for example in data)
    if pairs or (isinstance(data, Dataset) and not isinstance(data, IterableDataset)):
        return LazyData(dataset_item(data), _length(data), name or type(data).__name__)
    if isinstance(data, tuple) and len(data) == 2:
        kinds = " and ".join(type(part).__name__ for part in data)
        raise InputError(f"images and labels must be tensors or NumPy arrays, got {kinds}; try torch.tensor(...)")
    raise InputError(
        f"data must be tensors (x, y), a list of pairs, a torch Dataset or a DataLoader, got {type(data).__name__}"
        + ("; a name such as 'mnist:DIR' is read by tmifpe.load_data" if isinstance(data, str) else "")
    )


def _in_order(loader: DataLoader[Any]) -> bool:
    """Whether it gives its dataset as it is, so that the dataset can be read instead."""
    sampler, batches = loader.sampler, loader.batch_sampler
    plain = batches is None or (type(batches) is BatchSampler and batches.sampler is sampler)
    whole = isinstance(sampler, SequentialSampler) and sampler.data_source is loader.dataset
    lazy = not isinstance(loader.dataset, IterableDataset) and not loader.drop_last
    return plain and whole and lazy and loader.collate_fn is default_collate


def dataset_item(data: Any) -> Item:
    """One example of a Dataset as an image tensor and a label; PIL images and arrays become tensors."""

    def item(position: int) -> tuple[Tensor, int]:
        with failing_clearly(f"example {position} of {type(data).__name__}"):
            example = data[position]
        if not isinstance(example, tuple | list) or len(example) < 2:
            raise InputError(f"example {position} of {type(data).__name__} is not a pair (image, label)")
        return as_image(example[0]), as_label(example[1])

    return item


class ForeignData:
    """`Data` of somebody else's make: whatever it raises becomes one sentence."""

    def __init__(self, data: Any) -> None:
        self._data = data

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):  # of copies and pickles, which ask before there is any data
            raise AttributeError(name)
        with failing_clearly(f"{name} of {type(self._data).__name__}", AttributeError):  # it may have none
            return getattr(self._data, name)

    def __len__(self) -> int:
        with failing_clearly(f"the length of {type(self._data).__name__}"):
            return len(self._data)

    def __repr__(self) -> str:
        return repr(self._data)

    def fetch(self, positions: Sequence[int]) -> tuple[Tensor, Tensor]:
        with failing_clearly(f"fetching from {type(self._data).__name__}"):
            return self._data.fetch(positions)


@contextmanager
def failing_clearly(what: str, but: type[Exception] = InputError) -> Iterator[None]:
    """Somebody's code runs within, and may fail in any way: one sentence, with file and line."""
    try:
        yield
    except (InputError, but):
        raise
    except (Exception, SystemExit) as error:
        if is_out_of_memory(error):
            raise
        raise InputError(f"{what} failed: {raised(error)}") from error


def as_image(image: Any) -> Tensor:
    """A tensor as it is; a PIL image or an array (H, W[, C]) of bytes as uint8 (C, H, W)."""
    if isinstance(image, Tensor):
        return image.detach()
    try:
        array = np.array(image)
    except Exception:  # ragged lists, or an object that fails to become an array in its own way
        array = np.empty(0)
    if array.ndim == 2:
        array = array[..., None]
    if array.ndim != 3 or array.dtype != np.uint8:
        raise InputError(f"an image must be a tensor (C, H, W) or a picture of bytes, got {type(image).__name__}")
    return torch.from_numpy(np.ascontiguousarray(array.transpose(2, 0, 1)))


def as_label(label: Any) -> int:
    try:
        if float(label) == int(label):
            return int(label)
    except (TypeError, ValueError, RuntimeError, OverflowError):
        pass
    raise InputError(f"a label must be a whole number, got {label!r}")


def _length(data: Any) -> int:
    try:
        return len(data)
    except Exception:  # none, or one that fails in its own way
        raise InputError(f"{type(data).__name__} has no length; give a Dataset with __len__") from None


def _read_once(loader: DataLoader[Any], name: str) -> Data:
    images: list[Tensor] = []
    labels: list[Tensor] = []
    # Iterating a loader draws a seed from the global generator; the caller's must be as it was.
    with preserved_rng(), _kept_generators(loader), failing_clearly(name):
        for batch in loader:
            if not isinstance(batch, tuple | list) or len(batch) < 2:
                raise InputError(f"{name} must give pairs (images, labels), got {type(batch).__name__}")
            try:
                image, label = (torch.as_tensor(part) for part in batch[:2])
            except (TypeError, ValueError, RuntimeError):
                raise InputError(f"{name} must give images and labels as tensors or arrays of numbers") from None
            single = label.ndim == 0  # a loader without batching
            images.append(image[None] if single else image)
            labels.append(label[None] if single else label)
    if not images:
        raise InputError(f"{name} is empty; nothing to evaluate")
    try:
        return ArrayData(torch.cat(images), torch.cat(labels), name=name)
    except RuntimeError as error:
        raise InputError(f"the batches of {name} do not fit together: {error}") from error


@contextmanager
def _kept_generators(loader: DataLoader[Any]) -> Iterator[None]:
    """Within, a loader may draw from generators of its own; after, they are as they were."""
    owners = (loader, loader.sampler, getattr(loader.batch_sampler, "sampler", None))
    found = [getattr(owner, "generator", None) for owner in owners]
    states = [(generator, generator.get_state()) for generator in found if isinstance(generator, torch.Generator)]
    try:
        yield
    finally:
        for generator, state in states:
            generator.set_state(state)
