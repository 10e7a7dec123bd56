"""What every loss promises, for authors of losses outside the package."""

from __future__ import annotations

__all__ = ["check_loss"]

from dataclasses import dataclass

import torch
from torch import Tensor

from tmifpe.core import numerics
from tmifpe.core.errors import InputError
from tmifpe.losses import AnyLoss, Loss, get_loss, spelling
from tmifpe.testing.trial import Trial, try_all

_CLASSES = 10
_SCALES = (1e-6, 1e-3, 1.0, 1e3, 1e6)
_ADVICE = "return one value per example, never a sum or a mean over them, e.g. with reduction='none'"


def check_loss(loss: AnyLoss) -> None:
    """`AssertionError`, in one sentence, unless a loss keeps the contract that attacks rely on.

    One value per example that depends on no other example; finite, with a finite gradient, in float32 and float64 at
    logit scales from 1e-6 to 1e6 and at ties; the same for every order of the classes; and ascending it raises the
    margin. Targeted attacks are checked if the loss takes targets.

    >>> check_loss("cw")
    >>> try:
    ...     check_loss(torch.nn.functional.cross_entropy)
    ... except AssertionError as error:
    ...     print(str(error).partition(";")[0])
    torch.nn.functional:cross_entropy returns a single value for 12 examples
    """
    found = get_loss(loss)
    name = spelling(found).partition("@")[0]
    if get_loss(spelling(found)) != found:
        raise AssertionError(f"{name} is not read back from its own spelling, {spelling(found)}")
    for targeted in (False, True) if _takes_targets(found) else (False,):
        look = _Look(f"targeted {name}" if targeted else name, found, targeted)
        try_all(look, (_shape, _independence, _finite, _ties, _permutation, _direction, _targets))


@dataclass(frozen=True)
class _Look(Trial):
    """The loss as an attack sees it."""

    loss: Loss
    targeted: bool

    def values(self, z: Tensor, labels: Tensor, targets: Tensor) -> Tensor:
        return self.loss(z, labels, targets) if self.targeted else self.loss(z, labels)

    def __call__(self, z: Tensor, labels: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """Values (n,) and the gradient of their sum (n, K)."""
        leaf = z.clone().requires_grad_()
        values = self.values(leaf, labels, targets)
        return values.detach(), torch.autograd.grad(values.sum(), leaf)[0]


def _takes_targets(loss: Loss) -> bool:
    z, labels, targets = _rows(2)
    try:
        loss(z, labels, targets)
    except InputError:
        return False
    return True


def _rows(n: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor, Tensor]:
    """Logits, labels and targets: the label leads and the target is second, in every other row the reverse."""
    generator = torch.Generator().manual_seed(seed)
    z = torch.randn(n, _CLASSES, generator=generator, dtype=torch.float64).to(dtype)
    order = z.argsort(dim=1, descending=True)
    even = torch.arange(n) % 2 == 0
    return z, torch.where(even, order[:, 0], order[:, 1]), torch.where(even, order[:, 1], order[:, 0])


def _shape(look: _Look) -> None:
    for n, dtype in ((12, torch.float32), (12, torch.float64), (1, torch.float32)):
        z, labels, targets = _rows(n, dtype=dtype)
        values = look.values(z.requires_grad_(), labels, targets)
        if not isinstance(values, Tensor):
            raise AssertionError(f"{look.name} returns a {type(values).__name__}, not a tensor; {_ADVICE}")
        if values.dim() == 0:
            raise AssertionError(f"{look.name} returns a single value for {n} examples; {_ADVICE}")
        if values.shape != (n,):
            got = tuple(values.shape)
            raise AssertionError(f"{look.name} returns shape {got} for {n} examples and {_CLASSES} classes; {_ADVICE}")
        if not values.is_floating_point() or not values.requires_grad:
            raise AssertionError(f"what {look.name} returns has no gradient; do not detach or round it")


def _independence(look: _Look) -> None:
    z, labels, targets = _rows(7, seed=1)
    leaf = z.clone().requires_grad_()
    values = look.values(leaf, labels, targets)
    grads = [torch.autograd.grad(value, leaf, retain_graph=True)[0] for value in values]
    for i, grad in enumerate(grads):
        others = grad.abs().sum(dim=1) * (torch.arange(7) != i)
        if bool((others > 0).any()):
            raise AssertionError(
                f"{look.name}: the value of example {i} has a gradient by example {int(others.argmax())}; {_ADVICE}"
            )
        alone, alone_grad = look(z[i : i + 1], labels[i : i + 1], targets[i : i + 1])
        if not (_close(alone[0], values[i].detach()) and _close(alone_grad[0], grad[i])):
            raise AssertionError(
                f"{look.name} gives example {i} {float(values[i]):.6g} among others and {float(alone[0]):.6g} alone; "
                f"{_ADVICE}"
            )


def _finite(look: _Look) -> None:
    for dtype in (torch.float32, torch.float64):
        for scale in _SCALES:
            z, labels, targets = _rows(16, seed=2, dtype=dtype)
            _check_finite(look, look(z * scale, labels, targets), f"for logits of about {scale:g} in {dtype}")


def _ties(look: _Look) -> None:
    z = torch.zeros(4, _CLASSES, dtype=torch.float32)
    z[1], z[2, :2], z[3, :3] = 1.0, 2.0, 1e6
    for label in range(_CLASSES):
        labels = torch.full((4,), label)
        _check_finite(look, look(z, labels, (labels + 1) % _CLASSES), "where logits tie")


def _check_finite(look: _Look, seen: tuple[Tensor, Tensor], where: str) -> None:
    for what, numbers in zip(("value", "gradient"), seen, strict=True):
        bad = numbers[~torch.isfinite(numbers)]
        if len(bad):
            raise AssertionError(f"{look.name} has a {what} of {float(bad[0])} {where}; it must be finite")


def _permutation(look: _Look) -> None:
    z, labels, targets = _rows(12, seed=3)
    order = torch.randperm(_CLASSES, generator=torch.Generator().manual_seed(0))
    place = order.argsort()
    values, grad = look(z, labels, targets)
    moved, moved_grad = look(z[:, order], place[labels], place[targets])
    if not (_close(values, moved) and _close(grad[:, order], moved_grad)):
        raise AssertionError(
            f"{look.name} changes when the classes are renumbered, labels and all: it must treat every class alike"
        )


def _direction(look: _Look) -> None:
    """Of the examples that an attack starts from, none may be led the wrong way, and some the right way."""
    z, labels, targets = _rows(64, seed=4)
    start = slice(0, None, 2)  # the label leads, and the target follows it
    z, labels, targets = z[start], labels[start], targets[start]
    leaf = z.clone().requires_grad_()
    margin = numerics.margin(leaf, labels, targets if look.targeted else None)
    uphill = torch.autograd.grad(margin.sum(), leaf)[0]
    _, grad = look(z, labels, targets)
    gain = (grad * uphill).sum(dim=1)
    lowered = int((gain < -1e-6 * grad.norm(dim=1)).sum())
    which = "z_t - max_{i != t} z_i" if look.targeted else "max_{i != y} z_i - z_y"
    if lowered:
        raise AssertionError(
            f"{look.name}: ascending it lowers the margin {which} on {lowered} of {len(z)} correctly classified "
            "examples; an attack ascends its loss, so return the negative"
        )
    if not bool((gain > 0).any()):
        raise AssertionError(f"{look.name}: ascending it leaves the margin {which} as it is on all {len(z)} examples")


def _targets(look: _Look) -> None:
    z, labels, targets = _rows(12, seed=5)
    others = (torch.maximum(labels, targets) + 1) % _CLASSES
    if look.targeted and torch.equal(look(z, labels, targets)[1], look(z, labels, others)[1]):
        raise AssertionError(f"{look.name} is the same for every target; use the targets or do not take them")


def _close(a: Tensor, b: Tensor) -> bool:
    return torch.allclose(a, b, rtol=1e-8, atol=1e-10)
