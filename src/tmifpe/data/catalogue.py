"""Every data source by name. A source is a function from what follows the colon to `Data`."""

from __future__ import annotations

__all__ = ["DATA", "Source"]

from collections.abc import Callable
from typing import TypeAlias

from tmifpe.core.registry import Registry
from tmifpe.core.types import Data

Source: TypeAlias = Callable[[str], Data]

DATA: Registry[Source] = Registry("data source")
DATA.add("digits", "tmifpe.data.digits:digits", "scikit-learn's 8x8 digits, 500 test images; digits:train has 1297")
DATA.add("mnist", "tmifpe.data.mnist:mnist", "mnist:DIR, the MNIST test set as idx files, plain or gz")
DATA.add("fashion-mnist", "tmifpe.data.mnist:fashion_mnist", "fashion-mnist:DIR, the same for Fashion-MNIST")
DATA.add("cifar10", "tmifpe.data.cifar:cifar10", "cifar10:DIR, the python test batch, or one npz file in DIR")
DATA.add("cifar100", "tmifpe.data.cifar:cifar100", "cifar100:DIR, the same for CIFAR-100 (fine labels)")
DATA.add("imagenet", "tmifpe.data.folder:imagenet", "imagenet:DIR, a folder per class, Res256Crop224 (bilinear)")
DATA.add("imagenet-bicubic", "tmifpe.data.folder:imagenet_bicubic", "the same with BicubicRes256Crop224")
DATA.add("imagefolder", "tmifpe.data.folder:imagefolder", "imagefolder:DIR, a folder per class, images of one size")
DATA.add("npz", "tmifpe.data.npz:npz", "npz:FILE, arrays `images` (n, C, H, W) and `labels` (n,)")
DATA.add("hf", "tmifpe.data.hf:hf", "hf:NAME[:split], a Hugging Face dataset or a folder of one (extra hf)")
DATA.add(
    "torchvision", "tmifpe.data.torchvision_sets:torchvision_set", "torchvision:NAME[:DIR], its test split (extra)"
)
