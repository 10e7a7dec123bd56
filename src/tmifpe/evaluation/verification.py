"""Somebody else's adversarial examples: are they allowed, do they work, what do they imply?"""

from __future__ import annotations

__all__ = ["Verification", "matched_rows", "verify"]

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tmifpe.attacks import PGD
from tmifpe.attacks.loop.queries import Queries
from tmifpe.attacks.loop.rows import Problem
from tmifpe.checks.units import check_eps
from tmifpe.core import numerics
from tmifpe.core.errors import InputError
from tmifpe.core.stats import wilson
from tmifpe.core.types import Classifier, Data, Model, Threat
from tmifpe.evaluation.point_remarks import label_remarks, point_remarks, unit_points
from tmifpe.evaluation.prepare import Prepared, prepare
from tmifpe.norms import NORMS
from tmifpe.run.cut.plan import make_plan
from tmifpe.run.request import Request
from tmifpe.run.result import Result
from tmifpe.run.shard import Job, fetch_rows, read_clean
from tmifpe.run.verify import in_ball, in_box
from tmifpe.store.adversarial import threat_beside

_COLUMNS = ("index", "label", "clean_pred", "adv_pred", "size", "in_ball", "in_box")


@dataclass(frozen=True)
class Verification:
    """One row per example: what the model says to the given point, and whether the point is allowed.

    A point counts only inside ball and box. Accuracies are fractions in [0, 1].
    """

    model: str
    data: str
    threat: Threat
    index: NDArray[np.int64]
    label: NDArray[np.int64]
    clean_pred: NDArray[np.int64]
    adv_pred: NDArray[np.int64]
    """-1 where the logits are NaN or infinite: that breaks nothing."""
    size: NDArray[np.float64]
    in_ball: NDArray[np.bool_]
    in_box: NDArray[np.bool_]
    run: Result | None = None
    """A run on the same examples, with which these are united."""
    notes: tuple[str, ...] = ()
    """What makes the threat, or the file, look like another one than was meant."""

    def __repr__(self) -> str:
        inside, broken = int(self.inside.sum()), int(self.broken.sum())
        return (
            f"<Verification of {self.n} adversarial examples: {inside} inside ball and box, {broken} break "
            f"{self.model}; robust accuracy {self.robust_accuracy:.2%}, clean {self.clean_accuracy:.2%}, "
            f"{self.threat.norm} eps = {self.threat.eps:g}>"
        )

    @property
    def n(self) -> int:
        return len(self.index)

    @property
    def correct(self) -> NDArray[np.bool_]:
        """Which examples the model classifies correctly without an attack."""
        return self.clean_pred == self.label

    @property
    def inside(self) -> NDArray[np.bool_]:
        return self.in_ball & self.in_box

    @property
    def fools(self) -> NDArray[np.bool_]:
        """Which points change a correct answer, allowed or not."""
        return self.correct & (self.adv_pred >= 0) & (self.adv_pred != self.label)

    @property
    def broken(self) -> NDArray[np.bool_]:
        """Which examples are broken by an allowed point."""
        return self.fools & self.inside

    @property
    def clean_accuracy(self) -> float:
        return float(self.correct.mean())

    @property
    def robust_accuracy(self) -> float:
        """What these examples imply on their own: an upper bound, as every attack gives."""
        return float((self.correct & ~self.broken).mean())

    @property
    def interval(self) -> tuple[float, float]:
        return wilson(int((self.correct & ~self.broken).sum()), self.n)

    @property
    def only_these(self) -> list[int]:
        """Indices that are broken here and withstood the run."""
        if self.run is None:
            return []
        robust = set(self.run.outcomes.index[self.run.outcomes.robust].tolist())
        return [index for index in self.index[self.broken].tolist() if index in robust]

    @property
    def united_accuracy(self) -> float | None:
        """The accuracy of the run if what these examples break is broken too."""
        return None if self.run is None else (self.run.robust - len(self.only_these)) / self.run.n

    def to_json(self) -> dict[str, Any]:
        def indices(rows: NDArray[np.bool_]) -> list[int]:
            return self.index[rows].tolist()

        plain: dict[str, Any] = {
            "model": self.model,
            "data": self.data,
            "norm": self.threat.norm,
            "eps": self.threat.eps,
            "box": list(self.threat.box),
            "n": self.n,
            "inside": int(self.inside.sum()),
            "outside_ball": int((~self.in_ball).sum()),
            "outside_box": int((~self.in_box).sum()),
            "largest_size": float(np.nanmax(self.size)) if np.isfinite(self.size).any() else None,
            "not_a_number": int(np.isnan(self.size).sum()),
            "clean_accuracy": self.clean_accuracy,
            "broken": int(self.broken.sum()),
            "robust_accuracy": self.robust_accuracy,
            "interval": list(self.interval),
            "indices_broken": indices(self.broken),
            "indices_outside": indices(~self.inside),
            "indices_fooled_outside": indices(self.fools & ~self.inside),
            "notes": list(self.notes),
        }
        if self.run is not None:
            run = self.run.outcomes
            here = set(self.index[self.broken].tolist())
            plain |= {
                "run_robust_accuracy": self.run.robust_accuracy,
                "united_accuracy": self.united_accuracy,
                "indices_only_these": self.only_these,
                "indices_only_run": [index for index in run.index[run.fooled].tolist() if index not in here],
            }
        return plain


@torch.inference_mode(False)
def verify(
    model: Model | Classifier,
    data: Any,
    threat: Threat,
    adv: Tensor | Mapping[str, Tensor],
    *,
    run: Result | None = None,
    limit: int | None = None,
    sample: int | None = None,
    indices: Sequence[int] | None = None,
    precision: str | None = None,
    batch_size: int | None = None,
    device: str | torch.device | None = None,
) -> Verification:
    """Read `adv` as the model does, beside the clean images, and say what it breaks within the threat.

    adv: one image per example of the data, or per example of the full data; or tensors by name (`read_adv`): `adv`,
        with `indices` the examples that they belong to, and `labels`, which must then be those of the data.
    run: the result of an evaluation of the same model on the same examples, to be united with these.

    >>> import tmifpe
    >>> model, data = tmifpe.load_model("digits-robust"), tmifpe.load_data("digits", limit=8)
    >>> threat = tmifpe.Threat("linf", 0.1)
    >>> x_adv = tmifpe.PGD(steps=5)(model, *data.fetch(range(8)), threat)
    >>> int(verify(model, data, threat, x_adv).inside.sum())
    8
    """
    request = Request(
        limit=limit, sample=sample, indices=indices, precision=precision, batch_size=batch_size, device=device
    )
    tensors = adv if isinstance(adv, Mapping) else {"adv": adv}
    with prepare(model, data, threat, request) as prepared:
        points, rows = matched_rows(tensors, prepared.data)
        if run is not None:
            _check_run(run, prepared)
        name = prepared.classifier.name if prepared.classifier else type(prepared.network).__name__
        columns = _read(prepared, points, rows)
    if "labels" in tensors and "indices" in tensors:
        said = dict(zip(tensors["indices"].tolist(), tensors["labels"].tolist(), strict=False))
        if any(said[i] != label for i, label in zip(columns["index"].tolist(), columns["label"].tolist(), strict=True)):
            raise InputError("the labels beside the adversarial examples are not those of the data: it is other data")
    remarks = list(_file_remarks(tensors, points, rows, columns, prepared.threat))
    table: dict[str, Any] = {**columns}
    found = Verification(name, prepared.data.name, prepared.threat, run=run, **table)
    return replace(found, notes=(*_remarks(found, threat_beside(tensors), tuple(prepared.data.shape)), *remarks))


def _file_remarks(
    tensors: Mapping[str, Tensor],
    points: Tensor,
    rows: list[tuple[int, int]],
    columns: dict[str, NDArray[Any]],
    threat: Threat,
) -> Iterator[str]:
    chosen = [row for _, row in rows]
    outside = float((~columns["in_box"]).mean())
    yield from point_remarks(points[chosen], columns["index"], columns["size"], outside, threat)
    labels = tensors.get("labels")
    if labels is not None and "indices" not in tensors and len(labels) == len(points):
        yield from label_remarks([int(labels[row]) for row in chosen], columns["label"].tolist())


def _remarks(found: Verification, made: Threat | None, shape: tuple[int, ...]) -> Iterator[str]:
    for flag in check_eps(found.threat, shape):
        yield f"{flag.seen} {flag.advice}"
    here = found.threat
    if made is not None and (NORMS.canonical(made.norm), made.eps, made.box) != (here.norm, here.eps, here.box):
        yield (
            f"The file says that its examples were made under {made.norm} {made.eps:.6g}{made.within}, and they are "
            f"read under {here.norm} {here.eps:.6g}{here.within}."
        )
    if found.in_ball.mean() < 0.5 <= found.in_box.mean():  # outside the box, other units are the cause
        yield "Most points lie outside the ball: are they in another order, or made for another norm, eps or box?"


def matched_rows(tensors: Mapping[str, Tensor], data: Data) -> tuple[Tensor, list[tuple[int, int]]]:
    """The points, and which position of the data has which row of them."""
    adv = torch.from_numpy(given) if isinstance(given := tensors["adv"], np.ndarray) else given
    if not isinstance(adv, Tensor) or adv.dim() < 2 or tuple(adv.shape[1:]) != tuple(data.shape):
        shape = tuple(adv.shape) if isinstance(adv, Tensor) else type(adv).__name__
        raise InputError(
            f"adversarial examples must be a tensor of shape (n, {', '.join(map(str, data.shape))}), got {shape}"
        )
    total = getattr(data, "total", len(data))
    if "indices" in tensors:
        place = {index: row for row, index in enumerate(tensors["indices"].tolist())}
        if len(place) != len(adv):
            raise InputError(f"{len(adv)} adversarial examples need as many different indices, got {len(place)}")
        rows = [(position, place[index]) for position, index in enumerate(data.indices) if index in place]
        if not rows:
            raise InputError("none of these adversarial examples is of a chosen image; check `limit` and `indices`")
        return adv, rows
    if len(adv) == len(data):
        return adv, [(position, position) for position in range(len(data))]
    if len(adv) == total:
        return adv, [(position, int(index)) for position, index in enumerate(data.indices)]
    raise InputError(
        f"{len(adv)} adversarial examples for {len(data)} images of {total}; choose the images that they belong to "
        "with `limit` or `indices`"
    )


def _read(prepared: Prepared, adv: Tensor, rows: list[tuple[int, int]]) -> dict[str, NDArray[Any]]:
    """The columns of a `Verification`, batch by batch."""
    data, model = prepared.data, prepared.model
    attack = PGD()  # is never run: it only completes the job that knows how to fetch and read images
    size = make_plan(len(rows), data.shape, attack, prepared.request.batch_size).batch_size
    job = Job(model, data, prepared.threat, attack, batch_size=size)
    queries = Queries(model.model, model.dtype)
    parts: dict[str, list[Tensor]] = {name: [] for name in _COLUMNS}
    for start in range(0, len(rows), size):
        chosen = rows[start : start + size]
        x, labels, indices = fetch_rows(job, [position for position, _ in chosen])
        points = adv[[row for _, row in chosen]]
        points = unit_points(points, x, prepared.threat)
        problem = Problem(x, labels, None, indices, prepared.threat, 0)
        clean, logits = read_clean(job, queries, x, labels), queries.logits(points, fresh=True)
        found = {
            "index": indices,
            "label": labels,
            "clean_pred": clean.argmax(dim=1),
            "adv_pred": torch.where(numerics.is_usable(logits), logits.argmax(dim=1), -1),
            "size": problem.norm.size(points.double() - x.double()),
            "in_ball": in_ball(points, problem),
            "in_box": in_box(points, problem),
        }
        for name, values in found.items():
            parts[name].append(values.cpu())
    return {name: torch.cat(values).numpy() for name, values in parts.items()}


def _check_run(run: Result, prepared: Prepared) -> None:
    """`InputError` unless the run asked the same model the same question."""
    spec, threat = run.spec, prepared.threat
    here = sorted(int(index) for index in prepared.data.indices)
    if spec.targets != "none":
        raise InputError("the run is targeted, and these examples are not: the two cannot be united")
    if (spec.threat.norm, spec.threat.eps) != (threat.norm, threat.eps):
        theirs = f"{spec.threat.norm} {spec.threat.eps:.6g}"
        raise InputError(f"the run is at {theirs}, and this is {threat.norm} {threat.eps:.6g}; give the same threat")
    same_data = spec.data_identity in ("", prepared.data.identity)
    if sorted(run.outcomes.index.tolist()) != here or not same_data:
        raise InputError("the run is on other examples; choose the same with `data`, `limit`, `sample` and `indices`")
    if spec.model_identity and prepared.model_identity != spec.model_identity:
        raise InputError(f"the run is of another model, {spec.model}; give that one, or its weights")
