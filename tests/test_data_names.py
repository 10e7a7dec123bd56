"""Names of sources, missing extras, limits and lists of indices."""

from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import tmifpe
from tests.data_files import MAKERS
from tmifpe.core.errors import InputError, MissingExtra
from tmifpe.data import load_data, read_indices, read_numbers, subset


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


MASK = [True, False, False, True]


@pytest.mark.parametrize("mask", [MASK, tuple(MASK), np.array(MASK), list(np.array(MASK)), torch.tensor(MASK)])
def test_truth_values_are_a_mask(mask: Any) -> None:
    data = load_data("digits", limit=4)
    assert list(subset(data, mask).indices) == [0, 3]
    model = tmifpe.load_model("digits-robust")
    found = tmifpe.evaluate(model, data.fetch(range(4)), tmifpe.Threat("linf", 0.1), "fgsm", indices=mask, checks=False)
    assert found.outcomes.index.tolist() == [0, 3]


@pytest.mark.parametrize(
    "mask", [[True, False], [True, 0, 2, 3], np.array([True]), torch.tensor([False] * 5), [np.True_]]
)
def test_other_truth_values_are_refused(mask: Any) -> None:
    with pytest.raises(InputError, match="are a mask, which needs one for each of the 4 examples of digits"):
        subset(load_data("digits", limit=4), mask)


def test_a_mask_that_leaves_nothing() -> None:
    with pytest.raises(InputError, match="the subset of digits is empty"):
        subset(load_data("digits", limit=4), [False] * 4)


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
    with pytest.raises(InputError, match="whole numbers"):
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
    optional = ("PIL", "datasets", "torchvision", "timm", "onnx", "transformers")
    code = f"import sys, tmifpe.data, tmifpe.models; print([m for m in {optional} if m in sys.modules])"
    source = Path(importlib.import_module("tmifpe.data").__file__ or "").parents[2]
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env={"PYTHONPATH": str(source)}
    )
    assert done.stdout.strip() == "[]"
