"""The norms by name. To add one: a file beside this one, and a line below."""

from __future__ import annotations

__all__ = ["NORMS", "Norm", "get_norm", "register_norm"]

from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from tmifpe.core.errors import InputError
from tmifpe.core.registry import Registry

if TYPE_CHECKING:
    from torch import Tensor

    from tmifpe.norms.ball import Ball


class Norm(Protocol):
    """Pure functions on batches; the first dimension counts examples and is never mixed."""

    name: ClassVar[str]
    spreads: ClassVar[bool] = True
    """Whether `spread` is anything else than `direction`; a norm that does not say is asked."""

    def size(self, delta: Tensor) -> Tensor:
        """The norm of each perturbation, (n,)."""
        ...

    def project(self, adv: Tensor, ball: Ball) -> Tensor:
        """The nearest point (in the Euclidean sense) of ball ∩ box; the ball's images must lie in the box."""
        ...

    def region(self, ball: Ball) -> Tensor | None:
        """What projecting needs to know of each image, (n, ...), so that a loop computes it once; None if nothing."""
        ...

    def project_(self, adv: Tensor, ball: Ball, region: Tensor | None) -> Tensor:
        """`project`, with the region of these images at hand; may overwrite `adv`."""
        ...

    def direction(self, grad: Tensor) -> Tensor:
        """The step of size one along which the linearised loss rises most; 0 where the gradient is 0 or NaN."""
        ...

    def spread(self, grad: Tensor, share: Tensor) -> Tensor:  # noqa: ARG002 - for norms that charge by the pixel
        """A step of size one over about the `share` (n,) of the pixels, where `direction` takes only one of them, which
        no ascent gets far with; anywhere else `direction` itself."""
        return self.direction(grad)

    def start(self, ball: Ball, seed: int, indices: Tensor, stage: int, restart: int) -> Tensor:
        """A random feasible point; depends on (seed, example index, stage, restart) and the ball, on nothing else."""
        ...


def _admit(thing: Any, name: str) -> type[Norm]:
    if not isinstance(thing, type) or not all(hasattr(thing, method) for method in ("size", "project", "direction")):
        raise InputError(f"{name} is no norm: it must be a class with the methods of tmifpe.Norm")
    return thing


NORMS: Registry[type[Norm]] = Registry("norm", "norms", _admit)
NORMS.add("linf", "tmifpe.norms.linf:Linf", "largest change of any pixel")
NORMS.add("l2", "tmifpe.norms.l2:L2", "Euclidean length of the change")
NORMS.add("l1", "tmifpe.norms.l1:L1", "sum of the changes of all pixels")
register_norm = NORMS.register


def get_norm(name: str) -> Norm:
    """The norm of that name.

    >>> get_norm("linf").name
    'linf'
    """
    return NORMS.get(name)()
