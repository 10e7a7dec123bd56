"""What the doors take as images and labels: tensors, as their peers do."""

from __future__ import annotations

__all__ = ["check_batch"]

from typing import Any

from torch import Tensor

from tmifpe.core.errors import InputError


def check_batch(images: Any, labels: Any = None) -> None:
    """Refuse what is no tensor, and images of whole numbers: answers of their dtype would round every perturbation.

    >>> import torch
    >>> check_batch(torch.rand(2, 1, 4, 4), torch.tensor([0, 1]))
    """
    for what, given in (("images", images), ("labels", labels)):
        if given is not None and not isinstance(given, Tensor):
            raise InputError(
                f"the {what} must be a tensor, got {type(given).__name__}; from an array take torch.from_numpy({what})"
            )
    if not images.is_floating_point():
        word = str(images.dtype).removeprefix("torch.")
        raise InputError(
            f"the images are {word}; give floating numbers in [0, 1], for bytes of 0 to 255 `images.float() / 255`"
        )
