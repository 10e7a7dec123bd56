"""Tiny files of every kind that data comes in, made where a test wants them."""

from __future__ import annotations

import pickle
import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

RNG = np.random.default_rng(0)


def idx(array: np.ndarray) -> bytes:
    return (
        bytes((0, 0, 8, array.ndim)) + struct.pack(f">{array.ndim}I", *array.shape) + array.astype(np.uint8).tobytes()
    )


def bytes_of(*shape: int) -> np.ndarray:
    return RNG.integers(0, 256, shape, dtype=np.uint8)


def make_idx(folder: Path, n: int = 6) -> tuple[np.ndarray, np.ndarray]:
    folder.mkdir(parents=True, exist_ok=True)
    images, labels = bytes_of(n, 28, 28), np.arange(n, dtype=np.uint8) % 10
    (folder / "t10k-images-idx3-ubyte").write_bytes(idx(images))
    (folder / "t10k-labels-idx1-ubyte").write_bytes(idx(labels))
    return images, labels


def make_cifar(folder: Path, kind: str = "cifar10", n: int = 5) -> np.ndarray:
    inner, name, key = {
        "cifar10": ("cifar-10-batches-py", "test_batch", b"labels"),
        "cifar100": ("cifar-100-python", "test", b"fine_labels"),
    }[kind]
    (folder / inner).mkdir(parents=True)
    images = bytes_of(n, 3072)
    batch = {b"data": images, key: list(range(n)), b"batch_label": b"testing", b"filenames": [b"a.png"] * n}
    (folder / inner / name).write_bytes(pickle.dumps(batch, protocol=2))
    return images


def make_folder(root: Path, names: tuple[str, ...] = ("ant", "bee"), size: tuple[int, int] = (6, 5)) -> None:
    image = pytest.importorskip("PIL.Image")
    for name in names:
        (root / name).mkdir(parents=True)
        for number in (2, 0, 1):
            image.fromarray(bytes_of(size[1], size[0], 3)).save(root / name / f"{number}.png")


def make_npz(path: Path, images: np.ndarray | None = None, labels: np.ndarray | None = None) -> None:
    images = bytes_of(4, 3, 8, 8) if images is None else images
    np.savez(path, images=images, labels=np.arange(len(images)) if labels is None else labels)


def _digits(_: Path) -> str:
    return "digits"


def _mnist(folder: Path) -> str:
    make_idx(folder)
    return f"mnist:{folder}"


def _fashion(folder: Path) -> str:
    make_idx(folder / "FashionMNIST" / "raw")
    return f"fashion-mnist:{folder}"


def _cifar10(folder: Path) -> str:
    make_cifar(folder)
    return f"cifar10:{folder}"


def _cifar100(folder: Path) -> str:
    make_cifar(folder, "cifar100")
    return f"cifar100:{folder}"


def _imagefolder(folder: Path) -> str:
    make_folder(folder)
    return f"imagefolder:{folder}"


def _imagenet(folder: Path) -> str:
    image = pytest.importorskip("PIL.Image")
    for number in range(1000):
        (folder / f"n{number:08d}").mkdir()
    for number in (0, 7, 999):
        image.fromarray(bytes_of(40, 60, 3)).save(folder / f"n{number:08d}" / f"val_{number}.JPEG")
    return f"imagenet:{folder}"


def _imagenet_bicubic(folder: Path) -> str:
    return _imagenet(folder).replace("imagenet", "imagenet-bicubic", 1)


def _npz(folder: Path) -> str:
    make_npz(folder / "set.npz")
    return f"npz:{folder / 'set.npz'}"


def _hf(folder: Path) -> str:
    datasets = pytest.importorskip("datasets")
    image = pytest.importorskip("PIL.Image")
    features = datasets.Features({"image": datasets.Image(), "label": datasets.ClassLabel(names=["a", "b", "c"])})
    rows = {"image": [image.fromarray(bytes_of(8, 8)) for _ in range(4)], "label": [2, 0, 1, 2]}
    datasets.Dataset.from_dict(rows, features=features).save_to_disk(str(folder / "saved"))
    return f"hf:{folder / 'saved'}"


def _torchvision(folder: Path) -> str:
    pytest.importorskip("PIL.Image")
    make_idx(folder / "MNIST" / "raw")
    train = folder / "MNIST" / "raw"
    for name in ("images-idx3", "labels-idx1"):  # torchvision asks for all four files
        (train / f"train-{name}-ubyte").write_bytes((train / f"t10k-{name}-ubyte").read_bytes())
    return f"torchvision:MNIST:{folder}"


MAKERS: dict[str, Callable[[Path], str]] = {
    "digits": _digits,
    "mnist": _mnist,
    "fashion-mnist": _fashion,
    "cifar10": _cifar10,
    "cifar100": _cifar100,
    "imagenet": _imagenet,
    "imagenet-bicubic": _imagenet_bicubic,
    "imagefolder": _imagefolder,
    "npz": _npz,
    "hf": _hf,
    "torchvision": _torchvision,
}
