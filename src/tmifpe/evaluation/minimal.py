"""The smallest perturbation that changes each prediction, for tensors at hand."""

from __future__ import annotations

__all__ = ["Minimal", "minimal"]

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tmifpe.attacks import DDN, FAB, FMN, Attack, Loop, Problem, Queries, Verdicts
from tmifpe.attacks.attack import as_problem
from tmifpe.attacks.loop.frozen import dtype_of, frozen
from tmifpe.attacks.radius.smallest import size_of
from tmifpe.core.errors import InputError, did_you_mean
from tmifpe.core.extras import import_extra
from tmifpe.core.numbers import whole_number
from tmifpe.core.shown.formats import sheet_html, sheet_latex, sheet_markdown
from tmifpe.core.types import UNIT, Box, Classifier, Model, Threat
from tmifpe.evaluation.shown_radii import minimal_sheet, plot_minimal
from tmifpe.losses import AnyLoss
from tmifpe.norms import column, get_norm
from tmifpe.run.prepared_model import without_autocast
from tmifpe.run.shown.plot import save_figure
from tmifpe.run.verify import verify

_FARTHEST = 0.01


@dataclass(frozen=True)
class Minimal:
    """One row per image: an adversarial example, verified in a fresh forward pass, and its size (n,), in float64.

    An image that is misclassified to begin with is its own example, of size 0. Where none was found, the size is
    infinite and the example is the image.
    """

    adv: Tensor
    size: Tensor

    def __repr__(self) -> str:
        found, wrong = int(self.found.sum()), int((self.size == 0).sum())
        said = f"{found} of {len(self.size)} images broken, {wrong} of them wrong to begin with"
        return f"<Minimal .size and .adv of each image: {said}; median size {self.median:.4g}>"

    @property
    def found(self) -> Tensor:
        return torch.isfinite(self.size)

    @property
    def median(self) -> float:
        """Over all images; infinite if none was found for half of them."""
        return float(self.size.median())

    def to_markdown(self) -> str:
        """How many images were broken, and how far that took, in Markdown."""
        return sheet_markdown(minimal_sheet(self))

    def to_latex(self) -> str:
        """The same in LaTeX: a `tabular`, without packages."""
        return sheet_latex(minimal_sheet(self))

    def _repr_html_(self) -> str:
        return sheet_html(minimal_sheet(self))

    def plot(self, path: str | Path | None = None) -> Any:
        """How many images are not broken yet, against the size. Returns a matplotlib figure (extra `plots`).

        It is also written to `path` if one is given.
        """
        return save_figure(plot_minimal(self), path)

    def to_pandas(self) -> Any:
        """One row per image as a DataFrame (extra `pandas`): its `size`, and whether one was `found`."""
        pandas: Any = import_extra("pandas", "tables of perturbations", "pandas")
        return pandas.DataFrame({"size": self.size.cpu().numpy(), "found": self.found.cpu().numpy()})


@torch.inference_mode(False)  # an attack needs gradients, wherever it is called
def minimal(
    model: Model | Classifier,
    x: Tensor | NDArray[Any],
    y: Tensor | NDArray[Any],
    norm: str = "l2",
    *,
    attack: str = "fmn",
    steps: int = 100,
    loss: AnyLoss = "tmifpe",
    smooth: float = 3.0,
    targets: Tensor | None = None,
    box: Box = UNIT,
    batch_size: int = 256,
) -> Minimal:
    """The smallest adversarial examples that `attack` finds for images x (n, ...) with labels y (n,).

    norm: l2, linf, l1. attack: fmn, ddn (l2 only), fab. steps: gradients per image; of fab, which has a gradient for
    each of nine classes, its steps. loss, smooth: see `PGD`; fab has no loss. targets: towards these classes (n,).
    box: the lowest and the highest value of a pixel.

    >>> import torch, tmifpe
    >>> model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(2, 2, bias=False))
    >>> model[1].weight.data = torch.eye(2)
    >>> x, y = torch.tensor([[[[0.75, 0.25]]]]), torch.tensor([0])
    >>> round(tmifpe.minimal(model, x, y, "linf").size.item(), 2)
    0.25
    """
    if isinstance(x, tuple | list) or isinstance(y, Threat) or isinstance(norm, Threat):
        raise InputError('minimal takes images, labels and a norm, and finds the radius: minimal(model, x, y, "linf")')
    x, y = _tensor(x), _tensor(y)
    batch_size = whole_number("batch_size", batch_size)
    low, high = box
    widest = Threat(norm, 0.0, low, high)
    problem = as_problem(x, y, widest, targets)
    corner = torch.full_like(problem.x[:1], high - low).to(problem.eps.dtype)
    problem = problem.at(float(get_norm(widest.norm).size(corner)[0]))
    search = _search(attack, steps, loss, smooth)
    search.check(widest, targeted=targets is not None)
    network: Model = model.module if isinstance(model, Classifier) else model
    with frozen(network) as still, without_autocast(problem.x.device):
        queries = Queries(still, dtype_of(network) or x.dtype)
        logits = torch.cat([queries.logits(part, fresh=True) for part in problem.x.split(batch_size)])
        if logits.shape[1] <= int(y.max()):
            raise InputError(f"label {int(y.max())} is out of range: the model has {logits.shape[1]} classes")
        wrong = problem.succeeded(logits.argmax(dim=1))
        adv, size = problem.x.clone(), torch.where(wrong, 0.0, torch.full_like(problem.eps, torch.inf))
        rows = (~wrong).nonzero()[:, 0]
        if len(rows):
            part = problem.take(rows)
            loop = Loop(batch_size, "verdict", lambda claimed, these: verify(claimed, these, queries, batch_size))
            found = search.run(part, queries, loop)
            best, holds = _confirmed(part, found, loop)
            adv[rows] = torch.where(column(holds, best), best, part.x)
            size[rows] = torch.where(holds, size_of(part, best), torch.inf)
    return Minimal(adv.to(x.dtype), size)


def _search(attack: str, steps: int, loss: AnyLoss, smooth: float) -> Attack:
    if attack == "fmn":
        return FMN(loss, steps, smooth=smooth, reach=1.0)
    if attack == "ddn":
        return DDN(loss, steps, smooth=smooth, smallest=True)
    if attack == "fab":
        return FAB(steps, smooth=smooth)
    raise did_you_mean("attack that looks for the smallest perturbation", attack, ("fmn", "ddn", "fab"))


def _confirmed(problem: Problem, found: Verdicts, loop: Loop) -> tuple[Tensor, Tensor]:
    """The points, and which of them hold (n,). One so near the boundary that rounding decides on which side it lies is
    moved away from its image, by at most `_FARTHEST` of its size, until it is confirmed."""
    assert loop.verify is not None  # noqa: S101 - given above
    best, holds = found.best.clone(), found.fooled.clone()
    beyond = 8 * torch.finfo(best.dtype).eps
    while beyond < _FARTHEST and len(open_ := (~holds & (found.margin > -torch.inf)).nonzero()[:, 0]):
        part = problem.take(open_)
        moved = part.ball.boxed(torch.lerp(part.x, found.best[open_], 1 + beyond))
        right = loop.verify(moved, part)
        best[open_[right]], holds[open_[right]] = moved[right], True
        beyond *= 4
    return best, holds


def _tensor(given: Tensor | NDArray[Any]) -> Tensor:
    return torch.from_numpy(np.array(given)) if isinstance(given, np.ndarray) else given
