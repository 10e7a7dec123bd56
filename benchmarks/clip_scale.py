"""What CLIP's usual scale of 100 does to float32 cross-entropy, on a small random CLIP; printed as Markdown.

The scale changes no prediction, so the true robust accuracy is the same at every scale. For the table in
docs/your-model.md: python benchmarks/clip_scale.py
"""

from __future__ import annotations

import argparse
import itertools

import torch
from torch import Tensor, nn

import tmifpe
from tmifpe.core.extras import import_extra
from tmifpe.models import ZeroShot

CLASSES, SIDE, EPS, STEPS = 10, 32, 4 / 255, 20
FEATURES, SCALES = (4, 8, 32), (1.0, 10.0, 100.0)


class ImageSide(nn.Module):
    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, x: Tensor) -> Tensor:
        return self.network.get_image_features(pixel_values=2 * x - 1).pooler_output  # pyright: ignore[reportCallIssue]


def random_clip(seed: int, features: int) -> tuple[nn.Module, Tensor]:
    """The image side of a CLIP of two layers, drawn at random, and text features of ten sentences."""
    transformers = import_extra("transformers", "this measurement", "hf", uses_torchvision=True)
    small = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4}
    config = transformers.CLIPConfig(
        text_config={**small, "vocab_size": 100, "eos_token_id": 99, "bos_token_id": 98},
        vision_config={**small, "image_size": SIDE, "patch_size": 8},
        projection_dim=features,
    )
    torch.manual_seed(seed)
    network = transformers.CLIPModel(config).eval()
    tokens = torch.cat([torch.randint(0, 98, (CLASSES, 8)), torch.full((CLASSES, 1), 99)], dim=1)
    with torch.no_grad():
        text = network.get_text_features(input_ids=tokens).pooler_output
    return ImageSide(network), text


def lost(model: nn.Module, x: Tensor, y: Tensor) -> float:
    """The share of images at which cross-entropy gives the label no gradient: its probability rounds to 1."""
    with torch.no_grad():
        shares = model(x).softmax(dim=1)
    return float((shares.gather(1, y[:, None]) == 1).double().mean())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--images", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--eps", type=float, default=EPS)
    asked = parser.parse_args()
    x = torch.rand(asked.images, 3, SIDE, SIDE, generator=torch.Generator().manual_seed(asked.seed))
    print("| features | scale | gap, median and largest | CE loses the label | robust: CE | robust: T-MIFPE |")
    print("|---|---|---|---|---|---|")
    for features, scale in itertools.product(FEATURES, SCALES):
        encoder, text = random_clip(asked.seed, features)
        y = ZeroShot(encoder, text)(x).argmax(dim=1)
        model = ZeroShot(encoder, text, scale)
        with torch.no_grad():
            top = model(x).topk(2, dim=1).values
        threat = tmifpe.Threat("linf", asked.eps)
        robust = [
            tmifpe.evaluate(model, (x, y), threat, tmifpe.PGD(loss=loss, steps=STEPS), checks=False).robust_accuracy
            for loss in ("ce", "tmifpe")
        ]
        gaps = top[:, 0] - top[:, 1]
        told = f"{float(gaps.median()):.3g}, {float(gaps.max()):.3g}"
        cells = [str(features), f"{scale:g}", told, *(f"{100 * share:.1f} %" for share in (lost(model, x, y), *robust))]
        print(f"| {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
