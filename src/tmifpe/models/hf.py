"""`hf:NAME` or `hf:FOLDER`: an image classifier of Hugging Face transformers, its processor inside."""

from __future__ import annotations

__all__ = ["LogitsOnly", "config_text", "existing_folder", "hf"]

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from tmifpe.core.errors import InputError, first_line
from tmifpe.core.extras import import_extra
from tmifpe.core.types import UNIT
from tmifpe.models.processor import Resizing, as_sides, normalisation, processor_settings, resizing
from tmifpe.models.source import Asked, Loaded
from tmifpe.models.weights import load_weights


class LogitsOnly(nn.Module):
    """The `logits` of a network that answers with a record."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, x: Tensor) -> Tensor:
        return self.network(pixel_values=x).logits


class FeaturesOnly(nn.Module):
    """What a network without a head pools, or where it has no pooling that was trained, its first token."""

    def __init__(self, network: nn.Module, pooled: bool) -> None:
        super().__init__()
        self.network = network
        self.pooled = pooled

    def forward(self, x: Tensor) -> Tensor:
        record = self.network(pixel_values=x)
        return record.pooler_output.flatten(1) if self.pooled else record.last_hidden_state[:, 0]


def hf(asked: Asked) -> Loaded:
    """From the cache, the hub or a folder, as safetensors or weights-only state dict; code of the hub is never run."""
    if not asked.where:
        raise InputError("hf needs a name or a folder: write hf:NAME, e.g. hf:microsoft/resnet-18")
    if asked.where.startswith(("/", ".", "~")):
        asked = replace(asked, where=str(existing_folder(asked.where, "hf")))
    transformers = import_extra("transformers", "Hugging Face models", "hf", uses_torchvision=True)
    network, drawn = _network(transformers, asked)
    if asked.features:
        untrained = [name for name in drawn if "pooler" not in name]  # a classifier's checkpoint may have none
        module: nn.Module = FeaturesOnly(network, pooled=len(untrained) == len(drawn))
        drawn = untrained
    else:
        _refuse_other_tasks(network.config, asked.where)
        module = LogitsOnly(network)
    if drawn:  # transformers would fill them with random numbers
        raise InputError(f"hf:{asked.where} is no trained image classifier: it lacks {', '.join(drawn[:3])}")
    settings = processor_settings(transformers, asked.where)
    config, how = network.config, resizing(settings)
    shape = _input_shape(config, how, settings)
    mean, std = normalisation(settings, shape[0] if shape else 3)
    return Loaded(
        module,
        stamp=f"hf:{type(network).__name__}:{config_text(config)}",
        classes=None if asked.features else int(config.num_labels),
        input_shape=shape,
        mean=mean,
        std=std,
        class_names=() if asked.features else _class_names(config),
        box=UNIT,
        resizing=how,
        notes=() if settings else (f"hf:{asked.where} states no normalisation; give `mean` and `std` if it needs one",),
    )


def _network(transformers: Any, asked: Asked) -> tuple[Any, list[str]]:
    """The network, and the names of what would be random in it."""
    auto = transformers.AutoModel if asked.features else transformers.AutoModelForImageClassification
    try:
        if asked.weights is None:
            network, report = auto.from_pretrained(asked.where, trust_remote_code=False, output_loading_info=True)
            return network, [*report["missing_keys"], *(entry[0] for entry in report["mismatched_keys"])]
        config = transformers.AutoConfig.from_pretrained(asked.where, trust_remote_code=False)
        network = auto.from_config(config, trust_remote_code=False)
    except Exception as error:  # no network, no such name, not an image classifier
        first = first_line(error)
        raise InputError(
            f"cannot load hf:{asked.where} (an image classifier in a folder, in the cache or on the hub): {first}"
        ) from error
    load_weights(network, asked.weights, f"hf:{asked.where}")
    return network, []


def _refuse_other_tasks(config: Any, where: str) -> None:
    """`InputError` for a network whose labels are not one class per image."""
    if getattr(config, "problem_type", None) == "multi_label_classification":
        raise InputError(
            f"hf:{where} is a multi-label classifier (problem_type in its configuration), and attacks need one class "
            "per image: multi-label would need a loss and a rule of success over sets of labels; to attack one label, "
            "wrap the model so that it returns that label's logit alone"
        )
    if getattr(config, "problem_type", None) == "regression":
        raise InputError(f"hf:{where} is a regression, and robust accuracy needs classes")


def _class_names(config: Any) -> tuple[str, ...]:
    """What the configuration calls the classes; LABEL_0, LABEL_1, ... say nothing."""
    named = getattr(config, "id2label", None) or {}
    names = tuple(str(named.get(k, "")) for k in range(int(config.num_labels)))
    return () if any(not name or name.startswith("LABEL_") for name in names) else names


def config_text(config: Any) -> str:
    """All that the configuration says of the network, but for where it was found and by which version it is read."""
    aside = ("_name_or_path", "transformers_version")
    return json.dumps({k: v for k, v in config.to_dict().items() if k not in aside}, sort_keys=True, default=str)


def existing_folder(where: str, source: str) -> Path:
    try:
        folder = Path(where).expanduser()
        if folder.is_dir():
            return folder
    except (OSError, ValueError, RuntimeError):  # a name too long, with a null byte, or of a user who is not there
        pass
    raise InputError(f"no such folder: {where} (from {source}:{where})")


def _input_shape(config: Any, how: Resizing | None, settings: Mapping[str, Any]) -> tuple[int, ...] | None:
    """(C, H, W): what the processor makes of pictures, else the size that the network states."""
    channels = int(getattr(config, "num_channels", None) or 3)
    size = getattr(config, "image_size", None) or settings.get("crop_size") or settings.get("size")
    sides = how.size if how is not None else as_sides(size)
    return None if sides is None else (channels, *sides)
