"""What may be inside a .pt2 before torch.export is let near it.

`torch.export.load` trusts its file: it falls back to unpickling, evaluates size expressions and guards as Python, looks
up any operator by name and writes the names of weights into Python source. So the archive is read here first, and
refused unless it holds nothing but tensors, plain operators, plain names and plain arithmetic. That closes the ways
known for torch 2.2 … 2.13; torch itself promises nothing for files of strangers, and neither does this.
"""

from __future__ import annotations

__all__ = ["is_arithmetic", "screen"]

import io
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from tmifpe.core.errors import InputError
from tmifpe.models.archive import check_unpacked, read_archive
from tmifpe.models.weights import check_torch

# The entries that torch writes, since 2.8 and before; a name that is not here is not let through.
_ENTRY = re.compile(
    r"[^/]+/(?:archive_format|archive_version|version|byteorder|\.data/(?:version|serialization_id)|models/\w+\.json"
    r"|data/weights/(?:weight_\d+|\w+\.json|\w+\.pt)|data/constants/(?:tensor_\d+|\w+\.json|\w+\.pt)"
    r"|data/sample_inputs/\w+\.pt|extra/\w[\w.-]*)"
    r"|version|serialized_\w+\.(?:json|pt)|extra_files/\w[\w.-]*"
)
_OPERATOR = re.compile(
    r"torch\.ops\.(?!_)\w+\.(?!__)(?!from_file\b)(?!save\b)\w+\.(?!__)\w+"
    r"|torch\.sym_(float|int|ite|max|min|not|sqrt)"
    r"|(_operator|operator)\.(add|and_|eq|floordiv|ge|getitem|gt|le|lt|mod|mul|ne|neg|or_|pow|sub|truediv)"
    r"|math\.(ceil|floor|trunc|sqrt)"
)
_NAME = re.compile(r"[\w.]*")
_KEY = re.compile(r"[\w.-]*")
_FILE = re.compile(r"(?:weight|tensor)_\d+")
_TEXT = re.compile(r"[\w.,:;+/ -]*")
_FREE = ("as_string", "as_strings")  # arguments of operators, written into source only as quoted text
_TOLD = {"custom", "from_node", "nn_module_stack", "source_fn_stack", "stack_trace", "torch_fn"}  # for debugging
_TREES = ("builtins.tuple", "builtins.list", "builtins.dict", "collections.OrderedDict", None)
_INPUT = re.compile(r"\bL(\['\w+'\]|\[\d+\])+|'(s|u|zuf|zf)\d+'")
_WORD = re.compile(
    r"(s|u|zuf|zf)\d+|Symbol|Integer|Float|True|False|positive|nonnegative|integer|int_oo|oo"
    r"|Add|Mul|Pow|Max|Min|Mod|PythonMod|FloorDiv|CleanDiv|CeilDiv|IntTrueDiv|FloatTrueDiv"
    r"|CeilToInt|FloorToInt|TruncToInt|ToFloat|Eq|Ne|Ge|Gt|Le|Lt|And|Or|Not|and|or|not|size|stride|storage_offset"
)
_ARITHMETIC = re.compile(r"[\w\s+\-*/%(),.<>=!&|~\[\]]*")
_MAX_JSON = 256 << 20


def screen(path: Path) -> dict[str, bytes]:
    """The entries of the archive, all of a kind that cannot run code when loaded; or an `InputError`."""
    entries = read_archive(path, "a readable .pt2 file")
    for name, content in entries.items():
        _screen_entry(name, content, path)
    return entries


def _screen_entry(name: str, content: bytes, path: Path) -> None:
    if "aotinductor" in name or name.endswith((".so", ".dll", ".dylib", ".cubin")):
        raise InputError(f"{path} contains compiled code ({name[:80]}), which is not loaded; export without compiling")
    if _ENTRY.fullmatch(name) is None:
        raise InputError(f"{path} contains {name[:80]!r}, which no tensor or graph is named, and is not loaded")
    if name.endswith(".pt") and content:
        check_torch(f"{path}: {name}")
        check_unpacked(io.BytesIO(content), len(content), f"{path}: {name}")
        try:
            torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
        except Exception as error:
            raise InputError(f"{path}: {name} holds more than tensors and is not unpickled") from error
    if name.endswith(".json"):
        for key, value in _fields(_parsed(content, f"{path}: {name}")):
            _screen_field(key, value, path)


def _parsed(content: bytes | str, what: str) -> Any:
    if len(content) > _MAX_JSON:
        raise InputError(f"{what} has {len(content)} bytes, too many for a network's graph")
    try:
        return json.loads(content)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{what} is damaged ({error})") from error


def _screen_field(key: str, value: Any, path: Path) -> None:
    if key == "use_pickle" and value:
        raise InputError(f"{path} contains a pickled tensor, which is not loaded")
    if "custom_obj" in key and value:
        raise InputError(f"{path} contains an object that is not a tensor, which is not loaded")
    if isinstance(value, dict):
        for inner in value:
            if _KEY.fullmatch(inner) is None:
                raise InputError(f"{path} has a value named {inner[:60]!r}, which is not a name")
    for text in value if isinstance(value, list) else [value]:
        if isinstance(text, str) and key not in _FREE:
            _screen_text(key, text, path)


def _screen_text(key: str, text: str, path: Path) -> None:
    if key in ("in_spec", "out_spec"):
        fits, problem = _is_plain_tree(_parsed(text, f"{path}: {key}")), "takes or gives more than tensors in"
    elif key in ("target", "as_operator"):
        fits, problem = _OPERATOR.fullmatch(text), "calls what is not an operator of a network,"
    elif key in ("expr_str", "guards_code"):
        fits, problem = is_arithmetic(text), "has an expression that is not plain arithmetic on sizes,"
    elif key == "path_name":
        fits, problem = _FILE.fullmatch(text), "keeps a tensor in a file that is not loaded,"
    elif key in ("name", "as_name", "forward_arg_names"):
        fits, problem = _NAME.fullmatch(text), "has a value whose name is not a name,"
    elif "name" in key or key == "fqn":
        fits, problem = _KEY.fullmatch(text), "has a value whose name is not a name,"
    else:
        fits, problem = _TEXT.fullmatch(text), f"has for {key[:60]!r} what is more than plain text,"
    if not fits:
        raise InputError(f"{path} {problem} {text[:60]!r}")


def _is_plain_tree(tree: Any) -> bool:
    """Tuples, lists and dictionaries of tensors with keys of plain text: torch imports what anything else names."""
    return not any(
        (key == "type" and value not in _TREES)
        or "enum" in key
        or (key == "context" and isinstance(value, str) and ("enum" in value or "\\" in value))
        for key, value in _fields(tree)
    )


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
        if isinstance(item, dict) and not _is_told(item):
            yield from item.items()
            waiting.extend(item.values())
        elif isinstance(item, list):
            waiting.extend(item)


def _is_told(item: dict[str, Any]) -> bool:
    """What torch notes of a node for people to read: text that nothing evaluates."""
    return item.keys() <= _TOLD and all(isinstance(text, str) for text in item.values())
