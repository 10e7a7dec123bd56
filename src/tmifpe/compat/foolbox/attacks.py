"""foolbox's gradient attacks by its names: `attack(fmodel, x, y, epsilons=[...])` gives raw, clipped and success.

Every fixed-epsilon attack returns the strongest point that it saw, already inside ball and bounds, so that raw and
clipped are the same; what breaks an image at one radius breaks it at every larger one.
"""

from __future__ import annotations

__all__ = [
    "FGM",
    "FGSM",
    "L1PGD",
    "L2PGD",
    "PGD",
    "DDNAttack",
    "L1FMNAttack",
    "L1ProjectedGradientDescentAttack",
    "L2BasicIterativeAttack",
    "L2FMNAttack",
    "L2FastGradientAttack",
    "L2ProjectedGradientDescentAttack",
    "LinfBasicIterativeAttack",
    "LinfFMNAttack",
    "LinfFastGradientAttack",
    "LinfPGD",
    "LinfProjectedGradientDescentAttack",
]

import copy
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar, NoReturn

import torch
from torch import Tensor

from tmifpe import attacks
from tmifpe.attacks.loop.frozen import frozen
from tmifpe.compat.foolbox.criteria import as_tensor, read_criterion
from tmifpe.compat.foolbox.model import BoundedModel
from tmifpe.compat.inputs import check_batch
from tmifpe.core.errors import InputError
from tmifpe.core.numbers import whole_number
from tmifpe.core.types import Threat
from tmifpe.evaluation.minimal import minimal
from tmifpe.norms import Ball, get_norm


class _FoolboxAttack(ABC):
    """What all of them share: the call, the criterion, the shapes."""

    norm: ClassVar[str] = "linf"

    def __init__(self) -> None:
        self.times = 1

    def repeat(self, times: int) -> _FoolboxAttack:
        """The same attack from `times` as many starts."""
        repeated = copy.copy(self)
        repeated.times = self.times * whole_number("times", times)
        return repeated

    def __call__(
        self, model: BoundedModel, inputs: Tensor, criterion: Any, *, epsilons: Sequence[float | None] | float | None
    ) -> tuple[Any, Any, Tensor]:
        """Of several epsilons: lists of tensors like `inputs`, and success (epsilons, n); of one: tensors and (n,)."""
        x = as_tensor(inputs)
        check_batch(x)
        labels, targets = read_criterion(criterion)
        several = isinstance(epsilons, Sequence)
        radii: list[float | None] = [*epsilons] if isinstance(epsilons, Sequence) else [epsilons]
        problem = _Question(model, x, labels, targets)
        raw = self.find(problem, radii)
        pairs = zip(raw, radii, strict=True)
        clipped = [point if eps is None else problem.clip(point, self.norm, eps) for point, eps in pairs]
        success = torch.stack([problem.success(point) for point in clipped])
        raw, clipped, success = (_like(inputs, one) for one in (raw, clipped, success))
        return (raw, clipped, success) if several else (raw[0], clipped[0], success[0])

    @abstractmethod
    def find(self, question: _Question, radii: Sequence[float | None]) -> list[Tensor]:
        """One tensor of points per radius."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{k}={v}' for k, v in vars(self).items())})"


class _Question:
    """A model, images and what counts as a success."""

    def __init__(self, model: BoundedModel, x: Tensor, labels: Tensor | None, targets: Tensor | None) -> None:
        self.model, self.x, self.targets = model, x, targets
        self.box = float(model.bounds[0]), float(model.bounds[1])
        if not bool(((x >= self.box[0]) & (x <= self.box[1])).all()):
            raise InputError(f"the inputs must lie within the model's bounds {self.box}")
        if labels is None:
            assert targets is not None  # noqa: S101 - a criterion has one of them
            # Of a targeted attack foolbox does not know the labels: what it leaves is what the model says.
            logits = self.logits(x)
            labels = logits.scatter(1, targets[:, None].to(logits.device), -torch.inf).argmax(dim=1)
        self.labels = labels

    def threat(self, norm: str, eps: float) -> Threat:
        return Threat(norm, eps, *self.box)

    def logits(self, x: Tensor) -> Tensor:
        with frozen(self.model), torch.no_grad():
            return self.model(x)

    def success(self, x: Tensor) -> Tensor:
        predictions = self.logits(x).argmax(dim=1)
        return predictions != self.labels if self.targets is None else predictions == self.targets

    def clip(self, adv: Tensor, norm: str, eps: float) -> Tensor:
        return get_norm(norm).project(adv, Ball.of(self.x, self.threat(norm, eps)))


class _FixedEpsilon(_FoolboxAttack):
    """PGD on cross-entropy with steps of `abs_stepsize`, or of `rel_stepsize` eps."""

    def __init__(self, rel_stepsize: float, abs_stepsize: float | None, steps: int, random_start: bool) -> None:
        super().__init__()
        self.rel_stepsize, self.abs_stepsize = rel_stepsize, abs_stepsize
        self.steps, self.random_start = steps, random_start

    def find(self, question: _Question, radii: Sequence[float | None]) -> list[Tensor]:
        if any(eps is None for eps in radii):
            raise InputError(f"{type(self).__name__} needs numbers as epsilons; for the smallest one use L2FMNAttack")
        found: dict[float, Tensor] = {}
        before: Tensor | None = None
        for eps in sorted({float(eps) for eps in radii if eps is not None}):
            points = self._at(question, eps)
            if before is not None:
                keep = question.success(before) & ~question.success(points)
                points = torch.where(keep.reshape(-1, *[1] * (points.dim() - 1)), before, points)
            found[eps] = before = points
        return [found[float(eps)] for eps in radii if eps is not None]

    def _at(self, question: _Question, eps: float) -> Tensor:
        if eps == 0:
            return question.x.clone()
        size = self.rel_stepsize if self.abs_stepsize is None else self.abs_stepsize / eps
        attack = attacks.PGD(
            "ce",
            self.steps,
            self.times,
            schedule="constant",
            step_size=size,
            momentum=0.0,
            random_start=self.random_start,
        )
        threat = question.threat(self.norm, eps)
        seed = int(torch.randint(2**31 - 1, (1,))) if self.random_start else 0  # torch.manual_seed decides
        return attack(
            question.model,
            question.x,
            question.labels,
            threat,
            targets=question.targets,
            seed=seed,
            batch_size=len(question.x),
        )


class LinfProjectedGradientDescentAttack(_FixedEpsilon):
    """PGD at Linf."""

    def __init__(
        self,
        *,
        rel_stepsize: float = 0.01 / 0.3,
        abs_stepsize: float | None = None,
        steps: int = 40,
        random_start: bool = True,
    ) -> None:
        super().__init__(rel_stepsize, abs_stepsize, steps, random_start)


class L2ProjectedGradientDescentAttack(_FixedEpsilon):
    """PGD at L2."""

    norm = "l2"

    def __init__(
        self,
        *,
        rel_stepsize: float = 0.025,
        abs_stepsize: float | None = None,
        steps: int = 50,
        random_start: bool = True,
    ) -> None:
        super().__init__(rel_stepsize, abs_stepsize, steps, random_start)


class L1ProjectedGradientDescentAttack(L2ProjectedGradientDescentAttack):
    """PGD at L1, with tmifpe's steps over few pixels."""

    norm = "l1"


class LinfBasicIterativeAttack(_FixedEpsilon):
    """PGD from the image itself."""

    def __init__(
        self,
        *,
        rel_stepsize: float = 0.2,
        abs_stepsize: float | None = None,
        steps: int = 10,
        random_start: bool = False,
    ) -> None:
        super().__init__(rel_stepsize, abs_stepsize, steps, random_start)


class L2BasicIterativeAttack(LinfBasicIterativeAttack):
    """The same at L2."""

    norm = "l2"


class LinfFastGradientAttack(_FixedEpsilon):
    """One step of eps (FGSM)."""

    def __init__(self, *, random_start: bool = False) -> None:
        super().__init__(1.0, None, 1, random_start)


class L2FastGradientAttack(LinfFastGradientAttack):
    """One step of eps at L2 (FGM)."""

    norm = "l2"


class _Minimization(_FoolboxAttack):
    """The smallest perturbation that `tmifpe.minimal` finds; the image where it finds none."""

    search: ClassVar[str] = "fmn"

    def __init__(self, *, steps: int = 100) -> None:
        super().__init__()
        self.steps = steps

    def find(self, question: _Question, radii: Sequence[float | None]) -> list[Tensor]:
        if self.times > 1:
            raise InputError(f"{type(self).__name__} draws nothing, so that repeating it finds nothing new")
        found = minimal(
            question.model,
            question.x,
            question.labels,
            self.norm,
            attack=self.search,
            steps=self.steps,
            targets=question.targets,
            box=question.box,
            batch_size=len(question.x),
        )
        return [found.adv] * len(radii)


class LinfFMNAttack(_Minimization):
    """FMN at Linf."""


class L2FMNAttack(_Minimization):
    """FMN at L2."""

    norm = "l2"


class L1FMNAttack(_Minimization):
    """FMN at L1."""

    norm = "l1"


class DDNAttack(_Minimization):
    """DDN."""

    norm, search = "l2", "ddn"


LinfPGD = PGD = LinfProjectedGradientDescentAttack
L2PGD, L1PGD = L2ProjectedGradientDescentAttack, L1ProjectedGradientDescentAttack
FGSM, FGM = LinfFastGradientAttack, L2FastGradientAttack

_OTHERS = [
    "BoundaryAttack",
    "BrendelBethgeAttack",
    "L2CarliniWagnerAttack",
    "L2DeepFoolAttack",
    "LinfDeepFoolAttack",
    "EADAttack",
    "HopSkipJumpAttack",
    "GenAttack",
    "SaltAndPepperNoiseAttack",
    "VirtualAdversarialAttack",
    "LinfinityBrendelBethgeAttack",
    "L0BrendelBethgeAttack",
    "L1BrendelBethgeAttack",
    "L2BrendelBethgeAttack",
    "L0FMNAttack",
    "NewtonFoolAttack",
    "SpatialAttack",
    "DatasetAttack",
    "PointwiseAttack",
    "L2AdamPGD",
    "LinfAdamPGD",
    "L1BasicIterativeAttack",
    "L1FastGradientAttack",
]


def __getattr__(name: str) -> Any:
    """foolbox's other attacks: importing one works, making one raises what to use instead."""
    if name not in _OTHERS:
        raise AttributeError(f"module 'tmifpe.compat.foolbox.attacks' has no attribute {name!r}")

    def refuse(*_: object, **__: object) -> NoReturn:
        raise InputError(f"tmifpe does not have foolbox's {name}; those that it has are {', '.join(__all__)}")

    return refuse


def _like(inputs: Any, found: Any) -> Any:
    """As eagerpy tensors where the inputs are."""
    if not hasattr(inputs, "raw"):
        return found
    kind = type(inputs)
    return [kind(one) for one in found] if isinstance(found, list) else kind(found)
