"""`from tmifpe.compat.autoattack import AutoAttack`: AutoAttack's calls, answered by tmifpe's attacks."""

from __future__ import annotations

__all__ = ["APGDSettings", "AutoAttack", "FABSettings", "Logger", "SquareSettings", "TargetedSettings"]

import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from tmifpe.attacks import APGD, FAB, Attack, Square, get_attack
from tmifpe.attacks.catalogue import stage_title
from tmifpe.attacks.radius.outside import Outside
from tmifpe.compat.inputs import check_batch
from tmifpe.core.errors import InputError, shown
from tmifpe.core.numbers import whole_number
from tmifpe.core.types import Threat
from tmifpe.evaluation.evaluate import evaluate
from tmifpe.norms import get_norm
from tmifpe.run.result import Result

_NORMS = ("Linf", "L2", "L1")
_VERSIONS = {"standard": ["full"], "rand": ["apgd-ce", "apgd-dlr"]}
_INSTEAD = {"apgd-t": "add 'multi-targeted', which aims at the nearest classes, or 'full'"}


# With slots, a setting that does not exist raises instead of changing nothing.
@dataclass(slots=True)
class APGDSettings:
    """`adversary.apgd`, for the attacks apgd-ce and apgd-dlr. `use_largereps` (L1): 30 % of the steps each in balls of
    three and two times eps, the others in eps itself."""

    n_restarts: int = 5
    n_iter: int = 100
    eot_iter: int = 1
    use_largereps: bool = False


@dataclass(slots=True)
class TargetedSettings:
    """`adversary.apgd_targeted`; apgd-t is refused, so that these change nothing."""

    n_restarts: int = 1
    n_iter: int = 100
    eot_iter: int = 1
    n_target_classes: int = 9
    use_largereps: bool = False


@dataclass(slots=True)
class FABSettings:
    """`adversary.fab`, for the attacks fab and fab-t; the latter has one restart, as it has there."""

    n_restarts: int = 5
    n_iter: int = 100
    n_target_classes: int = 9


@dataclass(slots=True)
class SquareSettings:
    """`adversary.square`."""

    n_queries: int = 5000
    n_restarts: int = 1
    p_init: float = 0.8


class Logger:
    """Prints a line, and appends it to the file at `log_path` where one is given."""

    def __init__(self, log_path: str | Path | None = None) -> None:
        self.log_path = log_path

    def log(self, text: str) -> None:
        sys.stdout.write(text + "\n")
        if self.log_path is not None:
            with Path(self.log_path).open("a", encoding="utf-8") as file:
                file.write(text + "\n")


class AutoAttack:
    """AutoAttack's constructor and methods. `standard` runs tmifpe's `full` (docs/strength.md compares them).

    version: `standard`; `rand` (apgd-ce and apgd-dlr, averaged over 20 draws); `custom` with `attacks_to_run`, of
        apgd-ce, apgd-dlr, fab, fab-t, square and every attack of tmifpe (`full`, `multi-targeted`, `pgd(loss=cw)`).
    seed: None is 0. device: `cuda` is taken to mean where the model is, if there is no CUDA.

    `plus` and `apgd-t` are refused, and so are TensorFlow models and `state_path`.

    >>> model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(4, 3))
    >>> x, y = torch.rand(8, 1, 2, 2), torch.zeros(8, dtype=torch.long)
    >>> adversary = AutoAttack(model, norm="Linf", eps=8 / 255, verbose=False)
    >>> adversary.run_standard_evaluation(x, y, bs=8).shape
    torch.Size([8, 1, 2, 2])
    """

    def __init__(
        self,
        model: nn.Module | Callable[[Tensor], Tensor],
        norm: str = "Linf",
        eps: float = 0.3,
        seed: int | None = None,
        verbose: bool = True,
        attacks_to_run: Sequence[str] = (),
        version: str = "standard",
        is_tf_model: bool = False,
        device: str | torch.device = "cuda",
        log_path: str | Path | None = None,
    ) -> None:
        if is_tf_model:
            raise InputError("tmifpe attacks PyTorch models; give a TensorFlow model to AutoAttack itself")
        if norm not in _NORMS:
            raise InputError(f"norm must be one of {', '.join(_NORMS)}, got {shown(norm)}")
        if version in _VERSIONS and attacks_to_run:
            raise InputError("attacks_to_run would be overridden: give it with version='custom' only")
        self.model, self.norm, self.epsilon, self.seed, self.verbose = model, norm, eps, seed, verbose
        self.attacks_to_run, self.version, self.device = list(attacks_to_run), version, device
        self.logger = Logger(log_path)
        self.apgd, self.apgd_targeted = APGDSettings(), TargetedSettings()
        self.fab, self.square = FABSettings(), SquareSettings()
        if version != "custom":
            self.set_version(version)

    def set_version(self, version: str = "standard") -> None:
        """Set the attacks of `standard` or `rand`, and their settings."""
        if version not in _VERSIONS:
            reason = "runs apgd-t, which tmifpe does not have" if version == "plus" else "is not known"
            raise InputError(f"version {shown(version)} {reason}; use 'standard', 'rand' or 'custom'")
        self._say(f"setting parameters for {version} version")
        self.version, self.attacks_to_run = version, list(_VERSIONS[version])
        if version == "rand":
            self.apgd = APGDSettings(n_restarts=1, eot_iter=20)

    def get_logits(self, x: Tensor) -> Tensor:
        return self.model(x)

    def get_seed(self) -> int:
        return 0 if self.seed is None else self.seed

    def run_standard_evaluation(
        self,
        x_orig: Tensor,
        y_orig: Tensor,
        bs: int = 250,
        return_labels: bool = False,
        state_path: str | Path | None = None,
    ) -> Any:
        """x_adv, or (x_adv, y_adv) with `return_labels`: the image itself where it withstood every attack."""
        if state_path is not None:
            raise InputError("state_path is AutoAttack's own; for runs that resume use tmifpe.evaluate(..., store=DIR)")
        self._say(f"using {self.version} version including {', '.join(self.attacks_to_run)}.")
        found = self._evaluated(self.attacks_to_run, x_orig, y_orig, bs)
        self._tell(found)
        adv, labels = self._points(found, x_orig, y_orig)
        size = get_norm(self._threat.norm).size((adv - x_orig).float()).max()
        self._say(
            f"max {self.norm} perturbation: {size:.5f}, nan in tensor: {int(adv.isnan().sum())}, "
            f"max: {adv.max():.5f}, min: {adv.min():.5f}"
        )
        self._say(f"robust accuracy: {found.robust_accuracy:.2%}")
        return (adv, labels) if return_labels else adv

    def run_standard_evaluation_individual(
        self, x_orig: Tensor, y_orig: Tensor, bs: int = 250, return_labels: bool = False
    ) -> dict[str, Any]:
        """Each attack of `attacks_to_run` by itself on all images: its name to x_adv, or to (x_adv, y_adv)."""
        self._say(f"using {self.version} version including {', '.join(self.attacks_to_run)}.")
        every: dict[str, Any] = {}
        for name in self.attacks_to_run:
            began = time.perf_counter()
            found = self._evaluated([name], x_orig, y_orig, bs)
            spent = time.perf_counter() - began
            self._say(
                f"robust accuracy by {name.upper()} \t {found.robust_accuracy:.2%} \t (time attack: {spent:.1f} s)"
            )
            adv, labels = self._points(found, x_orig, y_orig)
            every[name] = (adv, labels) if return_labels else adv
        return every

    @torch.no_grad()
    def clean_accuracy(self, x_orig: Tensor, y_orig: Tensor, bs: int = 250) -> float:
        """The share of the images that the model classifies as labelled, in [0, 1]."""
        check_batch(x_orig, y_orig)
        pairs = zip(x_orig.split(bs), y_orig.split(bs), strict=True)
        hits = sum(int((self.get_logits(x).argmax(dim=1) == y.to(x.device)).sum()) for x, y in pairs)
        self._say(f"clean accuracy: {hits / len(x_orig):.2%}")
        return hits / len(x_orig)

    @property
    def _threat(self) -> Threat:
        return Threat(self.norm, self.epsilon)

    def _say(self, text: str) -> None:
        if self.verbose:
            self.logger.log(text)

    def _attack(self, name: str) -> Attack:
        if name in _INSTEAD:
            raise InputError(f"tmifpe does not have {name}; {_INSTEAD[name]}")
        if name in ("apgd-ce", "apgd-dlr"):
            return self._apgd(name.removeprefix("apgd-"))
        if name == "fab":
            return FAB(self.fab.n_iter, self.fab.n_restarts, smallest=False)
        if name == "fab-t":
            return FAB(self.fab.n_iter, targets=self.fab.n_target_classes, towards="each", smallest=False)
        if name == "square":
            given = self.square
            return Square(given.n_queries, given.p_init, given.n_restarts)
        return get_attack(name)

    def _apgd(self, loss: str) -> Attack:
        given = self.apgd
        if not given.use_largereps:
            return APGD(loss=loss, steps=given.n_iter, restarts=given.n_restarts)
        if self.norm != "L1":
            raise InputError("use_largereps is for norm='L1' only, as in AutoAttack itself")
        wide = -(-3 * given.n_iter // 10)
        last = given.n_iter - 2 * wide
        if last < 1:
            raise InputError(f"use_largereps needs 4 steps at least (n_iter), got {shown(given.n_iter)}")
        return Outside(APGD(loss=loss, steps=wide), last=last, restarts=given.n_restarts)

    def _check_settings(self, names: Sequence[str]) -> None:
        """Settings that no attack would read must not be ignored in silence."""
        usual = APGDSettings(1, 100, 20) if self.version == "rand" else APGDSettings()
        read = {"apgd": {"apgd-ce", "apgd-dlr"}, "fab": {"fab", "fab-t"}, "square": {"square"}}
        settings = (
            ("apgd", self.apgd, usual),
            ("fab", self.fab, FABSettings()),
            ("square", self.square, SquareSettings()),
        )
        for part, now, default in settings:
            if now != default and not read[part] & set(names):
                raise InputError(
                    f"adversary.{part} was changed, but none of {', '.join(names)} reads it; use version='custom' with "
                    f"attacks_to_run={[*names, min(read[part])]}"
                )

    def _evaluated(self, names: Sequence[str], x: Tensor, y: Tensor, bs: int) -> Result:
        if not names:
            raise InputError("attacks_to_run is empty: name some, such as ['full'] or ['apgd-ce', 'square']")
        check_batch(x, y)
        self._check_settings(self.attacks_to_run)
        attacks = [self._attack(name) for name in names]
        eot = self.apgd.eot_iter if any(name.startswith("apgd-") for name in names) else 1
        return evaluate(
            self.model,
            (x.detach(), y),
            self._threat,
            attacks,
            seed=whole_number("seed", self.get_seed(), least=0),
            eot=eot,
            batch_size=bs,
            device=self._device(x),
            keep_adv=True,
        )

    def _device(self, x: Tensor) -> str | torch.device | None:
        if not isinstance(self.model, nn.Module):
            return x.device if str(self.device) == "cuda" and not torch.cuda.is_available() else self.device
        return None if str(self.device) == "cuda" and not torch.cuda.is_available() else self.device

    def _points(self, found: Result, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        assert found.adv is not None  # noqa: S101 - it was asked for
        return found.adv.to(x), torch.from_numpy(found.outcomes.adv_pred).to(y)

    def _tell(self, found: Result) -> None:
        """What AutoAttack logs: the accuracy before, and after each stage that attacked something; then what to
        doubt."""
        self._say(f"initial accuracy: {found.clean_accuracy:.2%}")
        left, spent = round(found.clean_accuracy * found.n), 0.0
        for spelling, cost in zip(found.spec.attacks, found.stages, strict=False):
            if not cost.examples:
                continue
            name, left, spent = stage_title(spelling), left - cost.broken, spent + cost.seconds
            self._say(f"{name} - 1/1 - {cost.broken} out of {cost.examples} successfully perturbed")
            self._say(f"robust accuracy after {name.upper()}: {left / found.n:.2%} (total time {spent:.1f} s)")
        for repair in found.repairs:
            left -= repair.broken
            self._say(f"{repair} survivors; robust accuracy after that: {left / found.n:.2%}")
        for flag in found.flags:
            self._say(f"Warning: {flag.seen} {flag.advice}")
