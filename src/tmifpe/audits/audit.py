"""How much of an attack's gradient does floating point destroy, for this model on these images?"""

from __future__ import annotations

__all__ = ["LOSSES", "PRECISIONS", "Audit", "audit"]

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tmifpe.attacks.hooks.layers import ROWS, Layers, look_at_layers
from tmifpe.attacks.loop.queries import Queries
from tmifpe.audits.at_precision import Network, at_precision
from tmifpe.audits.gradient_errors import Flags, GradientErrors, compare_gradients
from tmifpe.audits.reference_gradient import Reference, pinned, reference_gradient
from tmifpe.audits.result import Audit, Cell
from tmifpe.core.errors import InputError, shown
from tmifpe.core.numbers import whole_number
from tmifpe.core.numerics import is_usable, margin
from tmifpe.core.outputs import read_output
from tmifpe.core.rng import preserved_rng
from tmifpe.core.types import UNIT, Box, Classifier, Data, Model, Threat
from tmifpe.data import as_data, in_box, subset
from tmifpe.losses import AnyLoss, Loss, get_loss, spelling
from tmifpe.losses.reference import gradient
from tmifpe.models import check_compatible
from tmifpe.run.bar import counted
from tmifpe.run.prepared_model import prepare_model
from tmifpe.run.request import require_model
from tmifpe.run.spec import get_precision

T = TypeVar("T")

LOSSES = ("ce", "ce-margin", "cw", "dlr", "mifpe", "tmifpe")
PRECISIONS = ("fp16", "bf16", "fp32")


@torch.inference_mode(False)  # gradients are what it is about, wherever it is called
@preserved_rng()
def audit(
    model: Model | Classifier,
    data: Any,
    losses: Sequence[AnyLoss] = LOSSES,
    precisions: Sequence[str] = PRECISIONS,
    *,
    limit: int | None = None,
    box: Box = UNIT,
    batch_size: int = 64,
    progress: bool | Callable[[int, int], None] | None = None,
) -> Audit:
    """Measure the gradient of every loss in every precision against float64, on clean images.

    With respect to the logits the truth is the exact gradient at the logits that the precision produced, so it shows
    what the loss's own arithmetic loses; with respect to the input it is that of the network in float64, so it shows
    everything. A precision that the model cannot run in is emulated, and `notes` says which part. `box`: the lowest and
    highest value of a pixel, if not 0 and 1.

    >>> import tmifpe
    >>> found = tmifpe.audit(tmifpe.load_model("digits-distilled"), tmifpe.load_data("digits"), limit=32)
    >>> found.finding("ce", "fp32").logits.zero > 0.5, found.finding("tmifpe", "fp32").logits.zero
    (True, 0.0)
    """
    batch_size = whole_number("batch_size", batch_size)
    asked = [get_loss(loss) for loss in _different("losses", losses)]
    names = [spelling(loss) for loss in asked]
    chosen = [pinned(loss) for loss in asked]
    for precision in _different("precisions", precisions):
        get_precision(precision)
    source = in_box(as_data(data), Threat("linf", 0.0, *box).box)
    if limit is not None:
        limit = whole_number("limit", limit)
        source = subset(source, range(limit)) if limit < len(source) else source
    if isinstance(model, Classifier):
        check_compatible(model, source, box)
    network: Model = model.module if isinstance(model, Classifier) else model
    require_model(network)
    sample = source.fetch(range(min(2, len(source))))[0]
    with ExitStack() as stack:
        told = stack.enter_context(counted(progress, "audit"))
        reference = stack.enter_context(at_precision(network, "fp64", sample))
        runs = [stack.enter_context(at_precision(network, precision, sample)) for precision in precisions]
        randomised = _is_random(reference, sample)
        notes = [f"reference {reference.note}", *(run.note for run in runs), *([_NOISE] if randomised else [])]
        notes += _output(reference, sample)
        batches: list[_Batch] = []
        for start in range(0, len(source), batch_size):
            positions = range(start, min(start + batch_size, len(source)))
            batches.append(_measure(reference, runs, chosen, *source.fetch(positions)))
            told(positions.stop, len(source))
    notes += _vanished(names, batches)
    name = model.name if isinstance(model, Classifier) else type(model).__name__
    found = _joined(name, source, [(loss, run.precision) for run in runs for loss in names], notes, batches)
    layers = _layers(network, source, np.flatnonzero(found.correct))
    notes = (*found.notes, *([layers.note] if layers.note else []))
    return replace(found, randomised=randomised, layers=layers.found, notes=notes)


def _layers(network: Model, data: Data, correct: NDArray[np.intp]) -> Layers:
    """Some of the correctly classified images, evenly spread."""
    some = correct[np.linspace(0, len(correct) - 1, min(ROWS, len(correct))).astype(int)]
    x, labels = data.fetch(np.unique(some).tolist())
    with prepare_model(network) as prepared:
        queries = Queries(prepared.model, prepared.dtype)
        return look_at_layers(queries, x.to(prepared.device, prepared.image_dtype), labels.to(prepared.device))


@dataclass(frozen=True)
class _Batch:
    label: Tensor
    correct: Tensor
    delta: Tensor
    classes: int
    vanished: Tensor  # loss by loss, how many correctly classified examples have no reference
    cells: list[tuple[GradientErrors, GradientErrors, Flags]]  # precision by precision, in each loss by loss


def _measure(reference: Network, runs: list[Network], losses: list[Loss], x: Tensor, labels: Tensor) -> _Batch:
    z, back = reference.forward(x)
    labels = labels.to(z.device)
    _check(z, labels)
    top = torch.topk(z, 2, dim=1).values
    truths = [reference_gradient(loss, z, labels) for loss in losses]
    pulled = [back(truth.weights) for truth in truths]
    cells: list[tuple[GradientErrors, GradientErrors, Flags]] = []
    for run in runs:
        logits, run_back = run.forward(x)
        usable = is_usable(logits)
        for loss, truth, pull in zip(losses, truths, pulled, strict=True):
            own = labels.to(logits.device)[:, None]
            got = gradient(loss, logits, own[:, 0])
            here = reference_gradient(loss, logits.to(z.device), labels)
            lost = (got.gather(1, own)[:, 0] == 0) & _has_label(here, labels).to(own.device)
            cells.append(
                (
                    compare_gradients(got, here.weights, here.scale, usable, here.vanished),
                    compare_gradients(run_back(got), pull, truth.scale, usable, truth.vanished),
                    (lost & usable).cpu().numpy(),
                )
            )
    correct = margin(z, labels) < 0
    vanished = torch.stack([(truth.label_vanished(labels) & correct).sum() for truth in truths])
    return _Batch(labels, correct, top[:, 0] - top[:, 1], z.shape[1], vanished, cells)


def _has_label(reference: Reference, labels: Tensor) -> Tensor:
    """(n,): the label's own gradient is there, or nobody knows."""
    return (reference.weights.gather(1, labels[:, None])[:, 0] != 0) | reference.label_vanished(labels)


def _vanished(names: list[str], batches: list[_Batch]) -> list[str]:
    counts = sum(batch.vanished.cpu() for batch in batches)
    return [
        f"{name} defines no reference gradient, and its own gradient by the label is exactly 0 in float64, too, on "
        f"{count} of the correctly classified examples: they count as lost where it is 0; if that is wrong, let the "
        "loss define reference(logits, labels)"
        for name, count in zip(names, torch.as_tensor(counts).tolist(), strict=True)
        if count
    ]


def _check(z: Tensor, labels: Tensor) -> None:
    if z.dim() != 2 or len(z) != len(labels):
        raise InputError(f"for {len(labels)} images the model must return logits (n, classes), got {tuple(z.shape)}")
    if z.shape[1] < 2:
        raise InputError("an audit needs at least two classes, the model has one: there is no rival to attack towards")
    if int(labels.max()) >= z.shape[1]:
        raise InputError(f"label {int(labels.max())} is out of range: the model has {z.shape[1]} classes")
    if not bool(is_usable(z).all()):
        raise InputError("the model returns NaN or infinite logits in float64; check its weights and normalisation")


_NOISE = "this model gives other logits each time it is asked: the errors by input are mostly its own noise"


def _is_random(reference: Network, sample: Tensor) -> bool:
    first, second = (reference.forward(sample)[0] for _ in range(2))
    return not torch.equal(first, second)


def _output(reference: Network, sample: Tensor) -> list[str]:
    """A remark where the model returns something else than logits."""
    with torch.no_grad():
        output = reference.model(sample.to(reference.device, reference.layers))
    _, said = read_output(output, len(sample))
    return [said] if said else []


def _joined(name: str, data: Data, pairs: list[tuple[str, str]], notes: list[str], batches: list[_Batch]) -> Audit:
    correct = torch.cat([batch.correct for batch in batches]).cpu().numpy()
    if not correct.any():
        raise InputError(
            f"{name} classifies none of the {len(correct)} examples of {data.name} correctly, so nothing would be "
            "attacked; check labels and normalisation"
        )
    cells = [
        Cell(
            loss,
            precision,
            GradientErrors.concat([batch.cells[k][0] for batch in batches]),
            GradientErrors.concat([batch.cells[k][1] for batch in batches]),
            np.concatenate([batch.cells[k][2] for batch in batches]),
        )
        for k, (loss, precision) in enumerate(pairs)
    ]
    return Audit(
        name,
        data.name,
        batches[0].classes,
        np.asarray(data.indices, dtype=np.int64),
        torch.cat([batch.label for batch in batches]).cpu().numpy(),
        correct,
        torch.cat([batch.delta for batch in batches]).cpu().numpy(),
        tuple(cells),
        tuple(notes),
    )


def _different(what: str, names: Sequence[T]) -> Sequence[T]:
    if isinstance(names, str) or not names or len(set(names)) != len(names):
        raise InputError(f"an audit needs different {what}, at least one, got {shown(names)}")
    return names
