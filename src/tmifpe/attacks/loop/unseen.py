"""Images in a place where no model has been given any.

A model may remember what it returned by where its images lay (`data_ptr`) or by the object that held them (`id`). Both
are given to other images as soon as they are free, so that a new tensor alone is no new question: the allocator hands
out the address of the one before. What is stated in the end is read from places that are new.
"""

from __future__ import annotations

__all__ = ["given", "unseen"]

from torch import Tensor

_ALIGNED = 64
"""Bytes: where torch itself begins a tensor on a CPU, so that the same kernels run."""
_PLACES = 64
"""Addresses to choose from in one piece of memory ..."""
_ROOMS = 64
"""... of so many pieces."""

# Of all models of this process, since one may outlive what asked it. Both repeat themselves, so that these stay small.
_addresses: set[int] = set()
_objects: set[int] = set()


def given(x: Tensor) -> Tensor:
    """The same images, noted as about to be given to a model."""
    _addresses.add(x.data_ptr())
    _objects.add(id(x))
    return x


def unseen(x: Tensor) -> Tensor:
    """A copy at an address and in an object that no model has been given before.

    >>> import torch
    >>> x = given(torch.rand(2, 3))
    >>> y = unseen(x)
    >>> bool((x == y).all()), x.data_ptr() == y.data_ptr()
    (True, False)
    """
    step, size = _ALIGNED // x.element_size(), x.numel()
    refused: list[Tensor] = []  # held, so that the next are others
    for _ in range(_ROOMS if size else 0):
        room = x.new_empty(size + _PLACES * step)
        refused.append(room)
        for begin in range(0, _PLACES * step, step):
            copy = room[begin : begin + size].view(x.shape)
            if copy.data_ptr() not in _addresses and id(copy) not in _objects:
                return copy.copy_(x)
            refused.append(copy)
    return x.clone()  # after so many tries; the flag `remembers-images` still sees a model that minds
