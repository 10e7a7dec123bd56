"""`probe:MODEL`: a linear layer on the features of a frozen backbone."""

from __future__ import annotations

__all__ = ["Probe", "probe"]

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from tmifpe.core.errors import InputError, shown
from tmifpe.core.hashing import digest
from tmifpe.core.types import Model
from tmifpe.models.identity import held_parts, model_identity
from tmifpe.models.load import read_source
from tmifpe.models.source import Asked, Loaded
from tmifpe.models.weights import read_weights


class Probe(nn.Module):
    """Logits `weight` · backbone(x) + `bias`; features of more dimensions are flattened.

    >>> probe = Probe(nn.Flatten(), weight=torch.tensor([[1.0, 0.0], [0.0, 1.0]]), bias=torch.tensor([0.5, 0.0]))
    >>> probe(torch.tensor([[[1.0, 2.0]]])).tolist()
    [[1.5, 2.0]]
    """

    weight: Tensor
    bias: Tensor

    def __init__(self, backbone: Model, weight: Any, bias: Any = None) -> None:
        super().__init__()
        weight = torch.as_tensor(weight).detach().clone()
        bias = weight.new_zeros(len(weight)) if bias is None else torch.as_tensor(bias).detach().clone()
        if weight.dim() != 2 or len(weight) < 2 or bias.shape != weight.shape[:1] or not weight.is_floating_point():
            raise InputError(
                f"a linear layer has a weight (classes, features) of at least two classes and a bias (classes,), got "
                f"{tuple(weight.shape)} and {tuple(bias.shape)}"
            )
        self.backbone = backbone
        self.register_buffer("weight", weight)
        self.register_buffer("bias", bias)

    def forward(self, x: Tensor) -> Tensor:
        features = self.backbone(x)
        if not isinstance(features, Tensor) or features.dim() < 2:
            raise InputError(
                f"the backbone of a probe must return features (n, d), got {type(features).__name__}; wrap it so that "
                "it does"
            )
        features = features.flatten(1)
        if features.shape[1] != self.weight.shape[1]:
            raise InputError(
                f"the linear layer takes {self.weight.shape[1]} features, the backbone returns {features.shape[1]}"
            )
        return linear(features, self.weight, self.bias)


def probe(asked: Asked) -> Loaded:
    """`weights`: the file of the linear layer; `BACKBONE+LAYER` where the backbone needs a file, too."""
    if not asked.where:
        raise InputError("probe needs a backbone: write probe:MODEL, e.g. probe:timm:resnet18")
    if asked.weights is None:
        raise InputError(f"probe:{asked.where} needs the weights of its linear layer: `weights=FILE`")
    of_backbone, _, of_layer = str(asked.weights).rpartition("+")
    if not of_backbone and Path(of_layer).expanduser() != asked.weights:
        raise InputError(f"the weights of a probe are LAYER or BACKBONE+LAYER, got {shown(asked.weights)}")
    backbone = read_source(asked.where, weights=of_backbone or None, features=True)
    weight, bias = _layer(of_layer)
    whole = model_identity(backbone.module, [backbone.stamp, *held_parts(backbone.module)]) or backbone.stamp
    return replace(
        backbone,
        module=Probe(backbone.module, weight, bias),
        stamp=digest(["probe", whole]),
        classes=len(weight),
        class_names=(),
    )


def _layer(path: str) -> tuple[Tensor, Tensor | None]:
    """Weight and bias in a file that holds nothing else, whatever the layer is called in it."""
    tensors = read_weights(path)
    weights = [name for name, tensor in tensors.items() if name.rpartition(".")[2] == "weight" and tensor.dim() == 2]
    layer = weights[0].removesuffix("weight") if len(weights) == 1 else ""
    if len(weights) != 1 or not set(tensors) <= {f"{layer}weight", f"{layer}bias"}:
        raise InputError(
            f"{path} must hold one linear layer, `weight` (classes, features) and `bias` (classes,), but it holds "
            f"{', '.join(list(tensors)[:6])}"
        )
    return tensors[f"{layer}weight"], tensors.get(f"{layer}bias")
