"""ONNX networks that take images as bytes, 0 … 255."""

from __future__ import annotations

__all__ = ["Bytes", "floats_for_bytes", "takes_bytes", "whole_steps"]

import math
from dataclasses import replace
from typing import Any

from torch import Tensor, nn

from tmifpe.core.errors import InputError
from tmifpe.core.types import Threat

_FLOAT, _UINT8, _FLOATING = 1, 2, (1, 10, 11, 16)  # onnx.TensorProto: FLOAT, UINT8; float, half, double, bfloat16
_LAYOUT = frozenset({"Flatten", "Identity", "Reshape", "Squeeze", "Transpose", "Unsqueeze"})


class Bytes(nn.Module):
    """`network`, which takes whole numbers 0 … 255, on images in [0, 1], rounded as storing them would.

    The value is that of the rounded image. The gradient is that at the rounded image too, passed straight through the
    rounding, whose own is zero everywhere.
    """

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, x: Tensor) -> Tensor:
        scaled = x * 255
        whole = scaled.detach().round()
        return self.network(whole + (scaled - scaled.detach()))


def whole_steps(threat: Threat) -> tuple[Threat, tuple[str, ...]]:
    """The threat to a model that rounds images to bytes, and a remark where it is another one.

    In linf the radius is rounded down to whole steps of 1/255: to images that are bytes no other byte is as near, and a
    point at the edge of a larger ball would be rounded out of it.

    >>> whole_steps(Threat("linf", 0.1))[0].eps == 25 / 255
    True
    """
    steps = math.floor(threat.eps * 255 * (1 + 1e-9))
    if threat.norm != "linf":
        return threat, ("rounding to bytes may move an adversarial example by up to 1/510 per pixel beyond its size",)
    if math.isclose(steps, threat.eps * 255, rel_tol=1e-9):
        return threat, ()
    said = f"eps {threat.eps:.6g} was rounded down to {steps}/255, since the model rounds images to bytes"
    return replace(threat, eps=steps / 255), (said,)


def takes_bytes(value: Any, what: str) -> bool:
    """Whether this input of a graph is one of bytes; `InputError` if it is neither that nor floating."""
    kind = value.type.tensor_type.elem_type
    if kind == _UINT8:
        return True
    if kind not in _FLOATING:
        raise InputError(f"{what} takes neither floating images nor bytes; export it with a float32 or uint8 input")
    return False


def floats_for_bytes(model: Any, value: Any, what: str) -> None:
    """Let the graph take the same whole numbers as floats, for which torch has gradients; changes `model`.

    That is the same network only where bytes are moved about and then cast to float32; arithmetic on them, which
    wraps around at 256, is refused.
    """
    reached = {value.name}
    for node in model.graph.node:
        if not reached.intersection(node.input):
            continue
        if node.op_type == "Cast" and any(a.name == "to" and a.i == _FLOAT for a in node.attribute):
            node.op_type = "Identity"
            del node.attribute[:]
        elif node.op_type in _LAYOUT:
            reached.update(node.output)
        else:
            raise InputError(
                f"{what} takes bytes and computes with them ({node.op_type}) before it casts them to float32; "
                "export it with a float32 input"
            )
    value.type.tensor_type.elem_type = _FLOAT
    del model.graph.value_info[:]  # they may still say bytes
