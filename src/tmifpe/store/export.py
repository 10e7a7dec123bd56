"""Taking a run out of the store: its outcomes as a table, its images for RobustBench."""

from __future__ import annotations

__all__ = ["FORMATS", "outcomes_file", "robustbench_file"]

import csv
import io
import json
import math
from collections.abc import Iterator

import numpy as np
import torch

from tmifpe.core.errors import InputError, MissingExtra, did_you_mean
from tmifpe.core.shown.sheet import csv_text
from tmifpe.core.types import UNIT
from tmifpe.run.outcomes import Outcomes
from tmifpe.run.result import Result
from tmifpe.store.rows import StoredRun
from tmifpe.store.store import Store

FORMATS = ("csv", "json", "parquet")


_ROWS = 10_000


def outcomes_file(store: Store, run: StoredRun, form: str) -> Iterator[bytes]:
    """One row per example, in the order of evaluation, with the columns of `Outcomes` and, where the data has names
    of files and classes, `file`, `label_name`, `clean_name` and `adv_name`. In pieces: a million rows are large."""
    if form not in FORMATS:
        raise did_you_mean("export format", form, FORMATS)
    result = store.result(run)
    return {"csv": _csv, "json": _json, "parquet": _parquet}[form](run, result)


def robustbench_file(store: Store, run: StoredRun) -> bytes:
    """The `.pt` tensor that RobustBench asks for external evaluations: one image for each of the whole test set, in
    its order, adversarial where the example was broken, in [0, 1]."""
    result = store.result(run)
    whole = np.array_equal(np.sort(result.outcomes.index), np.arange(run.spec.total))
    if run.done < run.plan.n:
        raise InputError(f"run {run.name} is not finished: {run.done} of {run.plan.n} examples; resume it first")
    if not whole:
        raise InputError(
            f"run {run.name} covers {run.plan.n} of the {run.spec.total} examples of {run.spec.data}; RobustBench asks "
            "for the whole test set: evaluate without `limit` and `indices`"
        )
    if run.spec.targets != "none":
        raise InputError(f"run {run.name} is targeted; RobustBench asks for untargeted evaluations")
    (low, high), scaled = run.spec.threat.box, run.spec.threat.box != UNIT
    filled, images = 0, torch.empty(0)
    for part in store.adv(run):
        if not filled:
            images = torch.empty((run.plan.n, *part.shape[1:]), dtype=torch.float32)
        rows = torch.from_numpy(result.outcomes.index[filled : filled + len(part)])
        images[rows] = (
            ((part.to(torch.float32) - low) / (high - low)).clamp_(0, 1) if scaled else part.to(torch.float32)
        )
        filled += len(part)
    buffer = io.BytesIO()
    torch.save(images, buffer)
    return buffer.getvalue()


def _csv(run: StoredRun, result: Result) -> Iterator[bytes]:  # noqa: ARG001
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(_columns(result))
    for rows in _blocks(result):
        writer.writerows([csv_text(cell) if isinstance(cell, str) else cell for cell in row] for row in rows)
        yield text.getvalue().encode()
        text.seek(0)
        text.truncate()
    yield text.getvalue().encode()  # the names alone, where there is no row


def _json(run: StoredRun, result: Result) -> Iterator[bytes]:
    told = {"run": run.to_json(), "result": run.result or result.to_json()}
    head = json.dumps(told, indent=1, allow_nan=False).rpartition("\n")[0]
    columns, between = _columns(result), "\n"
    yield f'{head},\n "outcomes": ['.encode()
    for rows in _blocks(result):
        # JSON knows no infinity; a margin can be infinite when a logit is.
        named = (dict(zip(columns, map(_finite, row), strict=True)) for row in rows)
        yield (between + ",\n".join(f"  {json.dumps(row, allow_nan=False)}" for row in named)).encode()
        between = ",\n"
    yield b"\n ]\n}\n"


def _columns(result: Result) -> list[str]:
    return [*Outcomes.columns(), *_names(result, slice(0, 0))]


def _blocks(result: Result) -> Iterator[list[tuple[object, ...]]]:
    """The rows as plain values, some thousands at a time: a million of them at once would take gigabytes."""
    for begin in range(0, len(result.outcomes), _ROWS):
        part = slice(begin, begin + _ROWS)
        arrays = [values[part].tolist() for values in result.outcomes.arrays.values()]
        yield list(zip(*arrays, *_names(result, part).values(), strict=True))


def _names(result: Result, part: slice) -> dict[str, list[str]]:
    """Columns of text: the file of each example, and what its classes are called."""
    named: dict[str, list[str]] = {"file": list(result.files[part])} if result.files else {}
    if result.class_names:
        columns = {"label_name": "label", "clean_name": "clean_pred", "adv_name": "adv_pred"}
        for name, column in columns.items():
            named[name] = [result.class_name(int(number)) for number in getattr(result.outcomes, column)[part]]
    return named


def _finite(value: object) -> object:
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _parquet(run: StoredRun, result: Result) -> Iterator[bytes]:
    try:
        import pyarrow as pa
        from pyarrow import parquet
    except ImportError as error:
        raise MissingExtra("Parquet exports", "parquet", str(error)) from error
    table = pa.table(
        {name: getattr(result.outcomes, name) for name in Outcomes.columns()} | _names(result, slice(None))
    )
    table = table.replace_schema_metadata({"run": run.name, "spec": json.dumps(run.spec.as_dict())})
    sink = io.BytesIO()
    parquet.write_table(table, sink)
    yield sink.getvalue()
