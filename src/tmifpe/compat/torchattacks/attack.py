"""What every attack of torchattacks can do: modes, normalisation, calls, files."""

from __future__ import annotations

__all__ = ["AskedModel", "Attack"]

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from tmifpe.attacks import Attack as Climb
from tmifpe.attacks import Loop, Queries
from tmifpe.attacks.attack import as_problem
from tmifpe.attacks.loop.frozen import dtype_of, frozen
from tmifpe.compat.inputs import check_batch
from tmifpe.compat.torchattacks.files import read_points, to_type, write_points
from tmifpe.core.errors import InputError, shown
from tmifpe.core.types import Threat

TargetMap: TypeAlias = Callable[[Tensor, Tensor | None], Tensor]
_ROUNDING = 1e-4
"""How far outside [0, 1] an image may come back from its normalised form."""


class Attack:
    """The base class; one of your own overrides `forward`, and may call `climb` with any attack of tmifpe."""

    def __init__(self, name: str, model: nn.Module) -> None:
        self.attack = name
        self.set_model(model)
        self.device = next((p.device for p in model.parameters()), torch.device("cpu"))
        self.attack_mode = "default"
        self.supported_mode = ["default"]
        self.targeted = False
        self.normalization_used: dict[str, Tensor] | None = None
        self._target_map: TargetMap | None = None
        self._kth_min = 1

    def forward(self, inputs: Tensor, labels: Tensor) -> Tensor:
        """From images in [0, 1] and labels to adversarial examples."""
        raise NotImplementedError

    def __call__(self, inputs: Tensor, labels: Tensor | None = None) -> Tensor:
        """Adversarial examples, normalised where the inputs are; of labels that are None, the model's own."""
        check_batch(inputs, labels)
        x = inputs.detach().to(self.device)
        if self.normalization_used is not None:
            x = self._in_box(self.inverse_normalize(x))
        labels = self.get_output_with_eval_nograd(x).argmax(dim=1) if labels is None else labels.to(self.device)
        adv = self.forward(x, labels)
        return adv if self.normalization_used is None else self.normalize(adv)

    def climb(
        self,
        attack: Climb,
        norm: str,
        eps: float,
        x: Tensor,
        labels: Tensor,
        seed: int,
        eot: int = 1,
        start: Tensor | None = None,
    ) -> Tensor:
        """The strongest points that an attack of tmifpe finds, towards the targets of the mode; from `start`, if given,
        instead of where the attack would begin."""
        targets = None
        threat = Threat(norm, eps)
        if self.targeted:
            # The labels may be the targets themselves; what an attack leaves is then what the model says.
            targets = self.get_target_label(x, labels).to(self.device)
            labels = self._left(x, targets)
        with torch.inference_mode(False):
            problem = replace(as_problem(x, labels, threat, targets, seed), start=start)
            attack.check(threat, targeted=targets is not None, eot=eot)
            asked = AskedModel(self)
            with frozen(asked) as still:
                queries = Queries(still, dtype_of(asked) or x.dtype, eot)
                return attack.run(problem, queries, Loop(len(x), "strongest")).adv.to(x.dtype)

    def drawn_seed(self) -> int:
        """From torch's own generator, so that `torch.manual_seed` decides and every call starts elsewhere."""
        return int(torch.randint(2**31 - 1, (1,)))

    # Model and normalisation.
    def set_model(self, model: nn.Module) -> None:
        self.model, self.model_name = model, type(model).__name__

    def set_device(self, device: str | torch.device) -> None:
        self.device = torch.device(device)

    def get_logits(self, inputs: Tensor) -> Tensor:
        """Of images in [0, 1]; normalised first, where that is used."""
        return self.model(inputs if self.normalization_used is None else self.normalize(inputs))

    def get_output_with_eval_nograd(self, inputs: Tensor) -> Tensor:
        asked = AskedModel(self)
        with frozen(asked), torch.no_grad():
            return asked(inputs)

    def set_normalization_used(self, mean: Sequence[float], std: Sequence[float]) -> None:
        """Inputs and outputs are normalised by these, one number per channel; eps stays in units of [0, 1]."""
        shape = (1, len(mean), 1, 1)
        self.normalization_used = {
            "mean": torch.tensor(list(mean)).reshape(shape),
            "std": torch.tensor(list(std)).reshape(shape),
        }

    def normalize(self, inputs: Tensor) -> Tensor:
        mean, std = self._mean_and_std(inputs)
        return (inputs - mean) / std

    def inverse_normalize(self, inputs: Tensor) -> Tensor:
        mean, std = self._mean_and_std(inputs)
        return inputs * std + mean

    def set_model_training_mode(
        self, model_training: bool = False, batchnorm_training: bool = False, dropout_training: bool = False
    ) -> None:
        if model_training or batchnorm_training or dropout_training:
            raise InputError("tmifpe attacks models in eval mode only; leave set_model_training_mode out")

    # Modes.
    def get_mode(self) -> str:
        return self.attack_mode

    def set_mode_default(self) -> None:
        self.attack_mode, self.targeted, self._target_map = "default", False, None

    def set_mode_targeted_by_function(self, target_map_function: TargetMap, quiet: bool = False) -> None:  # noqa: ARG002
        """Towards `target_map_function(inputs, labels)`."""
        self._set_targeted("targeted(custom)", target_map_function)

    def set_mode_targeted_random(self, quiet: bool = False) -> None:  # noqa: ARG002
        self._set_targeted("targeted(random)", self.get_random_target_label)

    def set_mode_targeted_least_likely(self, kth_min: int = 1, quiet: bool = False) -> None:  # noqa: ARG002
        """Towards the class with the `kth_min`-th smallest logit, the label left out."""
        if kth_min < 1:
            raise InputError(f"kth_min must be at least 1, got {shown(kth_min)}")
        self._kth_min = kth_min
        self._set_targeted("targeted(least-likely)", self.get_least_likely_label)

    def set_mode_targeted_by_label(self, quiet: bool = False) -> None:  # noqa: ARG002
        """Towards the labels that the attack is called with."""
        self._set_targeted("targeted(label)", lambda inputs, labels: _given(labels))

    def get_target_label(self, inputs: Tensor, labels: Tensor | None = None) -> Tensor:
        if self._target_map is None:
            raise InputError("there are no targets: call one of the set_mode_targeted methods first")
        return self._target_map(inputs, labels)

    def get_least_likely_label(self, inputs: Tensor, labels: Tensor | None = None) -> Tensor:
        order = self._others(inputs, labels).argsort(dim=1, stable=True)
        return order[:, self._kth_min - 1]

    def get_random_target_label(self, inputs: Tensor, labels: Tensor | None = None) -> Tensor:
        others = self._others(inputs, labels)
        return torch.where(others.isinf(), 0.0, 1.0).multinomial(1)[:, 0]

    # Files.
    def save(
        self,
        data_loader: DataLoader[Any],
        save_path: str | Path | None = None,
        verbose: bool = True,
        return_verbose: bool = False,
        save_predictions: bool = False,
        save_clean_inputs: bool = False,
        save_type: str = "float",
    ) -> tuple[float, float, float] | None:
        """Attack all that the loader gives; the tensors go to `save_path`, a `.pt` or `.safetensors` file.

        With `return_verbose` (robust accuracy in percent, mean l2 size of the successes, seconds of the last batch).
        """
        options = (save_predictions, save_clean_inputs, save_type)
        return write_points(self, data_loader, save_path, verbose, return_verbose, *options)

    @staticmethod
    def load(
        load_path: str | Path,
        batch_size: int = 128,
        shuffle: bool = False,
        normalize: dict[str, Sequence[float]] | None = None,
        load_predictions: bool = False,
        load_clean_inputs: bool = False,
    ) -> DataLoader[Any]:
        """A loader of (adv, labels[, preds][, clean inputs]); nothing in the file can run code."""
        columns = read_points(load_path, normalize, load_predictions, load_clean_inputs)
        return DataLoader(TensorDataset(*columns), batch_size=batch_size, shuffle=shuffle)

    to_type = staticmethod(to_type)

    def __repr__(self) -> str:
        hidden = {"model", "attack", "supported_mode"}
        facts = {name: value for name, value in vars(self).items() if name not in hidden and name[0] != "_"}
        facts["normalization_used"] = self.normalization_used is not None
        facts.pop("model_name")
        texts = (f"{k}={v:.4g}" if isinstance(v, float) else f"{k}={v}" for k, v in facts.items())
        return f"{self.attack}({', '.join(texts)})"

    def _set_targeted(self, mode: str, target_map: TargetMap) -> None:
        if "targeted" not in self.supported_mode:
            raise InputError(f"{self.attack} has no targeted mode")
        self.attack_mode, self.targeted, self._target_map = mode, True, target_map

    def _mean_and_std(self, inputs: Tensor) -> tuple[Tensor, Tensor]:
        used = self.normalization_used
        if used is None:
            raise InputError("there is no normalisation: call set_normalization_used(mean, std) first")
        return used["mean"].to(inputs), used["std"].to(inputs)

    def _in_box(self, x: Tensor) -> Tensor:
        """Without the rounding of the way there and back; what is farther outside is left for the attack to refuse."""
        inside = x.clamp(0.0, 1.0)
        return torch.where((x - inside).abs() <= _ROUNDING, inside, x)

    def _others(self, inputs: Tensor, labels: Tensor | None) -> Tensor:
        """Logits, infinite at the label (or, without one, at the prediction)."""
        logits = self.get_output_with_eval_nograd(inputs)
        labels = logits.argmax(dim=1) if labels is None else labels.to(logits.device)
        return logits.scatter(1, labels[:, None], torch.inf)

    def _left(self, inputs: Tensor, targets: Tensor) -> Tensor:
        """The likeliest class that is not the target."""
        logits = self.get_output_with_eval_nograd(inputs)
        return logits.scatter(1, targets[:, None], -torch.inf).argmax(dim=1)


class AskedModel(nn.Module):
    """The model as the attack sees it: `get_logits` may be overridden, and normalises."""

    def __init__(self, attack: Attack) -> None:
        super().__init__()
        self.network, self._logits = attack.model, attack.get_logits

    def forward(self, x: Tensor) -> Tensor:
        return self._logits(x)


def _given(labels: Tensor | None) -> Tensor:
    if labels is None:
        raise InputError("the mode targeted(label) needs labels: they are the targets")
    return labels
