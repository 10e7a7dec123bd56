"""Every data source, on tiny files made here: what they promise, and one clear sentence for what is wrong."""

from __future__ import annotations

import gzip
import pickle
import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.data_files import MAKERS, RNG, bytes_of, make_cifar, make_idx, make_npz
from tmifpe.core.errors import InputError
from tmifpe.core.types import Data
from tmifpe.data import DATA, load_data, subset


@pytest.mark.parametrize("name", list(DATA))
def test_contract(name: str, tmp_path: Path) -> None:
    """A new source must be given a maker here; then all promises are checked by themselves."""
    text = MAKERS[name](tmp_path)
    data = load_data(text)
    assert isinstance(data, Data)
    assert data.name == text
    n = len(data)
    assert n >= 3
    assert list(data.indices) == list(range(n))
    images, labels = data.fetch(range(n))
    assert images.shape == (n, *data.shape)
    assert images.dtype == torch.float32
    assert images.is_contiguous()
    assert labels.dtype == torch.int64
    assert labels.shape == (n,)
    assert 0 <= float(images.min()) <= float(images.max()) <= 1
    assert float(images.max()) > 0.5, "images look unscaled"
    assert data.classes is None or int(labels.max()) < data.classes
    again = load_data(text)
    assert again.identity == data.identity
    order = [2, 0]
    picked, picked_labels = again.fetch(order)
    torch.testing.assert_close(picked, images[order], rtol=0, atol=0)
    assert picked_labels.tolist() == labels[order].tolist()


@pytest.mark.parametrize("name", list(DATA))
def test_subsets_carry_their_indices(name: str, tmp_path: Path) -> None:
    text = MAKERS[name](tmp_path)
    full = load_data(text)
    part = load_data(text, indices=[2, 0], limit=1)
    assert list(part.indices) == [2]
    assert len(part) == 1
    torch.testing.assert_close(part.fetch([0])[0], full.fetch([2])[0], rtol=0, atol=0)
    assert part.identity != full.identity
    nested = subset(subset(full, [1, 2]), [1])
    assert list(nested.indices) == [2]


def test_digits_splits_are_disjoint_and_complete() -> None:
    test, train = load_data("digits"), load_data("digits:train")
    assert (len(test), len(train), test.shape) == (500, 1297, (1, 8, 8))
    from sklearn.datasets import load_digits

    truth = torch.tensor(load_digits().images, dtype=torch.float32)[:, None] / 16
    both = torch.cat([train.fetch(range(1297))[0], test.fetch(range(500))[0]])
    torch.testing.assert_close(both, truth, rtol=0, atol=0)


def test_digits_are_the_same_where_scikit_learn_keeps_them_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    data = load_data("digits")
    monkeypatch.setattr("tmifpe.data.digits.find_spec", lambda _: None)
    assert load_data("digits").identity == data.identity


def test_idx_gz_plain_and_torchvision_layout_agree(tmp_path: Path) -> None:
    images, _ = make_idx(tmp_path / "plain")
    for place in (tmp_path / "gz", tmp_path / "tv" / "MNIST" / "raw"):
        place.mkdir(parents=True)
        for file in (tmp_path / "plain").iterdir():
            (place / f"{file.name}.gz").write_bytes(gzip.compress(file.read_bytes()))
    loaded = [load_data(f"mnist:{tmp_path / name}") for name in ("plain", "gz", "tv")]
    assert len({data.identity for data in loaded}) == 1
    expected = torch.from_numpy(images)[:, None].float() / 255
    torch.testing.assert_close(loaded[0].fetch(range(6))[0], expected, rtol=0, atol=0)


@pytest.mark.parametrize(
    ("damage", "sentence"),
    [
        (lambda b: b"\x00\x00\x0d\x03" + b[4:], "not an idx file"),
        (lambda b: b[:-5], "declares"),
        (lambda b: b + b"x", "more than"),
        (lambda b: b[:3], "not an idx file"),
        (lambda b: b[:4] + struct.pack(">3I", 2**31, 2**31, 2**31), "GiB"),
        (lambda b: b"", "not an idx file"),
    ],
)
@pytest.mark.parametrize("packed", [False, True])
def test_damaged_idx(tmp_path: Path, damage: Callable[[bytes], bytes], sentence: str, packed: bool) -> None:
    make_idx(tmp_path)
    file = tmp_path / "t10k-images-idx3-ubyte"
    broken = damage(file.read_bytes())
    file.unlink()
    target = tmp_path / f"{file.name}.gz" if packed else file
    target.write_bytes(gzip.compress(broken) if packed else broken)
    with pytest.raises(InputError, match=sentence):
        load_data(f"mnist:{tmp_path}")


def test_truncated_gz(tmp_path: Path) -> None:
    make_idx(tmp_path)
    file = tmp_path / "t10k-images-idx3-ubyte"
    packed = gzip.compress(file.read_bytes())
    file.unlink()
    (tmp_path / f"{file.name}.gz").write_bytes(packed[: len(packed) // 2])
    with pytest.raises(InputError, match="cannot read"):
        load_data(f"mnist:{tmp_path}")


@pytest.mark.parametrize("protocol", [0, 2, 4, 5])
def test_cifar_pixels_are_in_place(tmp_path: Path, protocol: int) -> None:
    images = make_cifar(tmp_path)
    path = tmp_path / "cifar-10-batches-py" / "test_batch"
    path.write_bytes(pickle.dumps({"data": images, "labels": list(range(5))}, protocol=protocol))
    data = load_data(f"cifar10:{tmp_path}")
    assert data.classes == 10
    fetched, labels = data.fetch([3])
    expected = torch.from_numpy(images[3].reshape(3, 32, 32)).float() / 255
    torch.testing.assert_close(fetched[0], expected, rtol=0, atol=0)
    assert labels.tolist() == [3]


def test_cifar_folder_with_one_npz(tmp_path: Path) -> None:
    make_npz(tmp_path / "some.npz", bytes_of(3, 3, 32, 32))
    assert load_data(f"cifar10:{tmp_path}").classes == 10
    make_npz(tmp_path / "other.npz")
    with pytest.raises(InputError, match="2 npz files"):
        load_data(f"cifar10:{tmp_path}")


def test_npz_floats_keep_their_dtype(tmp_path: Path) -> None:
    for dtype in (np.float16, np.float32, np.float64):
        make_npz(tmp_path / "f.npz", RNG.random((3, 1, 4, 4)).astype(dtype))
        images, _ = load_data(f"npz:{tmp_path / 'f.npz'}").fetch([0])
        assert str(images.dtype) == f"torch.{np.dtype(dtype).name}"


def test_npz_fortran_order_and_big_endian(tmp_path: Path) -> None:
    images = RNG.random((3, 1, 4, 5)).astype(">f4")
    make_npz(tmp_path / "f.npz", np.asfortranarray(images), np.arange(3).astype(">i2"))
    fetched, labels = load_data(f"npz:{tmp_path / 'f.npz'}").fetch([0, 1, 2])
    np.testing.assert_array_equal(fetched.numpy(), images)
    assert labels.tolist() == [0, 1, 2]


@pytest.mark.parametrize(
    ("images", "labels", "sentence"),
    [
        (np.zeros((3, 1, 4, 4), np.int64), np.arange(3), "uint8"),
        (np.zeros((3, 1, 4, 4), np.float32), np.arange(2), "3 images but 2 labels"),
        (np.zeros((0, 1, 4, 4), np.float32), np.zeros(0, np.int64), "empty"),
        (np.zeros((3, 1, 4, 4), np.float32), np.array([0, -1, 2]), "negative"),
        (np.zeros((3, 1, 4, 4), np.float32), np.zeros(3), "integers"),
        (np.zeros((3, 1, 4, 4), np.float32), np.zeros((3, 10), np.int64), "shape"),
        (np.zeros(3, np.float32), np.arange(3), r"\(n, C, H, W\)"),
        (np.zeros((3, 32, 32, 3), np.uint8), np.arange(3), "channels last"),
    ],
)
def test_bad_arrays(tmp_path: Path, images: np.ndarray, labels: np.ndarray, sentence: str) -> None:
    make_npz(tmp_path / "bad.npz", images, labels)
    with pytest.raises(InputError, match=sentence):
        load_data(f"npz:{tmp_path / 'bad.npz'}")


@pytest.mark.parametrize(
    ("value", "sentence"),
    [(1.5, "normalise inside the model"), (-0.1, r"Normalize\(model, mean"), (np.nan, "NaN"), (np.inf, "NaN")],
)
def test_range_is_checked_on_fetch(tmp_path: Path, value: float, sentence: str) -> None:
    images = np.zeros((3, 1, 4, 4), np.float32)
    images[2, 0, 1, 1] = value
    make_npz(tmp_path / "f.npz", images)
    data = load_data(f"npz:{tmp_path / 'f.npz'}")
    data.fetch([0, 1])
    with pytest.raises(InputError, match=sentence):
        data.fetch([2])
