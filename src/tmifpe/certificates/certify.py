"""What no attack can do: images around which every image of the ball is classified correctly, with proof."""

from __future__ import annotations

__all__ = ["Certificates", "certified_radius", "certify"]

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from tmifpe.attacks.attack import check_box
from tmifpe.attacks.loop.frozen import dtype_of, frozen
from tmifpe.certificates.certifier import BATCH, STEPS, Certifier
from tmifpe.core.errors import InputError
from tmifpe.core.numbers import whole_number
from tmifpe.core.types import Classifier, Model, Threat


@dataclass(frozen=True)
class Certificates:
    """One row per image. `margin_bound` is an upper bound of the margin max_{i != y} z_i - z_y over the whole ball of
    radius `eps` in the box, in real arithmetic and as the model computes it; +inf where nothing is known."""

    eps: Tensor
    margin_bound: Tensor

    @property
    def certified(self) -> Tensor:
        """Where no image of the ball is misclassified."""
        return self.margin_bound < 0

    def __len__(self) -> int:
        return len(self.eps)


@torch.inference_mode(False)
def certify(
    model: Model | Classifier,
    x: Tensor,
    y: Tensor,
    threat: Threat,
    *,
    eps: Tensor | Sequence[float] | None = None,
    batch_size: int = BATCH,
) -> Certificates:
    """A bound of the margin of every image x (n, C, H, W) with label y (n,), over its Linf ball in the threat's box.

    model: a network that can be traced; read in eval mode. docs/certify.md lists the layers that bounds are known for.
    eps: a radius for each image instead of the threat's.

    >>> import torch, tmifpe
    >>> model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(2, 2, bias=False))
    >>> model[1].weight.data = torch.eye(2)
    >>> x, y = torch.tensor([[[[0.75, 0.25]]], [[[0.5, 0.5]]]]), torch.tensor([0, 0])
    >>> tmifpe.certify(model, x, y, tmifpe.Threat("linf", 0.125)).certified.tolist()
    [True, False]
    """
    with _made(model, x, y, threat) as (certifier, images):
        radii = _radii(eps, threat, images)
        return Certificates(radii, certifier.margin_bounds(images, y, radii, whole_number("batch_size", batch_size)))


@torch.inference_mode(False)
def certified_radius(
    model: Model | Classifier, x: Tensor, y: Tensor, threat: Threat, *, steps: int = STEPS, batch_size: int = BATCH
) -> Tensor:
    """The largest radius, up to the threat's eps, at which each image was certified: (n,), in float64.

    `steps` radii are tried; 0 for an image that was certified at none of the radii tried.

    >>> import torch, tmifpe
    >>> model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(2, 2, bias=False))
    >>> model[1].weight.data = torch.eye(2)
    >>> x, y = torch.tensor([[[[0.75, 0.25]]]]), torch.tensor([0])
    >>> round(tmifpe.certified_radius(model, x, y, tmifpe.Threat("linf", 0.5)).item(), 2)
    0.25
    """
    steps, batch_size = whole_number("steps", steps), whole_number("batch_size", batch_size)
    with _made(model, x, y, threat) as (certifier, images):
        bad = _radii(None, threat, images)
        good = torch.zeros_like(bad)
        whole = certifier.margin_bounds(images, y, bad, batch_size) < 0
        good[whole] = threat.eps
        rows = (~whole).nonzero()[:, 0]
        if len(rows):
            good[rows] = certifier.radii(images[rows], y[rows], bad[rows], steps, batch_size)
        return good


@contextmanager
def _made(model: Model | Classifier, x: Tensor, y: Tensor, threat: Threat) -> Iterator[tuple[Certifier, Tensor]]:
    """The model, traced, and the images in its dtype; the model is given back as it came in."""
    if not isinstance(threat, Threat):
        raise InputError(f"the threat must be a Threat, e.g. Threat('linf', 8/255), got {type(threat).__name__}")
    network: Model = model.module if isinstance(model, Classifier) else model
    images = _checked(x, y, threat)
    images = images.to(dtype_of(network) or images.dtype)
    with frozen(network):
        certifier = Certifier.of(network, images[:1], threat)
        (classes,) = certifier.network.nodes[-1].shape
        if int(y.max()) >= classes or int(y.min()) < 0:
            raise InputError(f"labels must be classes from 0 to {classes - 1}")
        yield certifier, images


def _checked(x: Tensor, y: Tensor, threat: Threat) -> Tensor:
    if not isinstance(x, Tensor) or not x.is_floating_point() or not len(x):
        raise InputError("certify needs images as a floating tensor, at least one")
    if not isinstance(y, Tensor) or y.shape != (len(x),) or y.dtype != torch.int64:
        raise InputError(f"certify needs {len(x)} labels as an int64 tensor, one per image")
    return check_box(x, threat)


def _radii(eps: Tensor | Sequence[float] | None, threat: Threat, x: Tensor) -> Tensor:
    if eps is None:
        return torch.full((len(x),), threat.eps, dtype=torch.float64, device=x.device)
    radii = torch.as_tensor(eps, dtype=torch.float64, device=x.device)
    if radii.shape != (len(x),) or not bool(((radii >= 0) & torch.isfinite(radii)).all()):
        raise InputError(f"eps must be {len(x)} radii, one per image, finite and not negative")
    return radii
