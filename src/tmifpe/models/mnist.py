"""The architectures of the MNIST models that papers publish weights for; inputs 1x28x28 in [0, 1], 10 classes."""

from __future__ import annotations

__all__ = ["LeNet5", "SmallCNN", "fast_network", "mnist_fast", "mnist_lenet5", "mnist_smallcnn"]

from collections import OrderedDict

from torch import Tensor, nn
from torch.nn.functional import max_pool2d, relu

from tmifpe.core.errors import InputError
from tmifpe.core.types import UNIT
from tmifpe.models.source import Asked, Loaded, nothing_after
from tmifpe.models.weights import load_weights


class SmallCNN(nn.Module):
    """The MNIST network of TRADES (Zhang et al. 2019): four convolutions, three linear layers, dropout."""

    def __init__(self) -> None:
        super().__init__()
        convolutions = [nn.Conv2d(1, 32, 3), nn.Conv2d(32, 32, 3), nn.Conv2d(32, 64, 3), nn.Conv2d(64, 64, 3)]
        layers: list[tuple[str, nn.Module]] = []
        for number, convolution in enumerate(convolutions, 1):
            layers += [(f"conv{number}", convolution), (f"relu{number}", nn.ReLU())]
            if number % 2 == 0:
                layers.append((f"maxpool{number // 2}", nn.MaxPool2d(2)))
        self.feature_extractor = nn.Sequential(OrderedDict(layers))
        self.classifier = nn.Sequential(
            OrderedDict[str, nn.Module](
                fc1=nn.Linear(1024, 200),
                relu1=nn.ReLU(),
                drop=nn.Dropout(0.5),
                fc2=nn.Linear(200, 200),
                relu2=nn.ReLU(),
                fc3=nn.Linear(200, 10),
            )
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(self.feature_extractor(x).flatten(1))


class LeNet5(nn.Module):
    """Two padded convolutions with max-pooling and two linear layers, as adversarial-training toolboxes name it."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 32, 3, padding=1)
        self.conv2 = nn.Conv2d(32, 64, 3, padding=1)
        self.linear1 = nn.Linear(7 * 7 * 64, 200)
        self.linear2 = nn.Linear(200, 10)

    def forward(self, x: Tensor) -> Tensor:
        for convolution in (self.conv1, self.conv2):
            x = max_pool2d(relu(convolution(x)), 2)
        return self.linear2(relu(self.linear1(x.flatten(1))))


def fast_network() -> nn.Sequential:
    """The MNIST network of Fast adversarial training (Wong et al. 2020): two strided convolutions."""
    return nn.Sequential(
        nn.Conv2d(1, 16, 4, stride=2, padding=1),
        nn.ReLU(),
        nn.Conv2d(16, 32, 4, stride=2, padding=1),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(32 * 7 * 7, 100),
        nn.ReLU(),
        nn.Linear(100, 10),
    )


def mnist_smallcnn(asked: Asked) -> Loaded:
    return _with_weights(asked, SmallCNN())


def mnist_fast(asked: Asked) -> Loaded:
    return _with_weights(asked, fast_network())


def mnist_lenet5(asked: Asked) -> Loaded:
    return _with_weights(asked, LeNet5())


def _with_weights(asked: Asked, module: nn.Module) -> Loaded:
    nothing_after(asked)
    if asked.weights is None:
        raise InputError(f"{asked.source} is an architecture without weights; give them with `weights=FILE`")
    load_weights(module, asked.weights, asked.source)
    return Loaded(module, stamp=asked.source, classes=10, input_shape=(1, 28, 28), box=UNIT)
