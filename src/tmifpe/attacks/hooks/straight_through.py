"""Attacking through a part without a gradient: the true forward pass, and the identity on the way back.

BPDA (Athalye et al. 2018), in its simplest form: where a module kills the gradient (rounding, a hard threshold, a
saturated unit) but returns about what it was given, the gradient behind it is a good gradient in front of it. Success
is judged by the forward pass, no bit of which changes.
"""

from __future__ import annotations

__all__ = ["StraightThrough", "matching_modules", "straight_through", "through_identity"]

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch import Tensor, nn

from tmifpe.attacks.hooks.uncompiled import uncompiled
from tmifpe.core.errors import InputError, did_you_mean
from tmifpe.core.types import Model


class StraightThrough(nn.Module):
    """`module` with the identity as its backward pass; see `straight_through`."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, x: Tensor, *rest: Any, **named: Any) -> Tensor:
        return _joined(x, self.module(x.detach().clone(), *rest, **named), type(self.module).__name__)


def straight_through(module: nn.Module) -> nn.Module:
    """The same module, bit for bit, on the way forward; on the way back the identity (BPDA).

    For a model of your own: `model.quantise = straight_through(model.quantise)`. To leave the model alone, give
    `evaluate` the module's name instead: `straight_through="quantise"`. Output and input need the same shape.

    >>> class Round(nn.Module):
    ...     def forward(self, x):
    ...         return torch.round(x)
    >>> x = torch.tensor([0.2, 0.7], requires_grad=True)
    >>> y = straight_through(Round())(x)
    >>> y.sum().backward(); y.tolist(), x.grad.tolist()
    ([0.0, 1.0], [1.0, 1.0])
    """
    if not isinstance(module, nn.Module):
        raise InputError(f"straight_through takes an nn.Module, got {type(module).__name__}")
    return StraightThrough(module)


def matching_modules(model: Model, patterns: Sequence[str]) -> tuple[str, ...]:
    """The names of the modules that these patterns (`fnmatch`) match, each at least one; sorted."""
    if not patterns:
        return ()
    if not isinstance(model, nn.Module) or isinstance(model, torch.jit.ScriptModule):
        what = "TorchScript runs without its modules" if isinstance(model, nn.Module) else "a function has none"
        raise InputError(f"straight_through names modules of the model, and {what}; give the nn.Module itself")
    names = [name for name, _ in model.named_modules() if name]
    found: set[str] = set()
    for pattern in patterns:
        matched = {name for name in names if fnmatchcase(name, pattern)}
        if not matched:
            raise did_you_mean("module of the model", pattern, names)
        found |= matched
    return tuple(sorted(found))


@contextmanager
def through_identity(model: Model, names: Sequence[str]) -> Iterator[set[str]]:
    """Within, the gradient passes these modules of the model unchanged; yields the names of those that were called."""
    called: set[str] = set()
    with ExitStack() as stack:
        if names:  # a compiled model does not call its modules
            stack.enter_context(uncompiled())
        for name in names:
            assert isinstance(model, nn.Module)  # noqa: S101 - names come from `matching_modules`
            for hook in _hooks(model.get_submodule(name), name, called):
                stack.callback(hook.remove)
        yield called


def _hooks(module: nn.Module, name: str, called: set[str]) -> Iterator[Any]:
    given: list[tuple[Tensor, Tensor]] = []  # a stack: a module may call itself

    def before(_: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
        if not args or not isinstance(args[0], Tensor):
            raise InputError(f"the identity cannot stand in for the module {name}: its first argument is no tensor")
        copy = args[0].detach().clone()
        given.append((args[0], copy))
        return copy, *args[1:]

    def after(_: nn.Module, args: tuple[Any, ...], output: Any) -> Tensor:  # noqa: ARG001
        called.add(name)
        x, copy = given.pop()
        joined = _joined(x, output, name)
        if copy._version:  # it works in place, and whoever else holds x expects the new values in it
            return x.copy_(joined)
        return joined

    yield module.register_forward_pre_hook(before)
    yield module.register_forward_hook(after)


def _joined(x: Tensor, output: object, name: str) -> Tensor:
    if not isinstance(output, Tensor) or not output.is_floating_point() or output.shape != x.shape:
        got = f"{output.dtype} of shape {tuple(output.shape)}" if isinstance(output, Tensor) else type(output).__name__
        raise InputError(
            f"the identity cannot stand in for the module {name}: it makes {got} out of shape {tuple(x.shape)}; name a "
            "module that keeps the shape"
        )
    with torch.enable_grad():  # the model may have switched gradients off around the module
        return _Identity.apply(x, output.detach())


class _Identity(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, output: Tensor) -> Tensor:
        ctx.dtype = x.dtype
        return output.clone()  # not the output itself, which the next module may not overwrite

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Any) -> tuple[Tensor | None, ...]:
        return grad_outputs[0].to(ctx.dtype), None
