"""The images of a report: adversarial ones from the store, clean ones read again from their source.

A store may come from anybody. So no code that it names is run, and nothing is downloaded for it: only sources that are
files of pixels are opened, and only the bundled models are loaded. What the user names with --data and --model is the
user's own decision. Either way the images must be those of the run, which the stored sizes show.
"""

from __future__ import annotations

__all__ = ["Gallery", "gallery", "gallery_of"]

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tmifpe.core.errors import InputError

if TYPE_CHECKING:
    from torch import Tensor

    from tmifpe.core.types import Classifier, Data
    from tmifpe.report.page.reported import Picture
    from tmifpe.run.result import Result
    from tmifpe.store import Store, StoredRun

_FILES = {
    "digits",
    "mnist",
    "fashion-mnist",
    "cifar10",
    "cifar100",
    "imagenet",
    "imagenet-bicubic",
    "imagefolder",
    "npz",
}
"""Sources that run no code of others and stay off the network."""
_BUNDLED = {"digits-robust", "digits-distilled"}


@dataclass(frozen=True)
class Gallery:
    """How many examples, where their images and the model are, and among how many runs the space is shared."""

    most: int = 500
    data: str | None = None
    model: str | None = None
    runs: int = 1


def gallery(store: Store, run: StoredRun, result: Result, asked: Gallery) -> tuple[tuple[Picture, ...], str]:
    """The pictures of a run, and a sentence on where they come from."""
    from tmifpe.report.page.gallery import BUDGET, choose, pictures

    rows = choose(result.outcomes, asked.most // asked.runs)
    if not rows:
        return (), "No example was attacked, so that there is nothing to see."
    adv = _adv(store, run, list(rows))
    clean, note = _clean(result, list(rows), asked.data, adv)
    if clean is None and adv is None:
        return (), note
    shares: list[tuple[str, str]] = []
    if clean is not None and adv is not None:
        shares, more = _shares(result, list(rows), clean, adv, _model(result, asked.model))
        note = f"{note} {more}"
    shown = pictures(result, rows, clean, adv, shares, BUDGET // asked.runs)
    return shown, f"{_chosen(result, len(shown))} {note}"


def gallery_of(result: Result, data: Data, model: Classifier, most: int) -> tuple[tuple[Picture, ...], str]:
    """The same for a result that holds its adversarial examples, with its data and model at hand."""
    from tmifpe.report.page.gallery import choose, pictures

    rows = choose(result.outcomes, most)
    if result.adv is None or not rows:
        return (), ""
    clean, adv = data.fetch(list(rows))[0], result.adv[list(rows)]
    shares, note = _shares(result, list(rows), clean, adv, model)
    shown = pictures(result, rows, clean, adv, shares)
    return shown, f"{_chosen(result, len(shown))} {note}"


def _chosen(result: Result, shown: int) -> str:
    attacked = int((result.outcomes.correct & result.outcomes.counted).sum())
    if shown == attacked:
        return f"All {shown} attacked examples."
    return (
        f"{shown} of {attacked} attacked examples: fragile, nearest to the boundary, of every class and stage, and "
        "wrong by the largest margin."
    )


def _adv(store: Store, run: StoredRun, rows: Sequence[int]) -> Tensor | None:
    """The points at these rows, one shard in memory at a time."""
    import torch

    from tmifpe.store.errors import StoreError

    wanted, found, start = set(rows), {}, 0
    try:
        for part in store.adv(run):
            found.update({row: part[row - start].clone() for row in range(start, start + len(part)) if row in wanted})
            start += len(part)
    except StoreError:  # its files are gone; the outcomes are in the database
        return None
    return torch.stack([found[row] for row in rows]) if len(found) == len(wanted) else None


def _clean(result: Result, rows: list[int], data: str | None, adv: Tensor | None) -> tuple[Tensor | None, str]:
    """The clean images at these rows, if they are at hand and the right ones; and what to say about it."""
    from tmifpe.data import load_data

    name = data or result.spec.data
    if data is None and name.partition(":")[0] not in _FILES:
        return None, f"The clean images are not at hand: name their source with --data (the run had {name})."
    try:
        source = load_data(name, box=result.spec.threat.box)
        at = [int(result.outcomes.index[row]) for row in rows]
        if max(at) >= len(source):
            raise InputError(f"{name} has {len(source)} examples")
        images, labels = source.fetch(at)
    except InputError as error:
        return None, f"The clean images are not at hand: {error}."
    if labels.tolist() != result.outcomes.label[rows].tolist() or not _same_images(result, rows, images, adv):
        return None, f"{name} holds other images than the run had, so that the clean ones are left out."
    return images, f"Clean images from {name}."


def _same_images(result: Result, rows: list[int], images: Tensor, adv: Tensor | None) -> bool:
    """Whether every point is as far from its image as the run measured; without points, the labels must do."""
    import numpy as np

    from tmifpe.norms import get_norm

    if adv is None:
        return True
    if adv.shape != images.shape:
        return False
    sizes = get_norm(result.spec.threat.norm).size(adv.double() - images.double()).numpy()
    told = result.outcomes.size[rows]
    return bool((np.abs(sizes - told) <= 1e-2 * np.maximum(told, 1e-3)).all())  # rounding in the run's own precision


def _model(result: Result, model: str | None) -> Classifier | None:
    """The model that the user names, or a bundled one."""
    from tmifpe.models import load_model

    name = model or result.spec.model
    return load_model(name) if model is not None or name in _BUNDLED else None


def _shares(
    result: Result, rows: list[int], clean: Tensor, adv: Tensor, model: Classifier | None
) -> tuple[list[tuple[str, str]], str]:
    """The probabilities of the predictions by the model itself; without it, what the gaps say."""
    import numpy as np
    import torch

    from tmifpe.report.page.gallery import share_of

    bound = "Probabilities are upper bounds from the gap of the logits; --model MODEL gives the exact ones."
    if model is None:
        return [], bound
    table, told = result.outcomes.take(np.array(rows)), []
    with torch.no_grad():
        for images, predicted in ((clean, table.clean_pred), (adv, table.adv_pred)):
            p = torch.cat([model(part.float()).double().softmax(dim=1).cpu() for part in images.split(64)])
            agree = (p.argmax(dim=1).numpy() == predicted).mean()
            if agree < 0.99:  # rounding may turn one at the boundary
                return [], f"{model.name} predicts otherwise than the run's model, so it is left out. {bound}"
            told.append([share_of(float(p[k, label])) for k, label in enumerate(predicted.tolist())])
    return list(zip(*told, strict=True)), f"Probabilities by {model.name}."
