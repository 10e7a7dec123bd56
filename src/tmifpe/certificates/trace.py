"""From a model to its nodes: the operations of one forward pass, as torch dispatches them."""

from __future__ import annotations

__all__ = ["trace"]

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.node import map_arg
from torch.utils._python_dispatch import TorchDispatchMode

from tmifpe.certificates.call import Call, Refused, Variable
from tmifpe.certificates.node import Graph, Node
from tmifpe.certificates.operations import OPERATIONS
from tmifpe.core.errors import InputError, first_line, shown
from tmifpe.core.types import Model
from tmifpe.models.fixed_batch import FixedBatch

_BATCH = 7
"""Images in the traced pass: a number that few layers have otherwise, so that a mix-up of dimensions is noticed."""


def trace(model: Model, example: Tensor) -> Graph:
    """The nodes of a model in eval mode, from a pass over copies of `example` (1, C, H, W).

    Python code runs as it does in any pass. What depends on the values of the images, such as an `if`, cannot be traced
    and is refused, and so is an operation without known bounds.
    """
    fixed = [module.batch for module in _modules(model).values() if isinstance(module, FixedBatch)]
    images = example.expand(fixed[0] if fixed else _BATCH, *example.shape[1:]).contiguous()
    try:
        with torch.no_grad():
            graph = make_fx(torch.func.functionalize(model))(images)
    except InputError:
        raise
    except Exception as error:  # any network may fail in any way when it is traced
        why = first_line(error)
        raise InputError(f"the model cannot be certified, since its pass cannot be traced: {why}") from error
    return _Reader(model, graph, images).network()


class _Reader:
    """Reads a graph node by node; what does not depend on the images is computed at once."""

    def __init__(self, model: Model, graph: fx.GraphModule, images: Tensor) -> None:
        self.model, self.graph, self.images = model, graph, images
        self.known: dict[fx.Node, Any] = {}
        self.nodes: list[Node] = []

    def network(self) -> Graph:
        for node in self.graph.graph.nodes:
            if node.op == "placeholder":
                self.known[node] = Variable(0, tuple(self.images.shape[1:]))
            elif node.op == "get_attr":
                self.known[node] = getattr(self.graph, node.target)
            elif node.op == "call_function":
                self.known[node] = self._called(node)
            else:
                return self._ending(self._value(node.args[0]))
        raise InputError("the model cannot be certified: it returns nothing")

    def _ending(self, logits: Any) -> Graph:
        if not isinstance(logits, Variable) or len(logits.shape) != 1 or not logits.number:
            raise InputError("the model cannot be certified: its logits do not depend on the images, or are not (n, K)")
        return Graph(tuple(self.images.shape[1:]), tuple(self.nodes[: logits.number]))

    def _called(self, node: fx.Node) -> Any:
        args, kwargs = self._value(node.args), self._value(node.kwargs)
        if not any(isinstance(value, Variable) for value in _leaves((args, kwargs))):
            return node.target(*args, **kwargs)  # pyright: ignore[reportCallIssue]
        name = _name(node.target)
        try:
            if name == "getitem":
                return _item(args)
            if name not in OPERATIONS:
                raise Refused("")
            if node.meta["val"] is None:
                raise Refused("gives no tensor")
            made, images = node.meta["val"], self.images
            call = Call(args, kwargs, _shape(made), len(images), images.device, _first(made).dtype, self._add)
            return OPERATIONS[name](call)
        except Refused as refused:
            why = f", which {refused}" if str(refused) else ""
            layer = _layer(self.model, self.images, name)
            raise InputError(
                f"the model cannot be certified: no bounds are known for {name}{why}{layer}; certificates are for "
                "networks of linear and convolutional layers, ReLU and its kin, BatchNorm, pooling and sums"
            ) from None

    def _add(self, node: Node) -> Variable:
        self.nodes.append(node)
        return Variable(len(self.nodes), tuple(node.shape))

    def _value(self, argument: Any) -> Any:
        return map_arg(argument, lambda node: self.known[node])


def _item(args: Any) -> Any:
    several, number = args
    if not isinstance(several, list):  # the first output of a layer that has others
        if number:
            return _Unused()
        return several
    return several[number]


class _Unused:
    """An output that only training needs; whoever uses it is refused, since it is no `Variable`."""


def _name(target: Any) -> str:
    packet = getattr(target, "overloadpacket", None)
    return str(packet).rpartition(".")[2] if packet is not None else getattr(target, "__name__", str(target))


def _shape(value: Any) -> tuple[int, ...]:
    return tuple(int(side) for side in _first(value).shape)


def _first(value: Any) -> Any:
    return value[0] if isinstance(value, tuple | list) else value


def _leaves(value: Any) -> Iterator[Any]:
    if isinstance(value, list | tuple):
        for inner in value:
            yield from _leaves(inner)
    elif isinstance(value, dict):
        yield from _leaves(list(value.values()))
    else:
        yield value


def _modules(model: Model) -> dict[str, nn.Module]:
    return dict(model.named_modules()) if isinstance(model, nn.Module) else {}


def _layer(model: Model, images: Tensor, name: str) -> str:
    """Which layer first calls an operation, from another pass; nothing if no layer does."""
    modules = _modules(model)
    inside: list[str] = []
    found: list[str] = []

    class Locator(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if _name(func).rstrip("_") == name and not found:
                found.append(inside[-1] if inside else "")
            return func(*args, **(kwargs or {}))

    with torch.no_grad(), _entered(modules, inside), Locator():
        model(images)
    if not found or not found[0]:
        return ""
    return f" (layer {shown(found[0])}, {type(modules[found[0]]).__name__})"


@contextmanager
def _entered(modules: dict[str, nn.Module], inside: list[str]) -> Iterator[None]:
    """Keeps in `inside` the names of the layers that the pass is in."""
    handles = []
    for name, module in modules.items():
        handles.append(module.register_forward_pre_hook(lambda *_, name=name: inside.append(name)))
        handles.append(module.register_forward_hook(lambda *_: inside.pop() and None))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
