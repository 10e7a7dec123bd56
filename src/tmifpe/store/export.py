"""Taking a run out of the store: its outcomes as a table, its images for RobustBench."""

from __future__ import annotations

__all__ = ["FORMATS", "outcomes_file", "robustbench_file"]

import csv
import io
import json
from typing import Any

import numpy as np
import torch

from tmifpe.core.errors import InputError, MissingExtra, did_you_mean
from tmifpe.core.types import UNIT
from tmifpe.run.outcomes import Outcomes
from tmifpe.run.result import Result
from tmifpe.store.rows import StoredRun
from tmifpe.store.store import Store

FORMATS = ("csv", "json", "parquet")


def outcomes_file(store: Store, run: StoredRun, form: str) -> bytes:
    """One row per example, in the order of evaluation, with the columns of `Outcomes` and, where the data has names
    of files and classes, `file`, `label_name`, `clean_name` and `adv_name`."""
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


def _csv(run: StoredRun, result: Result) -> bytes:  # noqa: ARG001
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    named = _names(result)
    writer.writerow([*Outcomes.columns(), *named])
    writer.writerows((*row, *more) for row, more in zip(result.outcomes.rows(), _across(named, result), strict=True))
    return text.getvalue().encode()


def _json(run: StoredRun, result: Result) -> bytes:
    named = _names(result)
    names = [*Outcomes.columns(), *named]
    both = zip(result.outcomes.rows(), _across(named, result), strict=True)
    rows = [dict(zip(names, (*row, *more), strict=True)) for row, more in both]
    # JSON knows no infinity; a margin can be infinite when a logit is.
    plain: dict[str, Any] = {"run": run.to_json(), "result": run.result, "outcomes": _finite(rows)}
    return (json.dumps(plain, indent=1, allow_nan=False) + "\n").encode()


def _names(result: Result) -> dict[str, list[str]]:
    """Columns of text: the file of each example, and what its classes are called."""
    named: dict[str, list[str]] = {"file": list(result.files)} if result.files else {}
    if result.class_names:
        columns = {"label_name": "label", "clean_name": "clean_pred", "adv_name": "adv_pred"}
        for name, column in columns.items():
            named[name] = [result.class_name(int(number)) for number in getattr(result.outcomes, column)]
    return named


def _across(named: dict[str, list[str]], result: Result) -> list[tuple[str, ...]]:
    return list(zip(*named.values(), strict=True)) if named else [()] * len(result.outcomes)


def _finite(rows: list[dict[str, object]]) -> list[dict[str, object]]:
    def plain(value: object) -> object:
        return None if isinstance(value, float) and not np.isfinite(value) else value

    return [{name: plain(value) for name, value in row.items()} for row in rows]


def _parquet(run: StoredRun, result: Result) -> bytes:
    try:
        import pyarrow as pa
        from pyarrow import parquet
    except ImportError as error:
        raise MissingExtra("Parquet exports", "parquet", str(error)) from error
    table = pa.table({name: getattr(result.outcomes, name) for name in Outcomes.columns()} | _names(result))
    table = table.replace_schema_metadata({"run": run.name, "spec": json.dumps(run.spec.as_dict())})
    sink = io.BytesIO()
    parquet.write_table(table, sink)
    return sink.getvalue()
