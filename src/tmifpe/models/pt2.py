"""`x.pt2`: a program saved by `torch.export.save`."""

from __future__ import annotations

__all__ = ["Exported", "pt2"]

from typing import Any

import torch
from torch import Tensor, nn

from tmifpe.core.errors import InputError, first_line
from tmifpe.core.hashing import hash_file
from tmifpe.models.archive import packed
from tmifpe.models.fixed_batch import FixedBatch
from tmifpe.models.pt2_screen import screen
from tmifpe.models.source import Asked, Loaded, existing, own_weights_only


class Exported(nn.Module):
    """An exported graph as an ordinary module: its mode was settled when it was exported, so `eval()` changes nothing
    inside, where torch would raise."""

    def __init__(self, graph: nn.Module) -> None:
        super().__init__()
        self.graph = graph

    def train(self, mode: bool = True) -> Exported:
        self.training = mode
        return self

    def forward(self, x: Tensor) -> Tensor:
        return self.graph(x)


def pt2(asked: Asked) -> Loaded:
    """An exported program. Exported for one batch size, it is run on pieces of that size."""
    own_weights_only(asked)
    path = existing(asked.where, "an exported model")
    entries = screen(path)
    try:
        program = torch.export.load(packed(entries))
        module: nn.Module = Exported(program.module())
    except Exception as error:  # a damaged or foreign archive can fail anywhere inside torch
        first = first_line(error)
        raise InputError(f"{path} is not a program of torch.export that this torch can read: {first}") from error
    sizes = _input_sizes(program)
    if len(sizes) < 2:
        raise InputError(
            f"{path} takes inputs of {len(sizes)} dimensions, not a batch of images or other tensors (n, ...)"
        )
    batch, *image = (size if isinstance(size, int) else None for size in sizes)
    notes = ()
    if batch is not None:
        module = FixedBatch(module, batch)
        notes = (f"{path.name} was exported for a batch of {batch}: images are run {batch} at a time",)
    known = [size for size in image if size is not None]
    shape = tuple(known) if len(known) == len(image) else None
    return Loaded(module, hash_file(path), input_shape=shape, notes=notes)


def _input_sizes(program: Any) -> tuple[Any, ...]:
    names = program.graph_signature.user_inputs
    if len(names) != 1:
        raise InputError(f"the exported program takes {len(names)} inputs; a classifier takes one, the images")
    (node,) = (node for node in program.graph.nodes if node.op == "placeholder" and node.name == names[0])
    return tuple(node.meta["val"].shape)
