"""The rows of the paper's Table 1: what is printed, and which weights and data it takes to measure them again."""

from __future__ import annotations

__all__ = ["Located", "Missing", "PaperRow", "choose_rows", "load_row", "paper_rows", "weights_needed"]

import contextlib
import json
import re
import shutil
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

from tmifpe.core.errors import InputError, did_you_mean
from tmifpe.core.types import Classifier, Data
from tmifpe.data import load_data
from tmifpe.models import check_compatible, load_model

_EXPORTS = (".pt2", ".onnx")


@dataclass(frozen=True)
class PaperRow:
    """One row as printed, in fractions, with the model source and the file that hold its weights, where known."""

    id: str
    number: int
    dataset: str
    norm: str
    eps: str
    defense: str
    cite: str
    architecture: str
    printed: dict[str, float]
    model: str | None
    weights: str | None
    published: str | None
    note: str | None

    def __hash__(self) -> int:
        return hash(self.id)


@dataclass(frozen=True)
class Located:
    """A model source and the weights to give it."""

    model: str
    weights: Path | None


class Missing(InputError):
    """What a row needs and what was not found, in one sentence."""


@cache
def paper_rows() -> tuple[PaperRow, ...]:
    """All rows, in the order of the paper.

    >>> len(paper_rows()), paper_rows()[4].printed["ce"]
    (30, 0.8682)
    """
    text = resources.files("tmifpe.paper").joinpath("table1.json").read_text(encoding="utf-8")
    plain: list[dict[str, Any]] = json.loads(text)["rows"]
    for row in plain:  # the file holds percents, as the paper prints them; four decimals are all that two percents have
        row["printed"] = {name: round(value / 100, 4) for name, value in row["printed"].items()}
    return tuple(PaperRow(number=number, **row) for number, row in enumerate(plain, 1))


def choose_rows(wanted: Sequence[str]) -> list[PaperRow]:
    """The rows wanted, in the order of the paper: by id, by number, or by words of their description.

    >>> [row.id for row in choose_rows(["5", "mnist trades"])]
    ['mnist-trades', 'mnist-fast']
    """
    if not wanted:
        return list(paper_rows())
    chosen: set[PaperRow] = set()
    for text in wanted:
        found = [row for row in paper_rows() if text.lower() in (row.id, str(row.number))]
        found = found or [row for row in paper_rows() if _describes(text, row)]
        if not found:
            raise did_you_mean("row of Table 1", text, [row.id for row in paper_rows()])
        chosen |= set(found)
    return [row for row in paper_rows() if row in chosen]


def load_row(
    row: PaperRow, weights_dir: Path, data_dir: Path, limit: int | None, device: str
) -> tuple[Classifier, Data]:
    """The row's model and data, or `Missing` with everything that was not found."""
    needs: list[str] = []
    located = _locate(row, weights_dir)
    if located is None:
        needs.append(weights_needed(row, weights_dir))
    data = classifier = None
    try:
        data = load_data(f"{row.dataset}:{data_dir / row.dataset}", limit=limit)
    except InputError as error:
        needs.append(f"data: {error}")
    if located is not None:
        try:
            with _zoo_layout(row, located) as folder:
                classifier = load_model(located.model, weights=folder, device=device)
            if data is not None:
                check_compatible(classifier, data)
        except InputError as error:  # a missing extra, or a file that is not what its name says
            classifier = None
            needs.append(f"weights: {error}")
    if classifier is None or data is None:
        raise Missing("; ".join(needs))
    return classifier, data


def _locate(row: PaperRow, folder: Path) -> Located | None:
    zoo = row.model is not None and row.model.startswith("robustbench:")
    if zoo and _zoo_file(row, folder).is_file():
        return Located(row.model or "", folder)
    if row.model is not None and row.weights is not None and (not zoo or _unique(row)):
        path = folder / row.weights
        if path.is_file():
            return Located(row.model, path)
    for ending in _EXPORTS:
        path = folder / f"{row.id}{ending}"
        if path.is_file():
            return Located(str(path), None)
    return None


def _zoo_file(row: PaperRow, folder: Path) -> Path:
    dataset, threat, _ = (row.model or "").removeprefix("robustbench:").split("/")
    return folder / dataset / threat / str(row.weights)


def _unique(row: PaperRow) -> bool:
    """Some ids of the zoo name one model per threat; their bare file name says too little."""
    return Counter(other.weights for other in paper_rows())[row.weights] == 1


@contextlib.contextmanager
def _zoo_layout(row: PaperRow, located: Located) -> Iterator[Path | None]:
    """What to give as weights: a bare file of the zoo is shown to the zoo's loader in the layout it expects."""
    if located.weights is None or located.weights.is_dir() or not located.model.startswith("robustbench:"):
        yield located.weights
        return
    with tempfile.TemporaryDirectory() as temporary:
        wanted = _zoo_file(row, Path(temporary))
        wanted.parent.mkdir(parents=True)
        try:
            wanted.symlink_to(located.weights.resolve())
        except OSError:  # where links need a privilege
            shutil.copyfile(located.weights, wanted)
        yield Path(temporary)


def weights_needed(row: PaperRow, folder: Path) -> str:
    """Which file the row needs, and where it is published."""
    if row.model is None or row.weights is None:
        source = f", from {row.published}" if row.published else "; no weights are published"
        return f"weights: {folder / row.id}.pt2 or .onnx (the model exported by yourself{source})"
    places = [str(_zoo_file(row, folder))] if row.model.startswith("robustbench:") else []
    if not places or _unique(row):
        places.append(str(folder / row.weights))
    return f"weights: {' or '.join(places)} ({row.model}, from {row.published})"


def _describes(text: str, row: PaperRow) -> bool:
    """Whether every word of `text` begins a word of what is known of the row."""
    known = _words(f"{row.id} {row.norm} {row.defense} {row.cite} {row.architecture} {row.model} {row.weights}")
    wanted = _words(text)
    return bool(wanted) and all(any(word.startswith(one) for word in known) for one in wanted)


def _words(text: str) -> list[str]:
    return re.findall(r"[a-z0-9]+", text.lower())
