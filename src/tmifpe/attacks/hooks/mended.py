"""A backward pass that nothing in the model cuts, turns or drowns: the forward pass stays as it is.

Repairs that know nothing of the model but how it is written. Functions without a slope (`round`, `sign`) get the
identity on the way back; `detach`, `no_grad` and hooks on gradients are passed over. And the gradient may be that of
the *core*: of the modules between the last one that is given something like the image and the last one that returns
something like the logits. What comes before, a quantisation or noise, and after, a vote or a rounding, is the identity
on the way back, wherever in the code it is.
"""

from __future__ import annotations

__all__ = ["Core", "MendedQueries", "find_cores"]

from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from tmifpe.attacks.hooks.smooth import SmoothBackward
from tmifpe.attacks.hooks.straight_through import through_identity
from tmifpe.attacks.loop.queries import Evaluated, Objective, Queries
from tmifpe.core import numerics
from tmifpe.core.errors import InputError, ModelError, first_line, is_out_of_memory
from tmifpe.losses.loss import as_values

_FLAT = frozenset(
    {"round", "floor", "ceil", "trunc", "fix", "sign", "sgn", "heaviside", "fake_quantize_per_tensor_affine"}
)
_HOOKS = ("_backward_hooks", "_backward_pre_hooks")
_LIKE = 0.6
"""How much of an image must be left in what a module is given, as a correlation."""
_AGREE = 0.8
"""How often what a module returns must name the class that the model names."""


class _Uncut(TorchFunctionMode):
    """Within: no function cuts the way back. Values do not change."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        named = kwargs or {}
        name = getattr(func, "__name__", "")
        if name in ("_set_grad_enabled", "register_hook"):
            return None
        if name == "detach":
            return args[0]
        out = func(*args, **named)
        x = args[0] if args else named.get("input")
        if name in _FLAT and isinstance(x, Tensor) and x.requires_grad and isinstance(out, Tensor):
            return _Identity.apply(x, out.detach()) if out.shape == x.shape else out
        return out


class _Identity(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, output: Tensor) -> Tensor:
        ctx.dtype = x.dtype
        return output.clone()

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Any) -> tuple[Tensor | None, ...]:
        return grad_outputs[0].to(ctx.dtype), None


class Core(NamedTuple):
    """The names of the modules where it begins and ends; alike where one module is all of it."""

    begin: str
    end: str


@dataclass
class MendedQueries(Queries):
    """Looks follow the mended gradient, and their logits are those that it belongs to: of no use as a verdict."""

    core: Core | None = None
    _seen: list[Tensor] = field(default_factory=list)

    def look(self, x: Tensor, objective: Objective, smooth: Tensor | None = None) -> Evaluated:
        with torch.enable_grad(), _without_backward_hooks(self.model), _or_model_error():
            # What is added to the input of the core; its gradient is taken for that of the image.
            leaf = torch.zeros_like(x).requires_grad_()
            logits = self._through(x, leaf, smooth)
            value = as_values(objective(logits), logits)
            grad, _ = self._follow_back(leaf, logits, value.sum())
        return Evaluated(logits.detach(), value.detach(), torch.nan_to_num(grad, 0.0, 0.0, 0.0))

    def _through(self, x: Tensor, leaf: Tensor, smooth: Tensor | None) -> Tensor:
        core = self.core
        if core is None:
            with through_identity(self.model, self.straight_through), _Uncut(), _smoothed(smooth):
                return self._ask(x.detach() + leaf)
        if core.begin == core.end:
            return self._alone(core.begin, x, leaf, smooth)
        got: list[Tensor] = []
        with ExitStack() as stack:
            begin, end = (self._module(name) for name in core)
            stack.callback(begin.register_forward_pre_hook(lambda _, args: (_given(args[0], leaf), *args[1:])).remove)
            stack.callback(end.register_forward_hook(_kept_in(got)).remove)
            stack.enter_context(through_identity(self.model, self.straight_through))
            stack.enter_context(_Uncut())
            stack.enter_context(_smoothed(smooth))
            self._ask(x.detach())
        return torch.stack(got).mean(dim=0)

    def _alone(self, name: str, x: Tensor, leaf: Tensor, smooth: Tensor | None) -> Tensor:
        """The model is asked without gradients, as for a verdict, and what it gives to its core is given again."""
        module, given = self._module(name), list[tuple[Any, Any]]()
        hook = module.register_forward_pre_hook(lambda _, args, named: given.append((args, named)), with_kwargs=True)
        with torch.no_grad():
            try:
                self._ask(x.detach())
            finally:
                hook.remove()
        within = tuple(one.removeprefix(f"{name}.") for one in self.straight_through if one.startswith(f"{name}."))
        with through_identity(module, within), _Uncut(), _smoothed(smooth):
            logits = [module(_given(args[0], leaf), *args[1:], **named) for args, named in given]
        self.tally.forwards += len(x)
        return torch.stack(logits).mean(dim=0)

    def _module(self, name: str) -> nn.Module:
        assert isinstance(self.model, nn.Module)  # noqa: S101 - a core is found in a module
        return self.model.get_submodule(name)


def find_cores(queries: Queries, x: Tensor) -> list[Core]:
    """Where the core of the model begins and ends, seen in one pass without gradients: the innermost module that is
    all of it, where there is one, and the innermost ones where it begins and ends. None where nothing within the model
    is given something like the image or returns something like the logits."""
    model = queries.model
    if not isinstance(model, nn.Module) or isinstance(model, torch.jit.ScriptModule):
        return []
    begins: list[str] = []
    ends: dict[str, Tensor] = {}
    with ExitStack() as stack:
        for name, module in model.named_modules():
            if name:

                def before(_: nn.Module, args: Any, name: str = name) -> None:
                    if args and _alike(args[0], x):
                        begins.append(name)

                def after(_: nn.Module, args: Any, out: Any, name: str = name) -> None:  # noqa: ARG001
                    if isinstance(out, Tensor) and out.dim() == 2 and len(out) == len(x) and out.is_floating_point():
                        ends.pop(name, None)
                        ends[name] = out

                stack.callback(module.register_forward_pre_hook(before).remove)
                stack.callback(module.register_forward_hook(after).remove)
        logits = queries.logits(x)
    named = [name for name, out in ends.items() if _same_answers(out, logits)]
    if not begins or not named:
        return []
    whole = [name for name in begins if name in named][-1:]
    found = [Core(name, name) for name in whole]
    return found if begins[-1:] == whole else [*found, Core(begins[-1], _inner(named))]


def _kept_in(got: list[Tensor]) -> Callable[[nn.Module, Any, Tensor], None]:
    def hook(_: nn.Module, args: Any, out: Tensor) -> None:  # noqa: ARG001
        got.append(out)

    return hook


def _given(given: Tensor, leaf: Tensor) -> Tensor:
    return given.detach() + leaf.to(given.dtype)


def _alike(given: Any, x: Tensor) -> bool:
    if not isinstance(given, Tensor) or given.shape != x.shape or not given.is_floating_point():
        return False
    one, other = (v.detach().flatten(1).to(numerics.compute_dtype(x.dtype)) for v in (given, x))
    one, other = (v - v.mean(dim=1, keepdim=True) for v in (one, other))
    return float(torch.cosine_similarity(one, other).median()) >= _LIKE


def _inner(ends: list[str]) -> str:
    """The last one called; of several that return the same, the innermost."""
    return max((name for name in ends if f"{name}.".startswith(f"{ends[-1]}.")), key=len)


def _same_answers(out: Tensor, logits: Tensor) -> bool:
    return out.shape == logits.shape and float((out.argmax(1) == logits.argmax(1)).float().mean()) >= _AGREE


def _smoothed(smooth: Tensor | None) -> Any:
    return nullcontext() if smooth is None else SmoothBackward(smooth)


@contextmanager
def _or_model_error() -> Iterator[None]:
    """Whatever goes wrong because a model cannot be asked in this way is said in one sentence."""
    try:
        yield
    except (InputError, ModelError):
        raise
    except Exception as error:
        if is_out_of_memory(error):
            raise
        raise ModelError(f"the gradient could not be mended: {type(error).__name__}: {first_line(error)}") from error


@contextmanager
def _without_backward_hooks(model: object) -> Iterator[None]:
    """Within, no module of the model has a backward hook."""
    modules = list(model.modules()) if isinstance(model, nn.Module) else []
    kept = [(vars(module), {name: vars(module)[name] for name in _HOOKS}) for module in modules]
    try:
        for known, _ in kept:
            known.update({name: OrderedDict() for name in _HOOKS})
        yield
    finally:
        for known, hooks in kept:
            known.update(hooks)
