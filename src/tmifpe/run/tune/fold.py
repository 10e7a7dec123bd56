"""BatchNorm and input normalisation folded into the convolutions' weights: the same function in fewer operations."""

from __future__ import annotations

__all__ = ["folded"]

import copy
import operator
from collections.abc import Mapping
from typing import Any, cast

import torch
from torch import Tensor, fx, nn
from torch.nn.utils.fusion import fuse_conv_bn_eval, fuse_linear_bn_eval

from tmifpe.models.normalize import Normalize
from tmifpe.models.processor import Resized
from tmifpe.run.tune.image_gradient import ImageConv

_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
_RECTIFIERS = (torch.relu, nn.functional.relu)
_SUMS = (operator.add, operator.iadd, torch.add)


def folded(model: nn.Module) -> nn.Module | None:
    """A copy of a model in eval mode in which every BatchNorm directly after a convolution or linear layer, and the
    normalisation directly before the first, are part of its weights; rectifiers overwrite what nobody else reads, and
    the gradient at the images is a matrix product.

    None where nothing can be folded or the model cannot be traced. Tracing may follow a model wrongly (it does not see
    torch.no_grad, and takes what does not depend on the images for a constant), so compare the copy before using it.
    """
    try:
        copied = _opened(copy.deepcopy(model))
        traced = fx.GraphModule(copied, _Tracer().trace(copied)).eval()
        changes = _fold_norms(traced) + _fold_input(traced)
        changes += _overwriting(traced) + _image_gradients(traced)
        if not changes:
            return None
        traced.graph.lint()
        traced.recompile()
        traced.delete_all_unused_submodules()
    except Exception:  # the model is the user's code, and tracing runs it in a way it was not written for
        return None
    return traced.requires_grad_(False)


class _Tracer(fx.Tracer):
    """Looks into the user's modules, and takes torch's own and those that stand for an ONNX operator as they are."""

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        own = type(m).__module__.startswith("onnx2torch.") and not isinstance(m, fx.GraphModule)
        return own or isinstance(m, _Shift | Resized) or super().is_leaf_module(m, module_qualified_name)


class _Shift(nn.Module):
    """(x - mean) / std with the shapes written out, so that it can be traced; std is None once it is folded."""

    mean: Tensor
    std: Tensor | None

    def __init__(self, mean: Tensor, std: Tensor | None) -> None:
        super().__init__()
        self.register_buffer("mean", mean.view(1, -1, 1, 1))
        self.register_buffer("std", None if std is None else std.view(1, -1, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        moved = x - self.mean
        return moved if self.std is None else moved / self.std


def _opened(model: nn.Module) -> nn.Module:
    """The model with what comes in front of it, resizing and normalisation, as modules one after the other."""
    if isinstance(model, Resized) and isinstance(model.network, nn.Module):
        return nn.Sequential(model.alone(), _opened(model.network))
    if isinstance(model, Normalize) and isinstance(model.network, nn.Module):
        return nn.Sequential(_Shift(model.mean, model.std), model.network)
    return model


def _fold_norms(traced: fx.GraphModule) -> int:
    """Every BatchNorm whose only input is a layer that nobody else reads; how many there were."""
    modules: dict[str, nn.Module] = dict(traced.named_modules())
    count = 0
    for node in list(traced.graph.nodes):
        norm, before = _module(node, modules), _first(node)
        layer = _module(before, modules)
        if not isinstance(norm, nn.BatchNorm1d | nn.BatchNorm2d | nn.BatchNorm3d) or norm.running_mean is None:
            continue
        if before is None or norm.training or len(before.users) > 1 or _uses(traced, before.target) > 1:
            continue
        if isinstance(layer, _CONVOLUTIONS):
            fused: nn.Module = fuse_conv_bn_eval(layer, norm)
        elif isinstance(layer, nn.Linear) and isinstance(norm, nn.BatchNorm1d):
            fused = fuse_linear_bn_eval(layer, norm)
        else:
            continue
        traced.add_submodule(str(before.target), fused)
        modules[str(before.target)] = fused
        node.replace_all_uses_with(before)
        traced.graph.erase_node(node)
        count += 1
    return count


def _fold_input(traced: fx.GraphModule) -> int:
    """The normalisation into the convolution behind it: its scale always, and its shift unless the convolution pads,
    since zeros are added to the normalised image."""
    modules: dict[str, nn.Module] = dict(traced.named_modules())
    for node in list(traced.graph.nodes):
        shift = _module(node, modules)
        if not isinstance(shift, _Shift) or shift.std is None or len(node.users) != 1:
            continue
        after = next(iter(node.users))
        layer = _module(after, modules)
        if not isinstance(layer, nn.Conv2d) or layer.groups != 1 or _uses(traced, after.target) > 1:
            continue
        with torch.no_grad():
            scaled = copy.deepcopy(layer)
            scaled.weight /= shift.std
            if layer.padding in (0, (0, 0), "valid"):
                moved = (scaled.weight * shift.mean).sum(dim=(1, 2, 3))
                scaled.bias = nn.Parameter(-moved if layer.bias is None else layer.bias - moved)
                node.replace_all_uses_with(node.args[0])
                traced.graph.erase_node(node)
            else:
                traced.add_submodule(str(node.target), _Shift(shift.mean, None))
        traced.add_submodule(str(after.target), scaled)
        return 1
    return 0


def _overwriting(traced: fx.GraphModule) -> int:
    """Rectifiers of a layer's output, or of a sum, that nobody else reads: neither layer nor sum needs it to pass the
    gradient back."""
    modules: dict[str, nn.Module] = dict(traced.named_modules())
    count = 0
    for number, node in enumerate(list(traced.graph.nodes)):
        rectifies = type(_module(node, modules)) is nn.ReLU or (
            node.op == "call_function" and node.target in _RECTIFIERS
        )
        before = _first(node)
        if not rectifies or before is None or len(before.users) > 1:
            continue
        layer = _module(before, modules)
        summed = before.op == "call_function" and before.target in _SUMS
        summed = summed or getattr(layer, "math_op_function", None) is torch.add  # as onnx2torch writes it
        if not isinstance(layer, (*_CONVOLUTIONS, nn.Linear)) and not summed:
            continue
        name = f"rectifier_{number}"
        traced.add_submodule(name, nn.ReLU(inplace=True))
        with traced.graph.inserting_after(node):
            written = traced.graph.call_module(name, (before,))
        node.replace_all_uses_with(written)
        traced.graph.erase_node(node)
        count += 1
    return count


def _image_gradients(traced: fx.GraphModule) -> int:
    """Convolutions over the channels of images, which then pass their gradient back as a product."""
    fitting = [name for name, module in traced.named_modules() if ImageConv.fits(module)]
    for name in fitting:
        traced.add_submodule(name, ImageConv(cast(nn.Conv2d, traced.get_submodule(name))))
    return len(fitting)


def _first(node: fx.Node | None) -> fx.Node | None:
    """The node that this one is given first."""
    given = node.args[0] if node is not None and node.args else None
    return given if isinstance(given, fx.Node) else None


def _module(node: fx.Node | None, modules: Mapping[str, nn.Module]) -> nn.Module | None:
    return modules.get(str(node.target)) if node is not None and node.op == "call_module" else None


def _uses(traced: fx.GraphModule, target: Any) -> int:
    return sum(node.op == "call_module" and node.target == target for node in traced.graph.nodes)
