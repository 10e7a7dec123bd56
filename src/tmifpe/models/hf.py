"""`hf:NAME` or `hf:FOLDER`: an image classifier of Hugging Face transformers, with its processor's normalisation."""

from __future__ import annotations

__all__ = ["LogitsOnly", "hf"]

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from tmifpe.core.errors import InputError, first_line
from tmifpe.core.extras import import_extra
from tmifpe.core.types import UNIT
from tmifpe.models.source import Asked, Loaded
from tmifpe.models.weights import load_weights


class LogitsOnly(nn.Module):
    """The `logits` of a network that answers with a record."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, x: Tensor) -> Tensor:
        return self.network(pixel_values=x).logits


def hf(asked: Asked) -> Loaded:
    """From the cache, the hub or a folder, as safetensors or weights-only state dict; code of the hub is never run."""
    if not asked.where:
        raise InputError("hf needs a name or a folder: write hf:NAME, e.g. hf:microsoft/resnet-18")
    if asked.where.startswith(("/", ".", "~")):
        asked = replace(asked, where=str(_existing_folder(asked.where)))
    transformers = import_extra("transformers", "Hugging Face models", "hf", uses_torchvision=True)
    drawn: list[str] = []
    try:
        auto = transformers.AutoModelForImageClassification
        if asked.weights is None:
            network, report = auto.from_pretrained(asked.where, trust_remote_code=False, output_loading_info=True)
            drawn = [*report["missing_keys"], *(entry[0] for entry in report["mismatched_keys"])]
        else:
            config = transformers.AutoConfig.from_pretrained(asked.where, trust_remote_code=False)
            network = auto.from_config(config, trust_remote_code=False)
    except Exception as error:  # no network, no such name, not an image classifier
        first = first_line(error)
        raise InputError(
            f"cannot load hf:{asked.where} (an image classifier in a folder, in the cache or on the hub): {first}"
        ) from error
    if drawn:  # transformers would fill them with random numbers
        raise InputError(f"hf:{asked.where} is no trained image classifier: it lacks {', '.join(drawn[:3])}")
    if asked.weights is not None:
        load_weights(network, asked.weights, f"hf:{asked.where}")
    processor = _processor(transformers, asked.where)
    config = network.config
    mean, std = _normalisation(processor)
    return Loaded(
        LogitsOnly(network),
        stamp=f"hf:{type(network).__name__}:{_settings(config)}",
        classes=int(config.num_labels),
        input_shape=_input_shape(config, processor),
        mean=mean,
        std=std,
        class_names=_class_names(config),
        box=UNIT,
        notes=()
        if processor
        else (f"hf:{asked.where} states no normalisation; give `mean` and `std` if it needs one",),
    )


def _class_names(config: Any) -> tuple[str, ...]:
    """What the configuration calls the classes; LABEL_0, LABEL_1, ... say nothing."""
    named = getattr(config, "id2label", None) or {}
    names = tuple(str(named.get(k, "")) for k in range(int(config.num_labels)))
    return () if any(not name or name.startswith("LABEL_") for name in names) else names


def _settings(config: Any) -> str:
    """All that the configuration says of the network, but for where it was found and by which version it is read."""
    aside = ("_name_or_path", "transformers_version")
    return json.dumps({k: v for k, v in config.to_dict().items() if k not in aside}, sort_keys=True, default=str)


def _existing_folder(where: str) -> Path:
    try:
        folder = Path(where).expanduser()
        if folder.is_dir():
            return folder
    except (OSError, ValueError, RuntimeError):  # a name too long, with a null byte, or of a user who is not there
        pass
    raise InputError(f"no such folder: {where} (from hf:{where})")


def _processor(transformers: Any, where: str) -> dict[str, Any]:
    """The processor's settings, without making a processor: those need further packages."""
    try:
        return dict(transformers.ImageProcessingMixin.get_image_processor_dict(where)[0])
    except (OSError, ValueError, TypeError):
        return {}


def _normalisation(processor: dict[str, Any]) -> tuple[tuple[float, ...] | None, tuple[float, ...] | None]:
    mean, std = processor.get("image_mean"), processor.get("image_std")
    if not processor.get("do_normalize", True) or not mean or not std:
        return None, None
    return tuple(mean), tuple(std)


def _input_shape(config: Any, processor: dict[str, Any]) -> tuple[int, int, int] | None:
    """(C, H, W) from the network if it states a size, else from what its processor makes."""
    channels = getattr(config, "num_channels", None) or 3
    size = getattr(config, "image_size", None) or processor.get("crop_size") or processor.get("size")
    if isinstance(size, int):
        return (channels, size, size)
    if isinstance(size, list | tuple) and len(size) == 2:
        return (channels, int(size[0]), int(size[1]))
    if isinstance(size, dict) and "height" in size and "width" in size:
        return (channels, int(size["height"]), int(size["width"]))
    return None
