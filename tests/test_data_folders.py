"""Image folders, ImageNet and Hugging Face datasets: order, sizes, names of files, splits."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

import tmifpe
from tests.data_files import MAKERS, bytes_of, make_folder
from tmifpe.core.errors import InputError
from tmifpe.data import load_data


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


def test_order_does_not_depend_on_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_folder(tmp_path, ("c", "a", "b"))
    before = load_data(f"imagefolder:{tmp_path}")
    listed, found = Path.iterdir, Path.rglob
    monkeypatch.setattr(Path, "iterdir", lambda path: sorted(listed(path), reverse=True))
    monkeypatch.setattr(Path, "rglob", lambda path, pattern: sorted(found(path, pattern), reverse=True))
    after = load_data(f"imagefolder:{tmp_path}")
    assert after.identity == before.identity
    torch.testing.assert_close(after.fetch(range(9)), before.fetch(range(9)), rtol=0, atol=0)


def test_grey_images_keep_one_channel(tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    (tmp_path / "a").mkdir()
    image.fromarray(bytes_of(4, 4)).save(tmp_path / "a" / "x.png")
    assert load_data(f"imagefolder:{tmp_path}").shape == (1, 4, 4)


def test_a_grey_image_among_colour_ones_is_named(tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    make_folder(tmp_path, ("ant", "bee"))
    image.fromarray(bytes_of(5, 6)).save(tmp_path / "bee" / "1.jpg")
    with pytest.raises(InputError, match=r"bee/1.jpg has 1 channel \(grey\), but ant/0.png has 3 channels; .*RGB"):
        load_data(f"imagefolder:{tmp_path}").fetch(range(7))
    image.fromarray(bytes_of(7, 7, 3)).save(tmp_path / "bee" / "1.jpg")
    with pytest.raises(InputError, match=r"bee/1.jpg has shape \(3, 7, 7\), but ant/0.png has \(3, 5, 6\)"):
        load_data(f"imagefolder:{tmp_path}").fetch(range(7))


@pytest.mark.parametrize("bicubic", [False, True])
@pytest.mark.parametrize("size", [(60, 40), (300, 500), (257, 256), (256, 256)])
def test_resize_is_torchvisions(tmp_path: Path, bicubic: bool, size: tuple[int, int]) -> None:
    from tmifpe.core.extras import import_extra

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
    MAKERS["hf"](tmp_path)
    one = datasets.load_from_disk(str(tmp_path / "saved"))
    datasets.DatasetDict(train=one, validation=one.select([0, 1])).save_to_disk(str(tmp_path / "both"))
    assert len(load_data(f"hf:{tmp_path / 'both'}")) == 2
    assert len(load_data(f"hf:{tmp_path / 'both'}:train")) == 4
    with pytest.raises(InputError, match="train, validation"):
        load_data(f"hf:{tmp_path / 'both'}:test")
    with pytest.raises(InputError, match="without a split 'test'"):
        load_data(f"hf:{tmp_path / 'saved'}:test")
    one.remove_columns("label").save_to_disk(str(tmp_path / "nolabel"))
    with pytest.raises(InputError, match="an image and a label"):
        load_data(f"hf:{tmp_path / 'nolabel'}")


def test_pictures_of_sixteen_bits_are_not_clipped(tmp_path):
    image = pytest.importorskip("PIL.Image")
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        pixels = np.random.default_rng(0).integers(0, 2**16, (8, 8)).astype(np.uint16)
        image.fromarray(pixels).save(tmp_path / name / "x.png")
    with pytest.raises(InputError, match="8 bits"):
        tmifpe.load_data(f"imagefolder:{tmp_path}").fetch([0])


def test_a_class_folder_without_images_is_named(tmp_path):
    image = pytest.importorskip("PIL.Image")
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        image.new("L", (8, 8)).save(tmp_path / name / "x.png")
    (tmp_path / "a" / "._x.png").write_bytes(b"resource fork")
    assert len(tmifpe.load_data(f"imagefolder:{tmp_path}")) == 2
    (tmp_path / "__MACOSX").mkdir()
    with pytest.raises(InputError, match="__MACOSX"):
        tmifpe.load_data(f"imagefolder:{tmp_path}")
