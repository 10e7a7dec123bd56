"""The columns of a shard as they were stored, by whichever version: their list, their SQL and their hash."""

from __future__ import annotations

__all__ = ["columns_digest", "list_columns", "listed_columns", "sql_columns"]

import json
import re
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from tmifpe.core.hashing import digest
from tmifpe.run.frozen_defaults import OLD_COLUMNS

# A list out of a file or a database names columns of SQL, so it is not trusted.
_NAME = re.compile(r"(?!(?:run|position|adv)$)[a-z][a-z0-9_]{0,62}")
_SQL = {"bool": "INTEGER", "float32": "REAL", "float64": "REAL"}
_SQL |= dict.fromkeys(("int8", "uint8", "int16", "int32", "int64"), "INTEGER")
_MOST = 200


def list_columns(columns: Mapping[str, NDArray[Any]]) -> str:
    """What the hash of a shard covers, in this order: names and dtypes."""
    return json.dumps({name: str(values.dtype) for name, values in columns.items()})


def listed_columns(text: str | None) -> dict[str, str]:
    """The inverse; 0.1.0 made no list. A ValueError if it is not a list of columns."""
    listed = dict(OLD_COLUMNS) if text is None else json.loads(text)
    if not isinstance(listed, dict) or not 0 < len(listed) <= _MOST:
        raise ValueError("its columns cannot be read")
    for name, dtype in listed.items():
        if not _NAME.fullmatch(name) or not isinstance(dtype, str) or dtype not in _SQL:
            raise ValueError("its columns cannot be read")
    return listed


def sql_columns(dtypes: Mapping[str, str]) -> dict[str, str]:
    """Names and SQL types. NULL stands for NaN, and for a value that was stored before there was such a column."""
    return {name: _SQL[dtype] for name, dtype in dtypes.items()}


def columns_digest(columns: Mapping[str, NDArray[Any]]) -> str:
    """Over every column: what the database and the shard file must agree on."""
    return digest(torch.from_numpy(_canonical(values)) for values in columns.values())


def _canonical(values: NDArray[Any]) -> NDArray[Any]:
    """One bit pattern for NaN and one for zero: SQLite keeps NaN as NULL and forgets the sign of zero."""
    if values.dtype.kind != "f":
        return values
    return np.where(np.isnan(values), values.dtype.type(np.nan), values) + values.dtype.type(0)
