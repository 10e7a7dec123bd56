"""Every data source by name. A source is a function from what follows the colon to `Data`."""

from __future__ import annotations

__all__ = ["DATA", "Source", "register_data"]

import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeAlias

from tmifpe.core.errors import InputError, raised
from tmifpe.core.registry import Registry

if TYPE_CHECKING:
    from tmifpe.core.types import Data

Source: TypeAlias = "Callable[[str], Data]"


def _admit(thing: Any, name: str) -> Source:
    """A data source from outside: a function that returns (images, labels), a Dataset, a DataLoader or `Data`."""

    def source(where: str) -> Data:
        from tmifpe.data.wrap import as_data

        given = [where] if where else []
        text = ":".join([name, *given])
        try:
            inspect.signature(thing).bind(*given)
        except (TypeError, ValueError) as error:
            how = f"with {where!r}" if where else "without arguments"
            raise InputError(f"{name} must be a function that can be called {how}: {error}") from error
        try:
            made = thing(*given)
        except InputError:
            raise
        except (Exception, SystemExit) as error:  # it is anybody's code
            raise InputError(f"{text} failed: {raised(error)}") from error
        return as_data(made, name=text)

    return source


DATA: Registry[Source] = Registry("data source", "data", _admit)
DATA.add("digits", "tmifpe.data.digits:digits", "scikit-learn's 8x8 digits, 500 test images; digits:train has 1297")
DATA.add("mnist", "tmifpe.data.mnist:mnist", "mnist:DIR, the MNIST test set as idx files, plain or gz")
DATA.add("fashion-mnist", "tmifpe.data.mnist:fashion_mnist", "fashion-mnist:DIR, the same for Fashion-MNIST")
DATA.add("cifar10", "tmifpe.data.cifar:cifar10", "cifar10:DIR, the python test batch, or one npz file in DIR")
DATA.add("cifar100", "tmifpe.data.cifar:cifar100", "cifar100:DIR, the same for CIFAR-100 (fine labels)")
DATA.add("imagenet", "tmifpe.data.folder:imagenet", "imagenet:DIR, a folder per class, Res256Crop224 (bilinear)")
DATA.add("imagenet-bicubic", "tmifpe.data.folder:imagenet_bicubic", "the same with BicubicRes256Crop224")
DATA.add("imagefolder", "tmifpe.data.folder:imagefolder", "imagefolder:DIR, a folder per class (classes, resize)")
DATA.add("npz", "tmifpe.data.npz:npz", "npz:FILE, arrays `images` (n, C, H, W) and `labels` (n,)")
DATA.add("hf", "tmifpe.data.hf:hf", "hf:NAME[:split], a Hugging Face dataset or a folder of one (extra hf)")
DATA.add(
    "torchvision", "tmifpe.data.torchvision_sets:torchvision_set", "torchvision:NAME[:DIR], its test split (extra)"
)
register_data = DATA.register
