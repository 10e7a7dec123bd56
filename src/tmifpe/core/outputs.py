"""What a model returns, read as logits: a tensor as it is, and the usual records where there is only one reading."""

from __future__ import annotations

__all__ = ["as_logits", "check_clean", "read_output"]

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tmifpe.core.errors import InputError

_ONE_LOGIT = "the model returns one number per image, which is read as the logit of class 1 against 0 for class 0"
_BOXES = frozenset({"boxes", "pred_boxes"})
_ENOUGH = 8  # images: so many logits do not all fall into [0, 1] by chance
_NORMALISED = 1e-3  # what rounding leaves of a logarithm of 1, also in half precision; logits that were not
# normalised miss it by whole numbers


def as_logits(output: object, n: int) -> Tensor:
    """What a model returned for n images, as logits (n, classes); `InputError` where that could mean several things."""
    return read_output(output, n)[0]


def read_output(output: object, n: int) -> tuple[Tensor, str]:
    """Logits (n, classes), and a remark on how they were found: empty for a model that returns just them.

    A dict, a record or a tuple is read where it names its `logits`, or holds one tensor that can be them; a single
    number per image is the logit of two classes. The shapes alone decide, so that every batch is read alike.

    >>> read_output({"logits": torch.zeros(2, 3), "features": torch.zeros(2, 8)}, 2)[1]
    "the model returns a dict, of which 'logits' is used"
    """
    if isinstance(output, Tensor):
        if _is_row_per_image(output, n):
            return output, ""
        if _is_number_per_image(output, n):
            other = output.reshape(n, 1)
            return torch.cat([torch.zeros_like(other), other], dim=1), _ONE_LOGIT
        raise InputError(f"{_wanted(n)}, got {output.dtype} of shape {tuple(output.shape)}{_dense(output, n)}")
    parts = _parts(output)
    named = parts.get("logits")
    if not _is_row_per_image(named, n):
        _refuse_detection(output)
    if isinstance(named, Tensor):
        chosen = "logits"
    else:
        rows = [name for name, part in parts.items() if _is_row_per_image(part, n)]
        fitting = rows or [name for name, part in parts.items() if _is_number_per_image(part, n)]
        if len(fitting) != 1:
            maps = (_dense(part, n) for part in parts.values() if isinstance(part, Tensor) and part.dim() > 3)
            dense = "" if fitting else next(filter(None, maps), "")
            raise InputError(f"{_wanted(n)}, got {_describe(output, parts, fitting)}{dense}")
        chosen = fitting[0]
    logits, more = read_output(parts[chosen], n)
    said = f"the model returns a {type(output).__name__}, of which {_place(output, chosen)} is used"
    return logits, f"{said}; {more}" if more else said


def check_clean(logits: Tensor, notes: set[str]) -> None:
    """Notes what the logits of clean images show; `InputError` for a single number that is a probability."""
    if any(_ONE_LOGIT in note for note in notes):
        one = logits[:, 1]
        if len(one) >= _ENOUGH and bool(((one >= 0) & (one <= 1)).all()):
            raise InputError(
                "the model returns one number in [0, 1] per image, as a sigmoid does, and no logit; leave out the "
                "sigmoid, or undo it: `lambda x: torch.logit(model(x), eps=1e-6)`"
            )
    elif bool((logits <= 0).all()) and bool((logits.logsumexp(dim=1).abs() < _NORMALISED).all()):
        notes.add("the model returns log-probabilities, which are logits up to a constant per image and used as such")


def _dense(part: Tensor, n: int) -> str:
    """Says of an output per pixel or per patch what it would need."""
    if part.dim() < 3 or len(part) != n or not part.is_floating_point():
        return ""
    over = tuple(range(2, part.dim()))
    return (
        "; an output per pixel or per patch (segmentation) would need labels, a loss and a rule of success over them, "
        f"which there is not; to attack one class per image, pool it, as in `lambda x: model(x).mean({over})`"
    )


def _refuse_detection(output: object) -> None:
    """`InputError` for boxes, which come as a dict per image or as one record for all."""
    first = output[0] if isinstance(output, list | tuple) and output else output
    names = set(first) if isinstance(first, Mapping) else {name for name in _BOXES if hasattr(first, name)}
    if names & _BOXES:
        raise InputError(
            "the model returns boxes (detection), and attacks need logits of one class per image: detection would need "
            "ground-truth boxes, a loss and a rule of success over them, which there is not"
        )


def _is_row_per_image(part: object, n: int) -> bool:
    fits = isinstance(part, Tensor) and part.is_floating_point() and part.dim() == 2
    return isinstance(part, Tensor) and fits and len(part) == n and part.shape[1] > 1


def _is_number_per_image(part: object, n: int) -> bool:
    return isinstance(part, Tensor) and part.is_floating_point() and tuple(part.shape) in ((n,), (n, 1))


def _parts(output: Any) -> dict[Any, Any]:
    """The entries of a dict, a tuple, a list or a record, by name or by number."""
    if isinstance(output, Mapping):
        return dict(output)
    if isinstance(output, tuple | list):
        return dict(zip(getattr(output, "_fields", range(len(output))), output, strict=False))
    return {"logits": output.logits} if isinstance(getattr(output, "logits", None), Tensor) else {}


def _place(output: object, chosen: Any) -> str:
    return f"number {chosen}" if isinstance(chosen, int) and not isinstance(output, Mapping) else repr(chosen)


def _wanted(n: int) -> str:
    return f"for {n} images the model must return logits ({n}, classes)"


def _describe(output: object, parts: dict[Any, Any], fitting: list[Any]) -> str:
    """What came, and the wrapper to write."""
    kind = type(output).__name__
    if isinstance(output, np.ndarray):
        return "a NumPy array, which has no gradient; compute the logits in torch, up to the tensor that is returned"
    if not parts:
        return f"a {kind}; wrap the model so that it returns the logits only"
    shapes = [f"{name!r}: {tuple(part.shape)}" for name, part in parts.items() if isinstance(part, Tensor)]
    which = "several parts could be them" if fitting else "no part can be them"
    first = next(iter(fitting or parts))
    reach = f".{first}" if hasattr(output, "_fields") else f"[{first!r}]"
    return (
        f"a {kind} of {', '.join(shapes[:6]) or 'no tensors'}, and {which}; choose one by a wrapper, such as "
        f"`lambda x: model(x){reach}`"
    )
