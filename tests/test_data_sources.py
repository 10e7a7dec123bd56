"""Every data source, on tiny files made here: what they promise, and one clear sentence for what is wrong."""

from __future__ import annotations

import gzip
import importlib
import pickle
import struct
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from tmifpe.core.errors import InputError, MissingExtra
from tmifpe.core.types import Data
from tmifpe.data import DATA, load_data, read_indices, read_numbers, subset

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
    ("value", "sentence"), [(1.5, "normalisation"), (-0.1, "--mean"), (np.nan, "NaN"), (np.inf, "NaN")]
)
def test_range_is_checked_on_fetch(tmp_path: Path, value: float, sentence: str) -> None:
    images = np.zeros((3, 1, 4, 4), np.float32)
    images[2, 0, 1, 1] = value
    make_npz(tmp_path / "f.npz", images)
    data = load_data(f"npz:{tmp_path / 'f.npz'}")
    data.fetch([0, 1])
    with pytest.raises(InputError, match=sentence):
        data.fetch([2])


def test_imagefolder_order_locate_and_sizes(tmp_path: Path) -> None:
    make_folder(tmp_path, ("zebra", "ant"))
    data = load_data(f"imagefolder:{tmp_path}")
    assert data.fetch(range(6))[1].tolist() == [0, 0, 0, 1, 1, 1]
    assert data.shape == (3, 5, 6)
    assert list(load_data(f"imagefolder:{tmp_path}", indices=["zebra/1.png", 0]).indices) == [4, 0]
    with pytest.raises(InputError, match="no files named"):
        load_data(f"imagefolder:{tmp_path}", indices=["zebra/9.png"])
    with pytest.raises(InputError, match="2 files named"):
        load_data(f"imagefolder:{tmp_path}", indices=["1.png"])
    from PIL import Image

    before = data.identity
    Image.fromarray(bytes_of(9, 9, 3)).save(tmp_path / "zebra" / "9.png")
    larger = load_data(f"imagefolder:{tmp_path}")
    assert larger.identity != before
    with pytest.raises(InputError, match="one size"):
        larger.fetch([0, 6])
    (tmp_path / "ant" / "0.png").write_bytes(b"\x89PNG not really")
    with pytest.raises(InputError, match="cannot read the image"):
        load_data(f"imagefolder:{tmp_path}").fetch([0])


def test_grey_images_keep_one_channel(tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    (tmp_path / "a").mkdir()
    image.fromarray(bytes_of(4, 4)).save(tmp_path / "a" / "x.png")
    assert load_data(f"imagefolder:{tmp_path}").shape == (1, 4, 4)


@pytest.mark.parametrize("bicubic", [False, True])
@pytest.mark.parametrize("size", [(60, 40), (300, 500), (257, 256), (256, 256)])
def test_resize_is_torchvisions(tmp_path: Path, bicubic: bool, size: tuple[int, int]) -> None:
    from tmifpe.core.torchvision_repair import import_extra

    pytest.importorskip("PIL.Image")
    transforms = import_extra("torchvision.transforms", "this test", "torchvision", uses_torchvision=True)
    from PIL import Image

    for number in range(1000):
        (tmp_path / f"n{number:08d}").mkdir()
    path = tmp_path / "n00000000" / "a.png"
    Image.fromarray(bytes_of(size[1], size[0], 3)).save(path)
    mode = transforms.InterpolationMode("bicubic" if bicubic else "bilinear")
    theirs = transforms.Compose(
        [transforms.Resize(256, interpolation=mode), transforms.CenterCrop(224), transforms.ToTensor()]
    )(Image.open(path))
    ours = load_data(f"imagenet{'-bicubic' if bicubic else ''}:{tmp_path}").fetch([0])[0][0]
    torch.testing.assert_close(ours, theirs, rtol=0, atol=0)


def test_imagenet_needs_its_thousand_classes(tmp_path: Path) -> None:
    make_folder(tmp_path)
    with pytest.raises(InputError, match="1000 class folders"):
        load_data(f"imagenet:{tmp_path}")


def test_hf_splits(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    _hf(tmp_path)
    one = datasets.load_from_disk(str(tmp_path / "saved"))
    datasets.DatasetDict(train=one, validation=one.select([0, 1])).save_to_disk(str(tmp_path / "both"))
    assert len(load_data(f"hf:{tmp_path / 'both'}")) == 2
    assert len(load_data(f"hf:{tmp_path / 'both'}:train")) == 4
    with pytest.raises(InputError, match="train, validation"):
        load_data(f"hf:{tmp_path / 'both'}:test")
    one.remove_columns("label").save_to_disk(str(tmp_path / "nolabel"))
    with pytest.raises(InputError, match="an image and a label"):
        load_data(f"hf:{tmp_path / 'nolabel'}")


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("dgits", "did you mean 'digits'"),
        ("", "unknown data source"),
        ("mnist", "needs a folder"),
        ("mnist:/nowhere/at/all", "no such folder"),
        ("npz:", "needs a file"),
        ("npz:/nowhere.npz", "no such file"),
        ("npz:\0", "no such file"),
        ("npz:" + "x" * 5000, "no such file"),
        ("digits:validation", "splits test and train"),
        ("cifar10:.", "cifar-10-batches-py"),
        ("torchvision:MNITS", "did you mean 'MNIST'"),
    ],
)
def test_bad_names(text: str, sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match=sentence):
        load_data(text)


@pytest.mark.parametrize(
    ("name", "module", "extra"),
    [
        ("imagefolder", "PIL", "images"),
        ("hf", "datasets", "hf"),
        ("torchvision", "torchvision.datasets", "torchvision"),
    ],
)
def test_missing_extra(name: str, module: str, extra: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = MAKERS[name](tmp_path)
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(MissingExtra, match=rf"pip install 'tmifpe\[{extra}\]'"):
        load_data(text)


@pytest.mark.parametrize(("limit", "length"), [(1, 1), (500, 500), (9999, 500)])
def test_limit(limit: int, length: int) -> None:
    assert len(load_data("digits", limit=limit)) == length


@pytest.mark.parametrize("limit", [0, -1])
def test_bad_limit(limit: int) -> None:
    with pytest.raises(InputError, match="at least 1"):
        load_data("digits", limit=limit)


@pytest.mark.parametrize(
    ("indices", "sentence"),
    [
        ([500], "outside"),
        ([-1], "outside"),
        ([3, 4, 3], "index 3 .* twice"),
        ([], "empty"),
        (["a.png"], "no file names"),
    ],
)
def test_bad_indices(indices: list[int | str], sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        load_data("digits", indices=indices)


def test_read_indices(tmp_path: Path) -> None:
    text = tmp_path / "list.txt"
    text.write_text("3\n1, 2 # a comment\n\nn01/a.JPEG\n")
    assert read_indices(text) == [3, 1, 2, "n01/a.JPEG"]
    with pytest.raises(InputError, match="whole numbers"):
        read_numbers(text)
    text.write_text("4,5")
    assert read_numbers(text) == [4, 5]
    array = tmp_path / "list.npy"
    np.save(array, np.array([5, 4]))
    assert read_indices(array) == [5, 4]
    np.save(array, np.array([0.5]))
    with pytest.raises(InputError, match="whole numbers"):
        read_indices(array)
    np.save(array, np.array([{}], dtype=object), allow_pickle=True)
    with pytest.raises(InputError, match="cannot read"):
        read_indices(array)
    text.write_text("# nothing")
    with pytest.raises(InputError, match="no indices"):
        read_indices(text)
    text.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InputError, match="cannot read"):
        read_indices(text)
    with pytest.raises(InputError, match="no such file"):
        read_indices(tmp_path / "absent")


def test_importing_data_is_light() -> None:
    """Optional packages are imported only by those who use them."""
    import subprocess

    optional = ("PIL", "datasets", "torchvision", "timm", "onnx", "transformers")
    code = f"import sys, tmifpe.data, tmifpe.models; print([m for m in {optional} if m in sys.modules])"
    source = Path(importlib.import_module("tmifpe.data").__file__ or "").parents[2]
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env={"PYTHONPATH": str(source)}
    )
    assert done.stdout.strip() == "[]"
