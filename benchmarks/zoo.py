"""Networks to judge attacks on: small ones of many kinds, trained here from a fixed seed, and real shared weights.

    python benchmarks/zoo.py train [--only NAME]
    python benchmarks/zoo.py list

Weights and data go to the folder that TMIFPE_ZOO names (build/zoo otherwise), one file per network; what is there is
kept. Shared weights are those of TMIFPE_SHARED. In other scripts:

    import zoo
    for name, network in zoo.networks().items(): network.half, network.threats
    model, data = zoo.load(name)

The hash of its name puts a network into one of two halves. Options and rules are chosen on "choose"; "judge" is only
for judging them, so nothing may be chosen on it. A recipe or a name is never changed once something was measured.
"""

from __future__ import annotations

__all__ = ["RECIPES", "SHARED", "Network", "describe", "half", "load", "networks", "weights"]

import argparse
import hashlib
import os
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
from safetensors.torch import load_file, save_file
from torch import nn

sys.path.insert(0, str(Path(__file__).resolve().parent))
import strength
from zoo_training import Recipe, network, sets, train

import tmifpe
from tmifpe.core.types import Data
from tmifpe.data.arrays import ArrayData

_LONG: dict[str, Any] = {"epochs": 60, "loss": "squared"}
_CIFAR: dict[str, Any] = {"images": 300, "examples": 40000, "epochs": 3}
_DIGITS: dict[str, Any] = {"examples": 1297, "epochs": 60}
_TOKENS: dict[str, Any] = {"examples": 12000, "epochs": 4, "images": 300}
_ADVERSARIAL: dict[str, Any] = {"examples": 15000, "epochs": 4}
_CIFAR_ADVERSARIAL: dict[str, Any] = {"images": 300, "examples": 30000, "epochs": 3}

RECIPES: dict[str, Recipe] = {
    "mnist-fc2x256-squared": Recipe("mnist", "fully", (256,) * 2, **_LONG),
    "mnist-fc4x256-squared": Recipe("mnist", "fully", (256,) * 4, **_LONG),
    "mnist-fc6x256-squared": Recipe("mnist", "fully", (256,) * 6, **_LONG),
    "mnist-fc10-leaky-squared": Recipe("mnist", "fully", (150,) * 10, "leaky", **_LONG),
    "mnist-conv-squared": Recipe("mnist", "convolutional", (16, 32), loss="squared", epochs=15),
    "digits-fc3-squared": Recipe("digits", "fully", (128,) * 3, loss="squared", **_DIGITS),
    "mnist-fc2-relu": Recipe("mnist", "fully", (256,) * 2),
    "mnist-fc4-tanh": Recipe("mnist", "fully", (200,) * 4, "tanh"),
    "mnist-fc3-sigmoid": Recipe("mnist", "fully", (200,) * 3, "sigmoid", epochs=20),
    "mnist-fc9-batchnorm": Recipe("mnist", "fully", (150,) * 9, batchnorm=True),
    "mnist-fc6-gelu-smoothing": Recipe("mnist", "fully", (200,) * 6, "gelu", loss="smoothing"),
    "mnist-fc4-distilled": Recipe("mnist", "fully", (256,) * 4, loss="distilled"),
    "mnist-parity-fc3": Recipe("mnist-parity", "fully", (200,) * 3),
    "digits-fc4-linf": Recipe("digits", "fully", (128,) * 4, against=("linf", 0.15), **_DIGITS),
    "digits-conv-gelu-decay": Recipe("digits", "convolutional", (16, 32), "gelu", decay=1.0, **_DIGITS),
    "digits-pairs-fc3": Recipe("digits-pairs", "fully", (256,) * 3, examples=5188, epochs=30),
    "mnist-conv-distilled": Recipe("mnist", "convolutional", (16, 32), loss="distilled"),
    "mnist-conv-maxpool-decay": Recipe("mnist", "convolutional", (16, 32, 32), maxpool=True, decay=1.0, epochs=6),
    "mnist-conv5-silu-batchnorm": Recipe(
        "mnist", "convolutional", (16, 16, 32, 32, 64), "silu", batchnorm=True, epochs=5
    ),
    "mnist-conv-linf": Recipe("mnist", "convolutional", (16, 32), against=("linf", 0.2), **_ADVERSARIAL),
    "mnist-conv-leaky-l2": Recipe("mnist", "convolutional", (16, 32), "leaky", against=("l2", 2.0), **_ADVERSARIAL),
    "mnist-conv-l1": Recipe("mnist", "convolutional", (16, 32), against=("l1", 10.0), **_ADVERSARIAL),
    "mnist-vit": Recipe("mnist", "vit", (64,) * 3, "gelu", **_TOKENS),
    "mnist-mixer": Recipe("mnist", "mixer", (64,) * 3, "gelu", **_TOKENS),
    "mnist-pairs-conv": Recipe("mnist-pairs", "convolutional", (24, 48), examples=24000, epochs=4),
    "cifar10-fc4-squared": Recipe("cifar10", "fully", (256,) * 4, loss="squared", **dict(_CIFAR, epochs=5)),
    "cifar10-conv-squared": Recipe("cifar10", "convolutional", (16, 32), loss="squared", **_CIFAR),
    "cifar10-conv4-maxpool": Recipe("cifar10", "convolutional", (16, 32, 32, 64), maxpool=True, **_CIFAR),
    "cifar10-conv4-batchnorm-smoothing": Recipe(
        "cifar10", "convolutional", (16, 32, 32, 64), "leaky", batchnorm=True, loss="smoothing", **_CIFAR
    ),
    "cifar10-residual-silu": Recipe("cifar10", "residual", (16, 32, 64), "silu", **_CIFAR),
    "cifar10-conv-linf": Recipe("cifar10", "convolutional", (16, 32), against=("linf", 4 / 255), **_CIFAR_ADVERSARIAL),
    "cifar10-conv-gelu-l2": Recipe(
        "cifar10", "convolutional", (16, 32), "gelu", against=("l2", 0.5), **_CIFAR_ADVERSARIAL
    ),
    "cifar10-conv-l1": Recipe("cifar10", "convolutional", (16, 32), against=("l1", 8.0), **_CIFAR_ADVERSARIAL),
    "cifar10-vit": Recipe("cifar10", "vit", (48,) * 3, "gelu", **dict(_CIFAR, epochs=2)),
    "cifar10-mixer": Recipe("cifar10", "mixer", (48,) * 4, "gelu", **dict(_CIFAR, epochs=2)),
    "cifar10-vehicles-conv-tanh": Recipe(
        "cifar10-vehicles", "convolutional", (16, 32), "tanh", **dict(_CIFAR, epochs=2)
    ),
}
_CIFAR_MEAN = strength.NORMALISE
_KW_MEAN: dict[str, Any] = {"mean": (0.485, 0.456, 0.406), "std": (0.225, 0.225, 0.225)}
_MNIST_MEAN: dict[str, Any] = {"mean": (0.1307,), "std": (0.3081,)}


@dataclass(frozen=True)
class Shared:
    """Real weights of the shared folder: the model of a line of strength.py, or a file that holds plain layers."""

    source: str
    data: str
    images: int = 500
    padding: int = 1
    """Of the convolutions, 4x4 with stride 2, where the source is a file."""
    normalise: dict[str, Any] | None = None


SHARED: dict[str, Shared] = {
    "mnist-trades": Shared("trades", "mnist", images=200),
    "mnist-fast": Shared("fast", "mnist"),
    "mnist-lenet5": Shared("lenet", "mnist", images=300),
    "mnist-wk17a": Shared("wk", "mnist"),
    "fashion-kw": Shared("kw", "fashion-mnist"),
    "mnist-cnn-a": Shared("mnist_cnn_a_adv.pth", "mnist"),
    "mnist-9x200": Shared("mnist_9_200_nat.pth", "mnist", normalise=_MNIST_MEAN),
    "mnist-conv-small": Shared("mnist_conv_small_nat.pth", "mnist", padding=0, normalise=_MNIST_MEAN),
    "cifar10-resnet2b": Shared("r2b", "cifar10", images=300),
    "cifar10-resnet4b": Shared("r4b", "cifar10", images=300),
    "cifar10-resnet-2b2-adv4": Shared("cifar10_resnet_2b2_adv4.onnx", "cifar10", images=200, normalise=_CIFAR_MEAN),
    "cifar10-cnn-a-adv": Shared("cifar10_cnn_a_adv.pth", "cifar10", normalise=_CIFAR_MEAN),
    "cifar10-cnn-a-mix": Shared("cifar10_cnn_a_mix.pth", "cifar10", normalise=_CIFAR_MEAN),
    "cifar10-marabou": Shared("cifar10_marabou_medium.pth", "cifar10", padding=0),
    "cifar10-kw-l2": Shared("cifar10_kw_l2_36px.pth", "cifar10", normalise=_KW_MEAN),
}

SIZES: dict[str, dict[str, tuple[float, ...]]] = {
    "mnist-fc2x256-squared": {"linf": (0.03, 0.05, 0.1), "l2": (0.5, 0.75), "l1": (3, 4.5)},
    "mnist-fc4x256-squared": {"linf": (0.03, 0.05, 0.1), "l2": (0.65, 1)},
    "mnist-fc6x256-squared": {"linf": (0.03, 0.05, 0.1), "l2": (0.65, 1), "l1": (4, 6.5)},
    "mnist-fc10-leaky-squared": {"linf": (0.03, 0.05, 0.1), "l2": (0.45, 0.85)},
    "mnist-conv-squared": {"linf": (0.07, 0.1), "l2": (0.95, 1.35)},
    "digits-fc3-squared": {"linf": (0.075, 0.1), "l2": (0.35, 0.55)},
    "mnist-fc2-relu": {"linf": (0.04, 0.055), "l2": (0.55, 0.85), "l1": (4, 6.5)},
    "mnist-fc4-tanh": {"linf": (0.03, 0.045), "l2": (0.45, 0.75)},
    "mnist-fc3-sigmoid": {"linf": (0.025, 0.045), "l2": (0.4, 0.7)},
    "mnist-fc9-batchnorm": {"linf": (0.03, 0.05), "l2": (0.55, 0.85)},
    "mnist-fc6-gelu-smoothing": {"linf": (0.03, 0.05), "l2": (0.45, 0.85)},
    "mnist-fc4-distilled": {"linf": (0.025, 0.035), "l2": (0.35, 0.65)},
    "mnist-parity-fc3": {"linf": (0.03, 0.05), "l2": (0.45, 0.85)},
    "digits-fc4-linf": {"linf": (0.13, 0.2), "l2": (0.45, 0.75)},
    "digits-conv-gelu-decay": {"linf": (0.08, 0.115), "l2": (0.4, 0.55)},
    "digits-pairs-fc3": {"linf": (0.03, 0.045), "l2": (0.2, 0.3)},
    "mnist-conv-distilled": {"linf": (0.04, 0.07), "l2": (0.75, 1)},
    "mnist-conv-maxpool-decay": {"linf": (0.11, 0.15), "l2": (1.2, 1.75)},
    "mnist-conv5-silu-batchnorm": {"linf": (0.05, 0.08), "l2": (0.75, 1.1)},
    "mnist-conv-linf": {"linf": (0.21, 0.25), "l2": (1.6, 2.35)},
    "mnist-conv-leaky-l2": {"linf": (0.135, 0.18), "l2": (1.6, 2.35)},
    "mnist-conv-l1": {"linf": (0.12, 0.155), "l2": (1.6, 2.1), "l1": (8.5, 14.5)},
    "mnist-vit": {"linf": (0.02, 0.035), "l2": (0.25, 0.4)},
    "mnist-mixer": {"linf": (0.02, 0.03), "l2": (0.3, 0.45)},
    "mnist-pairs-conv": {"linf": (0.035, 0.055), "l2": (0.65, 1.1)},
    "cifar10-fc4-squared": {"linf": (2.5 / 255, 4 / 255), "l2": (0.35, 0.65)},
    "cifar10-conv-squared": {"linf": (1 / 255, 3 / 255), "l2": (0.2, 0.45)},
    "cifar10-conv4-maxpool": {"linf": (1 / 255, 3 / 255), "l2": (0.2, 0.45)},
    "cifar10-conv4-batchnorm-smoothing": {"linf": (0.5 / 255, 1.5 / 255), "l2": (0.1, 0.25)},
    "cifar10-residual-silu": {"linf": (1 / 255, 1.5 / 255), "l2": (0.1, 0.25)},
    "cifar10-conv-linf": {"linf": (2.5 / 255, 7.5 / 255), "l2": (0.35, 1.2)},
    "cifar10-conv-gelu-l2": {"linf": (2.5 / 255, 7.5 / 255), "l2": (0.35, 1.2)},
    "cifar10-conv-l1": {"linf": (3 / 255, 6 / 255), "l2": (0.55, 1), "l1": (10, 19.5)},
    "cifar10-vit": {"linf": (0.5 / 255, 2.5 / 255), "l2": (0.1, 0.25)},
    "cifar10-mixer": {"linf": (1 / 255, 1.5 / 255), "l2": (0.1, 0.25)},
    "cifar10-vehicles-conv-tanh": {"linf": (3 / 255, 6 / 255), "l2": (0.45, 1)},
    "mnist-trades": {"linf": (0.3, 0.34), "l2": (1.35, 1.8)},
    "mnist-fast": {"linf": (0.3, 0.31), "l2": (1, 1.35), "l1": (4, 6)},
    "mnist-lenet5": {"linf": (0.3, 0.34), "l2": (1, 1.35)},
    "mnist-wk17a": {"linf": (0.1, 0.15), "l2": (0.8, 1.1)},
    "fashion-kw": {"linf": (0.1, 0.15), "l2": (0.35, 0.85)},
    "mnist-cnn-a": {"linf": (0.25, 0.3), "l2": (1, 1.5)},
    "mnist-9x200": {"linf": (0.05, 0.08), "l2": (0.65, 1.35)},
    "mnist-conv-small": {"linf": (0.13, 0.165), "l2": (1.25, 1.85)},
    "cifar10-resnet2b": {"linf": (2 / 255, 6 / 255), "l2": (0.2, 0.45), "l1": (1.5, 3)},
    "cifar10-resnet4b": {"linf": (2 / 255, 5.5 / 255), "l2": (0.35, 0.75)},
    "cifar10-resnet-2b2-adv4": {"linf": (2 / 255, 4 / 255), "l2": (0.2, 0.55)},
    "cifar10-cnn-a-adv": {"linf": (2 / 255, 6 / 255), "l2": (0.25, 0.75)},
    "cifar10-cnn-a-mix": {"linf": (2 / 255, 4 / 255), "l2": (0.35, 0.65)},
    "cifar10-marabou": {"linf": (1 / 255, 2.5 / 255), "l2": (0.15, 0.25)},
    "cifar10-kw-l2": {"linf": (3.5 / 255, 7.5 / 255), "l2": (36 / 255, 1)},
}
"""Of the balls that a network is judged in, by norm: one where most of its right answers withstand `quick`, one where a
third does, and what is published."""


@dataclass(frozen=True)
class Network:
    """A line of the zoo."""

    name: str
    threats: tuple[tmifpe.Threat, ...]
    images: int
    trained: bool
    """By a recipe of this file; otherwise the weights are shared ones."""

    @property
    def half(self) -> str:
        return half(self.name)

    @property
    def squared(self) -> bool:
        """Trained by squared error, where a slope says little of what lies further along."""
        return self.trained and RECIPES[self.name].loss == "squared"


def half(name: str) -> str:
    """choose or judge."""
    return ("choose", "judge")[int(hashlib.sha256(name.encode()).hexdigest(), 16) % 2]


def describe(name: str) -> str:
    """In a few words: layers, activation, training."""
    if name in SHARED:
        source = SHARED[name].source
        return f"shared weights, {strength.LINES[source].title if source in strength.LINES else source}"
    made = RECIPES[name]
    words = [made.body, " ".join(map(str, made.widths)), made.activation, *["BatchNorm"] * made.batchnorm]
    words += ["max-pooling"] * made.maxpool + [made.loss] + [f"weight decay {made.decay:g}"] * (made.decay > 0)
    if made.against is not None:
        words.append(f"against {made.against[0]} {made.against[1]:.3g}")
    return ", ".join(words)


def folder() -> Path:
    return Path(os.environ.get("TMIFPE_ZOO", strength.ROOT / "build" / "zoo"))


def weights(name: str) -> Path:
    """Where the weights of a recipe are, or will be."""
    return folder() / f"{name}.safetensors"


def digests() -> dict[str, str]:
    """Of the weights that are there, of the recipes only: shared ones are the same everywhere."""
    there = {name: weights(name) for name in RECIPES if weights(name).exists()}
    return {name: hashlib.sha256(path.read_bytes()).hexdigest()[:16] for name, path in there.items()}


def networks() -> dict[str, Network]:
    """Every network by name, whether its weights are there or not."""
    return {
        name: Network(name, _threats(name), made.images, trained=name in RECIPES)
        for name, made in (RECIPES | SHARED).items()
    }


def _threats(name: str) -> tuple[tmifpe.Threat, ...]:
    return tuple(tmifpe.Threat(norm, eps) for norm, sizes in SIZES[name].items() for eps in sizes)


def load(name: str) -> tuple[nn.Module, Any]:
    """The network, in eval mode, and the test images that it is judged on."""
    made = (RECIPES | SHARED)[name]
    data = _data(made.data, made.images)
    model = _shared(made) if isinstance(made, Shared) else _trained(name, data)
    return model.eval().requires_grad_(requires_grad=False), data


def _data(name: str, images: int) -> Data:
    if name == "fashion-mnist":
        return tmifpe.load_data(f"{name}:{_shared_folder() / 'data' / name}", limit=images)
    found = sets(name, folder())
    return ArrayData(found.test_x[:images], found.test_y[:images], name=name, classes=found.classes, unit=True)


def _trained(name: str, data: Data) -> nn.Module:
    assert data.classes is not None
    with torch.random.fork_rng(devices=[]):  # its first weights are drawn
        model = network(RECIPES[name], tuple(data.shape), data.classes)
    model.load_state_dict(load_file(weights(name)))
    return model


def _shared(made: Shared) -> nn.Module:
    if made.source in strength.LINES:
        model = strength.load_model(strength.LINES[made.source], _shared_folder()).module
        assert isinstance(model, nn.Module)
        return model
    path = _shared_folder() / "models" / made.source
    if path.suffix == ".onnx":
        return cast("nn.Module", tmifpe.load_model(str(path), **(made.normalise or {})).module)
    model = _plain(torch.load(path, map_location="cpu", weights_only=True), made.padding)
    return tmifpe.models.Normalize(model, **made.normalise) if made.normalise else model


def _plain(state: Any, padding: int) -> nn.Module:
    """Convolutions, then linear layers, with ReLU between them, as the shapes of a state dict, or of the first of a
    list of them, say."""
    state = state.get("state_dict", state)
    state = state[0] if isinstance(state, list) else state
    values, layers = list(state.values()), list[nn.Module]()
    for weight, bias in zip(values[::2], values[1::2], strict=True):
        if weight.dim() == 4:
            layer = nn.Conv2d(weight.shape[1], weight.shape[0], weight.shape[2], 2, padding)
        else:
            layers += [nn.Flatten()] * (not any(isinstance(before, nn.Linear) for before in layers))
            layer = nn.Linear(weight.shape[1], weight.shape[0])
        layer.load_state_dict({"weight": weight, "bias": bias})
        layers += [layer, nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def _shared_folder() -> Path:
    return Path(os.environ.get("TMIFPE_SHARED", strength.ROOT.parent / "shared"))


def make(names: list[str]) -> None:
    """Train what is missing."""
    folder().mkdir(parents=True, exist_ok=True)
    for name in names:
        path = weights(name)
        if path.exists():
            continue
        begun = time.process_time()
        model = train(RECIPES[name], folder())
        beside = path.with_suffix(".part")
        save_file(model.state_dict(), beside)
        beside.replace(path)
        print(f"{name}  {time.process_time() - begun:.0f} s  clean {clean_accuracy(name):.1%}", flush=True)


def clean_accuracy(name: str) -> float:
    model, data = load(name)
    images, labels = data.fetch(range(len(data)))
    with torch.no_grad():
        return float((model(images).argmax(dim=1) == labels).double().mean())


def show() -> None:
    for name, one in networks().items():
        sizes = ", ".join(f"{threat.norm} {threat.eps:.4g}" for threat in one.threats)
        there = "" if not one.trained or weights(name).exists() else "  (not trained yet)"
        print(f"{name:36} {one.half:7} {one.images:4} images  {sizes}{there}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    verbs = parser.add_subparsers(dest="verb", required=True)
    verbs.add_parser("train", help="train what is missing").add_argument("--only", choices=RECIPES)
    verbs.add_parser("list", help="names, halves, threats")
    options = parser.parse_args()
    if options.verb == "train":
        torch.set_num_threads(1)
        make([options.only] if options.only else list(RECIPES))
    else:
        show()


if __name__ == "__main__":
    main()
