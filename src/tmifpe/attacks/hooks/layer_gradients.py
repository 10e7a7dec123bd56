"""Where on its way back does the gradient die? Module by module: what arrives behind it, what leaves in front of it.

Every module without modules of its own is cut out of the graph (`ModuleCall`), so that skip connections around it hide
nothing; and where it lets nothing pass, the gradient behind it goes on in front of it, so that one pass finds every
such module. What a module with modules of its own does between them (functional calls) is seen by the gradients at its
two ends. TorchScript does not call its modules, and is not seen.
"""

from __future__ import annotations

__all__ = ["layer_gradients"]

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from tmifpe.attacks.hooks.gradient_rows import alive, floating_tensors, share
from tmifpe.attacks.hooks.layer_gradient import LayerGradient
from tmifpe.attacks.hooks.module_call import ModuleCall


def layer_gradients(model: nn.Module, x: Tensor, ask: Callable[[Tensor], Tensor]) -> tuple[LayerGradient, ...]:
    """The calls of modules of `model` in one forward pass, in order; `ask(x)` makes it and returns the value to climb.

    Empty where no module is called. The model is as before afterwards.
    """
    watch = _Watch(len(x))
    with torch.enable_grad(), watch.installed(model):
        leaf = x.detach().requires_grad_()
        value = ask(leaf.clone())
        if value.requires_grad:
            ends = [leaf, *(loose for call in watch.calls for loose in call.loose)]
            torch.autograd.grad(value.sum(), ends, allow_unused=True)
    found = [call.found for call in watch.calls if call.found is not None]
    dying = [layer.name for layer in found if layer.dies]
    for end in watch.ends:  # the inner ones first
        inside = f"{end.name}." if end.name else ""
        if not any(name.startswith(inside) for name in dying) and (layer := end.found(len(x))).dies:
            dying.append(f"{inside}*")
            found.append(layer)
    return tuple(found)


class _Watch:
    """The hooks of one measurement, and what they noted."""

    def __init__(self, rows: int) -> None:
        self.rows = rows
        self.calls: list[ModuleCall] = []
        self.ends: list[_Ends] = []
        self.open: list[Any] = []  # a stack: modules are called inside modules

    @contextmanager
    def installed(self, model: nn.Module) -> Iterator[None]:
        with ExitStack() as stack:
            for name, module in model.named_modules():
                single = isinstance(module, torch.jit.ScriptModule) or not any(True for _ in module.children())
                before, after = (self._cut, self._join) if single else (self._enter, self._leave)
                for hook in (
                    module.register_forward_pre_hook(lambda m, a, k, n=name, f=before: f(m, n, a, k), with_kwargs=True),
                    module.register_forward_hook(lambda m, a, out, f=after: f(out)),
                ):
                    stack.callback(hook.remove)
            yield

    def _cut(self, module: nn.Module, name: str, args: Any, named: Any) -> Any:
        if not torch.is_grad_enabled():  # switched off by the model: what holds this module is to blame
            self.open.append(None)
            return None
        number = 1 + sum(call.name == name for call in self.calls)
        self.open.append(ModuleCall(module, name, number, self.rows, (args, named)))
        return self.open[-1].cut()

    def _join(self, output: Any) -> Any:
        call = self.open.pop()
        if call is None:
            return None
        self.calls.append(call)
        return call.joined(output)

    def _enter(self, module: nn.Module, name: str, args: Any, named: Any) -> None:
        given = next((x for x in floating_tensors((args, named)) if x.requires_grad), None)
        if given is None or not torch.is_grad_enabled():
            self.open.append(None)
            return
        self.open.append(_Ends(name, type(module).__name__))
        given.register_hook(self.open[-1].front.append)

    def _leave(self, output: Any) -> None:
        end = self.open.pop()
        out = next((x for x in floating_tensors(output) if x.requires_grad), None)
        if end is not None and out is not None:
            self.ends.append(end)
            out.register_hook(end.behind.append)


@dataclass
class _Ends:
    """The gradients at the two ends of a module that has modules of its own."""

    name: str
    kind: str
    front: list[Tensor] = field(default_factory=list)
    behind: list[Tensor] = field(default_factory=list)

    def found(self, rows: int) -> LayerGradient:
        reached = alive(self.behind, rows) if self.behind else torch.zeros(rows, dtype=torch.bool)
        none = reached & ~alive(self.front, rows) if self.front else reached
        return LayerGradient(self.name, self.kind, 1, none=share(none, reached), own=True)
