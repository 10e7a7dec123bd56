"""What may be inside a .pt2 before torch.export is let near it.

`torch.export.load` trusts its file: it falls back to unpickling, evaluates size expressions and guards as Python,
and looks up any operator by name. So the archive is read here first, and refused unless it holds nothing but
tensors, plain operators, plain names and plain arithmetic. That closes the ways known for torch 2.2 … 2.13; torch
itself promises nothing for files of strangers, and neither does this.
"""

from __future__ import annotations

__all__ = ["is_arithmetic", "screen"]

import io
import json
import re
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from tmifpe.core.errors import InputError

_OPERATOR = re.compile(
    r"torch\.ops\.(?!_)\w+\.(?!__)\w+\.(?!__)\w+"
    r"|torch\.sym_(float|int|ite|max|min|not|sqrt)"
    r"|(_operator|operator)\.(add|and_|eq|floordiv|ge|getitem|gt|le|lt|mod|mul|ne|neg|or_|pow|sub|truediv)"
    r"|math\.(ceil|floor|trunc|sqrt)"
)
_NAME = re.compile(r"[\w.]*")
_TREE_TYPE = re.compile(r'"type":\s*"(?!builtins\.(?:tuple|list|dict)"|collections\.OrderedDict")')
_INPUT = re.compile(r"\bL(\['\w+'\]|\[\d+\])+|'(s|u|zuf|zf)\d+'")
_WORD = re.compile(
    r"(s|u|zuf|zf)\d+|Symbol|Integer|Float|True|False|positive|nonnegative|integer|int_oo|oo"
    r"|Add|Mul|Pow|Max|Min|Mod|PythonMod|FloorDiv|CleanDiv|CeilDiv|IntTrueDiv|FloatTrueDiv"
    r"|CeilToInt|FloorToInt|TruncToInt|ToFloat|Eq|Ne|Ge|Gt|Le|Lt|And|Or|Not|and|or|not|size|stride|storage_offset"
)
_ARITHMETIC = re.compile(r"[\w\s+\-*/%(),.<>=!&|~\[\]]*")
_MAX_JSON = 256 << 20


def screen(path: Path) -> None:
    """`InputError` unless everything in the archive is of a kind that cannot run code when loaded."""
    try:
        with zipfile.ZipFile(path) as archive:
            for entry in archive.infolist():
                _screen_entry(archive, entry, path)
    except (zipfile.BadZipFile, OSError, EOFError, NotImplementedError) as error:
        raise InputError(f"{path} is not a readable .pt2 file: {error}") from error


def _screen_entry(archive: zipfile.ZipFile, entry: zipfile.ZipInfo, path: Path) -> None:
    name = entry.filename
    base = name.rpartition("/")[2]
    if "aotinductor" in name or base.endswith((".so", ".dll", ".dylib", ".cubin")):
        raise InputError(f"{path} contains compiled code ({name}), which is not loaded; export without compiling")
    if base.startswith(("opaque_obj", "custom_obj")) or base.endswith((".pkl", ".pickle")):
        raise InputError(f"{path} contains a pickled object ({name}), which is not loaded")
    if base.endswith(".pt") and entry.file_size:
        try:
            torch.load(io.BytesIO(archive.read(entry)), map_location="cpu", weights_only=True)
        except Exception as error:
            raise InputError(f"{path}: {name} holds more than tensors and is not unpickled") from error
    if base.endswith(".json"):
        if entry.file_size > _MAX_JSON:
            raise InputError(f"{path}: {name} has {entry.file_size} bytes, too many for a network's graph")
        try:
            content = json.loads(archive.read(entry))
        except ValueError as error:
            raise InputError(f"{path}: {name} is damaged ({error})") from error
        for key, value in _fields(content):
            _screen_field(key, value, path)


def _screen_field(key: str, value: Any, path: Path) -> None:
    if key == "use_pickle" and value:
        raise InputError(f"{path} contains a pickled tensor, which is not loaded")
    for text in value if isinstance(value, list) else [value]:
        if not isinstance(text, str):
            continue
        if key == "target" and _OPERATOR.fullmatch(text) is None:
            raise InputError(f"{path} calls {text[:60]!r}, which is not an operator of a network")
        if key in ("name", "as_name", "forward_arg_names") and _NAME.fullmatch(text) is None:
            raise InputError(f"{path} has a value named {text[:60]!r}, which is not a name")
        if key in ("in_spec", "out_spec") and _TREE_TYPE.search(text):
            raise InputError(f"{path} takes or gives objects other than tensors, tuples, lists and dictionaries")
        if key in ("expr_str", "guards_code") and not is_arithmetic(text):
            raise InputError(f"{path} has the expression {text[:60]!r}, which is not plain arithmetic on sizes")


def is_arithmetic(text: str) -> bool:
    """Is this nothing but sizes of inputs, numbers, operators and the functions that torch writes sizes with?"""
    rest = _INPUT.sub(" ", text)  # the quoted names of inputs and of size symbols
    words = re.findall(r"[A-Za-z_]\w*", rest)
    return _ARITHMETIC.fullmatch(rest) is not None and all(_WORD.fullmatch(word) for word in words)


def _fields(content: Any) -> Iterator[tuple[str, Any]]:
    """Every key and value of nested JSON, without recursion: a hostile file may be deep."""
    waiting = [content]
    while waiting:
        item = waiting.pop()
        if isinstance(item, dict):
            yield from item.items()
            waiting.extend(item.values())
        elif isinstance(item, list):
            waiting.extend(item)
