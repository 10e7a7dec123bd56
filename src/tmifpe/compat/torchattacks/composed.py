"""Attacks made of attacks: each on what those before it left standing."""

from __future__ import annotations

__all__ = ["AutoAttack", "MultiAttack"]

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from tmifpe.compat.torchattacks.attack import AskedModel, Attack
from tmifpe.core.errors import InputError, shown
from tmifpe.core.types import Threat
from tmifpe.evaluation.evaluate import evaluate


class MultiAttack(Attack):
    """Several attacks on one model, in turn; the image itself where none succeeds."""

    def __init__(self, attacks: Sequence[Attack], verbose: bool = False) -> None:
        if len(attacks) < 2:
            raise InputError("MultiAttack needs at least two attacks")
        if any(one.model is not attacks[0].model for one in attacks):
            raise InputError("the attacks of a MultiAttack must have the same model")
        super().__init__("MultiAttack", attacks[0].model)
        self.attacks, self.verbose = list(attacks), verbose

    def forward(self, inputs: Tensor, labels: Tensor) -> Tensor:
        adv, left = inputs.clone(), torch.arange(len(inputs), device=inputs.device)
        for attack in self.attacks:
            if not len(left):
                break
            found = attack.forward(inputs[left], labels[left])
            broken = self.get_output_with_eval_nograd(found).argmax(dim=1) != labels[left]
            adv[left[broken]] = found[broken]
            left = left[~broken]
        return adv

    def set_normalization_used(self, mean: Sequence[float], std: Sequence[float]) -> None:
        super().set_normalization_used(mean, std)
        for attack in self.attacks:
            attack.set_normalization_used(mean, std)


class AutoAttack(Attack):
    """`standard` runs tmifpe's `full` (docs/strength.md compares them); other versions are refused."""

    def __init__(
        self,
        model: nn.Module,
        norm: str = "Linf",
        eps: float = 8 / 255,
        version: str = "standard",
        n_classes: int = 10,
        seed: int | None = None,
        verbose: bool = False,
    ) -> None:
        super().__init__("AutoAttack", model)
        if version != "standard":
            raise InputError(
                f"tmifpe has AutoAttack's standard version here, not {shown(version)}; for 'rand' and 'custom' use "
                "tmifpe.compat.autoattack"
            )
        self.norm, self.eps, self.version, self.n_classes = norm, eps, version, n_classes
        self.seed, self.verbose = seed, verbose

    def forward(self, inputs: Tensor, labels: Tensor) -> Tensor:
        found = evaluate(
            AskedModel(self),
            (inputs, labels),
            Threat(self.norm, self.eps),
            "full",
            seed=self.seed or 0,
            batch_size=len(inputs),
            checks=False,
            keep_adv=True,
        )
        assert found.adv is not None  # noqa: S101 - it was asked for
        return found.adv.to(inputs)
