"""`x.onnx`: an ONNX network as a torch module, at any batch size."""

from __future__ import annotations

__all__ = ["free_batch", "onnx_file"]

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from tmifpe.core.errors import InputError, first_line
from tmifpe.core.extras import import_extra
from tmifpe.core.hashing import hash_file
from tmifpe.core.types import UNIT
from tmifpe.models.fixed_batch import FixedBatch
from tmifpe.models.onnx_bytes import Bytes, floats_for_bytes, takes_bytes
from tmifpe.models.onnx_screen import check_external, plain_names
from tmifpe.models.source import Asked, Loaded, existing, own_weights_only


def onnx_file(asked: Asked) -> Loaded:
    """Convert with onnx2torch; a batch size written into the file is lifted, or worked around by `FixedBatch`."""
    own_weights_only(asked)
    path = existing(asked.where, "an ONNX model")
    onnx = import_extra("onnx", "ONNX models", "onnx")
    onnx2torch = import_extra("onnx2torch", "ONNX models", "onnx", uses_torchvision=True)
    model = _read(onnx, path)
    shape = _input_shape(model)
    notes: list[str] = []
    if not model.graph.node:
        raise InputError(f"{path} is an empty graph")
    if model.graph.node[-1].op_type in ("Softmax", "LogSoftmax"):
        notes.append(f"{path.name} ends in {model.graph.node[-1].op_type}: it gives probabilities, not logits")
    stamp = hash_file(path)
    as_bytes = takes_bytes(_inputs(model)[0], str(path))
    if as_bytes:
        stamp += " bytes"
        notes.append(
            f"{path.name} takes bytes: images are rounded to multiples of 1/255, and gradients pass straight through "
            "the rounding"
        )
    module = _convert(onnx2torch, model, path)
    batch = _dimensions(_inputs(model)[0])[0]
    if batch is not None:
        tied = FixedBatch(module, batch)
        lifted = _lift(onnx, onnx2torch, model, tied, shape)
        if lifted is None:
            notes.append(f"{path.name} is tied to a batch of {batch}: images are run {batch} at a time")
        module = lifted or tied
    return Loaded(
        module, stamp, input_shape=shape, notes=tuple(notes), box=UNIT if as_bytes else None, takes_bytes=as_bytes
    )


def _lift(onnx: Any, onnx2torch: Any, model: Any, tied: FixedBatch, shape: tuple[int, ...] | None) -> nn.Module | None:
    """The network for any batch size, if it can be had and gives the same logits as the one tied to its own."""
    if shape is None:  # it could not be tried out, and is then not trusted
        return None
    try:
        free = _convert(onnx2torch, free_batch(onnx, model), Path())
    except Exception:  # a graph that is odd enough to be rewritten wrongly runs as it was written
        return None
    return free if _agree(free, tied, (tied.batch + 2, *shape)) else None


def free_batch(onnx: Any, model: Any) -> Any:
    """A copy of the graph without its batch size: the first dimension of inputs and outputs becomes free, and so
    does the leading batch size in the constant shape of every Reshape that images flow through."""
    free = type(model)()
    free.CopyFrom(model)
    graph = free.graph
    batch = _dimensions(_inputs(free)[0])[0]
    for value in (*graph.input, *graph.output):
        if value.type.tensor_type.shape.dim and value.name not in _constants(graph):
            value.type.tensor_type.shape.dim[0].dim_param = "batch"
    del graph.value_info[:]  # intermediate shapes were inferred for the fixed batch
    reached = {_inputs(free)[0].name}
    for number, node in enumerate(graph.node):
        if not reached.intersection(node.input):
            continue
        reached.update(node.output)
        constant = _constants(graph).get(node.input[1]) if node.op_type == "Reshape" else None
        if constant is None:
            continue
        sizes = onnx.numpy_helper.to_array(constant).copy()
        if len(sizes) and sizes[0] == batch and sizes[0] != -1:
            sizes[0] = 0  # ONNX for "as in the input"
            name = f"{constant.name or node.input[1]}_free_{number}"
            graph.initializer.append(onnx.numpy_helper.from_array(sizes, name))
            node.input[1] = name
    return free


def _read(onnx: Any, path: Path) -> Any:
    try:
        model = onnx.load(str(path), load_external_data=False)
        if check_external(model, path):
            onnx.load_external_data_for_model(model, str(path.parent))
        onnx.checker.check_model(model)
    except InputError:
        raise
    except Exception as error:  # protobuf, checker and file errors have no common base
        raise InputError(f"{path} is not a readable ONNX file: {first_line(error)}") from error
    images, outputs = _inputs(model), model.graph.output
    if len(images) != 1 or len(outputs) != 1:
        raise InputError(f"{path} has {len(images)} inputs and {len(outputs)} outputs; a classifier has one of each")
    return model


def _convert(onnx2torch: Any, model: Any, path: Path) -> nn.Module:
    copy = type(model)()
    copy.CopyFrom(model)  # onnx2torch edits what it is given
    images = _inputs(copy)[0]
    as_bytes = takes_bytes(images, str(path))
    if as_bytes:
        floats_for_bytes(copy, images, str(path))
    try:
        module = onnx2torch.convert(plain_names(copy)).eval()
        return Bytes(module) if as_bytes else module
    except Exception as error:  # an operator it does not know, or a graph it cannot follow
        raise InputError(f"onnx2torch cannot convert {path}: {first_line(error)}") from error


def _agree(first: nn.Module, second: nn.Module, shape: tuple[int, ...]) -> bool:
    """Whether both give the same logits, up to rounding, on random images."""
    x = torch.rand(shape, generator=torch.Generator().manual_seed(0))
    try:
        with torch.no_grad():
            a, b = first(x), second(x)
    except Exception:  # the lifted graph may fail anywhere; then it is not used
        return False
    return isinstance(a, Tensor) and a.shape == b.shape and torch.allclose(a, b, rtol=1e-4, atol=1e-4)


def _inputs(model: Any) -> list[Any]:
    constants = {tensor.name for tensor in model.graph.initializer}
    return [value for value in model.graph.input if value.name not in constants]


def _constants(graph: Any) -> dict[str, Any]:
    """Constant tensors by name: initializers and the outputs of Constant nodes."""
    found = {tensor.name: tensor for tensor in graph.initializer}
    for node in graph.node:
        if node.op_type == "Constant":
            found.update((node.output[0], a.t) for a in node.attribute if a.name == "value")
    return found


def _dimensions(value: Any) -> list[int | None]:
    sizes = value.type.tensor_type.shape.dim
    return [size.dim_value if size.dim_value > 0 else None for size in sizes] or [None]


def _input_shape(model: Any) -> tuple[int, ...] | None:
    sizes = _dimensions(_inputs(model)[0])[1:]
    known = [size for size in sizes if size is not None]
    return tuple(known) if known and len(known) == len(sizes) else None
