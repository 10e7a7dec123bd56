"""What an ONNX file may not do: read files outside its folder, or write Python through the names of its nodes."""

from __future__ import annotations

__all__ = ["check_external", "plain_names"]

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tmifpe.core.errors import InputError


def check_external(model: Any, path: Path) -> bool:
    """Whether tensors are kept in other files; `InputError` if one is not a plain file in the model's folder."""
    named = {
        entry.value
        for message in _messages(model)
        if message.DESCRIPTOR.name == "TensorProto"
        for entry in message.external_data
        if entry.key == "location"
    }
    for name in named:
        if not _is_beside(path.resolve().parent, name):
            raise InputError(
                f"{path} keeps a tensor in {name[:80]!r}, which is not a file in its own folder, and is not read"
            )
    return bool(named)


def plain_names(model: Any) -> Any:
    """Number the nodes. onnx2torch makes their names those of modules, which torch.fx writes into Python source with
    quotes around them but nothing escaped: a name could be a program."""
    for number, node in enumerate(model.graph.node):
        node.name = f"node_{number}"
    return model


def _is_beside(folder: Path, name: str) -> bool:
    place = folder / name
    try:
        inside = not Path(name).is_absolute() and place.resolve().is_relative_to(folder)
        return inside and ".." not in Path(name).parts and place.is_file() and not place.is_symlink()
    except (OSError, ValueError, RuntimeError):  # a name too long, with a null byte, or a loop of links
        return False


def _messages(message: Any) -> Iterator[Any]:
    """The message and every message in it, tensors of subgraphs and attributes among them."""
    yield message
    for field, value in message.ListFields():
        if field.message_type is not None:
            for inner in value if hasattr(value, "__len__") else [value]:
                yield from _messages(inner)
