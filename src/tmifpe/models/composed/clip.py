"""`clip:NAME` or `clip:FOLDER`: CLIP as a zero-shot classifier of the classes that it is told in words."""

from __future__ import annotations

__all__ = ["TEMPLATE", "clip"]

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from tmifpe.core.errors import InputError, first_line, shown
from tmifpe.core.extras import import_extra
from tmifpe.core.hashing import digest
from tmifpe.core.types import UNIT
from tmifpe.models.composed.zero_shot import ZeroShot
from tmifpe.models.hf import config_text, existing_folder
from tmifpe.models.processor import normalisation, processor_settings, resizing
from tmifpe.models.source import Asked, Loaded
from tmifpe.models.weights import load_weights

TEMPLATE = "a photo of a {}."
"""The sentence if none is given."""


class ImageSide(nn.Module):
    """The image side of CLIP: features that the text side's are compared with."""

    def __init__(self, network: Any) -> None:
        super().__init__()
        self.vision, self.projection = network.vision_model, network.visual_projection

    def forward(self, x: Tensor) -> Tensor:
        return self.projection(self.vision(pixel_values=x).pooler_output)


def clip(asked: Asked) -> Loaded:
    """From the cache, the hub or a folder, like `hf`. The text side is used once and not kept."""
    if not asked.where:
        raise InputError("clip needs a name or a folder: write clip:NAME, e.g. clip:openai/clip-vit-base-patch32")
    if asked.where.startswith(("/", ".", "~")):
        asked = replace(asked, where=str(existing_folder(asked.where, "clip")))
    template = asked.template or TEMPLATE
    if not asked.features:
        _check_words(asked, template)
    transformers = import_extra("transformers", "CLIP models", "hf", uses_torchvision=True)
    network = _network(transformers, asked)
    module: nn.Module = ImageSide(network)
    if not asked.features:
        text = _text_features(transformers, network, asked, template)
        module = ZeroShot(module, text, float(network.logit_scale.detach().double().exp()))
    settings = processor_settings(transformers, asked.where)
    vision = network.config.vision_config
    how, channels = resizing(settings), int(getattr(vision, "num_channels", 3))
    mean, std = normalisation(settings, channels)
    words = [] if asked.features else [template, *asked.classes]
    return Loaded(
        module,
        stamp=digest([f"clip:{config_text(vision)}", *words]),
        classes=len(asked.classes) or None,
        input_shape=(channels, *(how.size if how is not None else (vision.image_size, vision.image_size))),
        mean=mean,
        std=std,
        class_names=asked.classes,
        box=UNIT,
        resizing=how,
        notes=()
        if settings
        else (f"clip:{asked.where} states no normalisation; give `mean` and `std` if it needs one",),
    )


def _check_words(asked: Asked, template: str) -> None:
    if len(asked.classes) < 2:
        raise InputError(
            f"clip:{asked.where} is told its classes in words: give at least two with `classes=FILE`, one per line, in "
            "the order of the labels"
        )
    if template.count("{}") != 1:
        raise InputError(f"a template is a sentence with {{}} in the place of the class, got {shown(template)}")


def _network(transformers: Any, asked: Asked) -> Any:
    drawn: list[str] = []
    try:
        config = transformers.AutoConfig.from_pretrained(asked.where, trust_remote_code=False)
        if config.model_type != "clip":
            raise ValueError(f"it is of the type {config.model_type}, not clip")
        if asked.weights is None:
            network, report = transformers.CLIPModel.from_pretrained(asked.where, output_loading_info=True)
            drawn = [*report["missing_keys"], *(entry[0] for entry in report["mismatched_keys"])]
        else:
            network = transformers.CLIPModel(config)
    except Exception as error:  # no network, no such name, not CLIP
        raise InputError(
            f"cannot load clip:{asked.where} (CLIP in a folder, in the cache or on the hub): {first_line(error)}"
        ) from error
    if drawn:  # transformers would fill them with random numbers
        raise InputError(f"clip:{asked.where} is no trained CLIP: it lacks {', '.join(drawn[:3])}")
    if asked.weights is not None:
        load_weights(network, asked.weights, f"clip:{asked.where}")
    return network.eval()


def _text_features(transformers: Any, network: Any, asked: Asked, template: str) -> Tensor:
    sentences = [template.replace("{}", name) for name in asked.classes]
    try:
        tokenizer = transformers.AutoTokenizer.from_pretrained(asked.where, trust_remote_code=False)
        words = tokenizer(sentences, padding=True, return_tensors="pt")
        with torch.no_grad():
            pooled = network.text_model(input_ids=words["input_ids"], attention_mask=words["attention_mask"])
            return network.text_projection(pooled.pooler_output)
    except Exception as error:  # no tokenizer, a sentence too long for the network
        raise InputError(
            f"cannot read the classes with the tokenizer of clip:{asked.where}: {first_line(error)}"
        ) from error
