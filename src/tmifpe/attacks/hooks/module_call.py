"""One call of a module, cut out of the graph, so that it is blamed for what it does and for nothing else."""

from __future__ import annotations

__all__ = ["ModuleCall"]

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from tmifpe.attacks.hooks.gradient_rows import alive, cosine, faint, floating_tensors, replaced, revived, share
from tmifpe.attacks.hooks.layer_gradient import LayerGradient
from tmifpe.core.numerics import pull_back
from tmifpe.core.rng import preserved_rng

STEPS = (0.003, 0.01, 0.03)
"""Of the deviation of a row's inputs: how far off the gradient is taken again. All inputs move alike, so that ties in
max pooling stay ties; up and down, since a rectifier wakes in one of the two only; several, since waves come round."""
_STRAIGHT = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.Flatten, nn.Unflatten, nn.Identity, nn.AvgPool2d)
"""Their gradient is the same everywhere."""


@dataclass
class ModuleCall:
    """The module computes on copies of its inputs; its own backward pass is taken by itself, and noted in `found`."""

    module: nn.Module
    name: str
    number: int
    rows: int
    asked: tuple[Any, Any]
    """Its arguments, and those by name."""
    drawn: Tensor = field(default_factory=torch.get_rng_state)
    inputs: list[Tensor] = field(default_factory=list)
    """What it was given, as the rest of the graph knows it."""
    leaves: list[Tensor] = field(default_factory=list)
    """The same, where its own graph begins."""
    copies: list[Tensor] = field(default_factory=list)
    """The same, as it saw them: a module that works in place may not change a leaf."""
    outputs: list[Tensor] = field(default_factory=list)
    loose: list[Tensor] = field(default_factory=list)
    """Inputs that no gradient leads back from; they get one here."""
    found: LayerGradient | None = None

    def cut(self) -> tuple[Any, Any]:
        """The arguments with copies in the place of floating tensors."""

        def copied(x: Tensor) -> Tensor:
            self.inputs.append(x)
            self.leaves.append(x.detach().clone().requires_grad_())
            self.copies.append(self.leaves[-1].clone())
            return self.copies[-1]

        return replaced(self.asked, copied)

    def joined(self, output: Any) -> Any:
        """`output` as part of the graph of the rest, with this call as its backward pass."""
        self.outputs = list(floating_tensors(output))
        if not self.outputs or not self.inputs:
            return output
        given = [x if x.requires_grad else x.detach().requires_grad_() for x in self.inputs]
        self.loose = [new for x, new in zip(self.inputs, given, strict=True) if new is not x]
        made = iter(_Bridge.apply(self, *given))
        changed = {id(copy): x for copy, x in zip(self.copies, self.inputs, strict=True) if copy._version}

        def placed(y: Tensor) -> Tensor:
            # It works in place, and whoever else holds its input expects the new values in it.
            return changed[id(y)].copy_(next(made)) if id(y) in changed else next(made)

        return replaced(output, placed)

    def backward(self, grads: Sequence[Tensor | None]) -> list[Tensor]:
        """The gradients of the inputs, noted; in rows that have none, something to go on with."""
        behind = [torch.zeros_like(y) if g is None else g for g, y in zip(grads, self.outputs, strict=True)]
        front = _pulled_back(self.outputs, self.leaves, behind)
        n, reached = self.rows, alive(behind, self.rows)
        fed = len(self.loose) < len(self.inputs)  # of what the images do not reach, nothing is said
        if not fed or not bool(reached.any()):
            return front
        none = reached & ~alive(front, n)
        weak = reached & ~none & faint(self.leaves, front, self.outputs, behind, n)
        turned = reached & ~none & ~weak & self._shattered(front, behind)
        self.found = LayerGradient(
            self.name,
            type(self.module).__name__,
            self.number,
            none=share(none, reached),
            faint=share(weak, reached),
            shattered=share(turned, reached),
            off=self._off(front, behind),
        )
        return [revived(g, none, behind) for g in front]

    def _shattered(self, front: Sequence[Tensor], behind: Sequence[Tensor]) -> Tensor:
        """(n,): the gradient points elsewhere a step up and a step down."""
        torn = torch.zeros(self.rows, dtype=torch.bool, device=front[0].device)
        for step in () if type(self.module) in _STRAIGHT else STEPS:
            up, down = (cosine(front, self._near(behind, way), self.rows) < 0.5 for way in (step, -step))
            torn |= up & down
        return torn

    def _near(self, behind: Sequence[Tensor], step: float) -> list[Tensor]:
        """The gradients of the inputs once these are `step` deviations off, at the same draw of random numbers."""
        values, leaves = iter(self.leaves), list[Tensor]()

        def larger(_: Tensor) -> Tensor:
            value = next(values).detach()
            rows = value.flatten(1) if value.dim() > 1 and len(value) == self.rows else value.reshape(1, -1)
            spread = rows.std(dim=1, correction=0).reshape(-1, *[1] * (value.dim() - 1))
            leaves.append((value + step * spread).requires_grad_())
            return leaves[-1].clone()

        with torch.enable_grad(), preserved_rng():
            torch.default_generator.set_state(self.drawn)
            args, named = replaced(self.asked, larger)
            return _pulled_back(list(floating_tensors(self.module.forward(*args, **named))), leaves, behind)

    def _off(self, front: Sequence[Tensor], behind: Sequence[Tensor]) -> float | None:
        alike = len(front) == len(behind) == 1 and front[0].shape == behind[0].shape
        if not alike or any(True for _ in self.module.parameters()):
            return None
        reached = behind[0] != 0
        return share((front[0] == 0) & reached, reached)


class _Bridge(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, call: ModuleCall, *inputs: Tensor) -> tuple[Tensor, ...]:  # noqa: ARG004
        ctx.call = call
        return tuple(y.detach().clone() for y in call.outputs)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Any) -> tuple[Any, ...]:
        return None, *ctx.call.backward(grad_outputs)


def _pulled_back(outputs: Sequence[Tensor], leaves: Sequence[Tensor], behind: Sequence[Tensor]) -> list[Tensor]:
    """The gradients of the leaves for these gradients of the outputs; zero where nothing leads back."""
    pairs = [(y, g) for y, g in zip(outputs, behind, strict=True) if y.requires_grad]
    if not pairs:
        return [torch.zeros_like(leaf) for leaf in leaves]
    ends, grads = zip(*pairs, strict=True)
    some = zip(leaves, pull_back(ends, leaves, grads), strict=True)
    return [torch.zeros_like(leaf) if g is None else g for leaf, g in some]
