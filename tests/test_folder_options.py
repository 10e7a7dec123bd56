"""Image folders: the model's order of classes, one size, and names of files and classes in results."""

from __future__ import annotations

import csv
import io
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from typer.testing import CliRunner

import tmifpe
from tests.data_files import bytes_of, make_folder
from tmifpe.cli import app
from tmifpe.core.errors import InputError
from tmifpe.data import load_data
from tmifpe.models import check_compatible
from tmifpe.testing import assert_robust

image = pytest.importorskip("PIL.Image")

ORDER = ["wolf", "zebra", "ant", "owl"]
FACTORY = """
import torch
class Bright(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.tensor([0.0, 0.0, 1.0, 0.0]))
    def forward(self, x):
        return x.flatten(1).mean(1, keepdim=True) * self.weight
def make():
    return Bright()
"""


@pytest.fixture(autouse=True)
def _own_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMIFPE_STORE", str(tmp_path / "store"))


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    make_folder(tmp_path / "photos", ("zebra", "ant"))
    (tmp_path / "classes.txt").write_text("\n".join(ORDER) + "\n\n")
    return tmp_path / "photos"


def call(*words: str, code: int = 0) -> Any:
    result = CliRunner().invoke(app, list(words))
    assert result.exit_code == code, (result.output, result.stderr, result.exception)
    return result


def test_classes_have_the_numbers_of_the_model(photos: Path) -> None:
    plain = load_data(f"imagefolder:{photos}")
    ordered: Any = load_data(f"imagefolder:{photos}", classes=ORDER)
    assert ordered.fetch(range(6))[1].tolist() == [2, 2, 2, 1, 1, 1]
    assert ordered.classes == 4, "the model's number, of which two have no folder"
    assert ordered.class_names == tuple(ORDER)
    from_file = load_data(f"imagefolder:{photos}", classes=photos.parent / "classes.txt")
    assert from_file.identity == ordered.identity != plain.identity
    assert load_data(f"imagefolder:{photos}", classes=["ant", "zebra"]).identity == plain.identity
    for names, said in (
        (["ant", "bee"], "'zebra' .* none of the 2 classes"),
        (["ant", "ant"], "twice"),
        ([], "no names"),
    ):
        with pytest.raises(InputError, match=said):
            load_data(f"imagefolder:{photos}", classes=names)
    with pytest.raises(InputError, match="imagefolder:DIR"):
        load_data("digits", classes=ORDER)


def test_classes_are_checked_against_the_model(photos: Path) -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(90, 4))
    known = tmifpe.Classifier(model, "mine", "", classes=4)
    ordered = load_data(f"imagefolder:{photos}", classes=ORDER)
    check_compatible(known, ordered)
    with pytest.raises(
        InputError, match=r"4 classes, but .* has 2; name all of the model's, in its order, with `classes="
    ):
        check_compatible(known, load_data(f"imagefolder:{photos}"))
    check_compatible(replace(known, class_names=("Wolf", "Zebra", "Ant", "Owl")), ordered)
    check_compatible(replace(known, class_names=("n01", "n02", "n03", "n04")), ordered)
    with pytest.raises(InputError, match=r"'zebra' is number 1 in .* but 2 in mine"):
        check_compatible(replace(known, class_names=("wolf", "ant", "zebra", "owl")), ordered)


def test_names_in_a_models_own_configuration_are_read() -> None:
    from tmifpe.models import hf

    config = type("Config", (), {"num_labels": 2, "id2label": {0: "cat", 1: "dog"}})
    assert hf._class_names(config) == ("cat", "dog")  # pyright: ignore[reportPrivateUsage]
    config.id2label = {0: "LABEL_0", 1: "LABEL_1"}
    assert hf._class_names(config) == ()  # pyright: ignore[reportPrivateUsage]


def test_images_of_any_size_are_brought_to_one(photos: Path) -> None:
    image.fromarray(bytes_of(9, 7, 3)).save(photos / "ant" / "9.png")
    with pytest.raises(InputError, match=r"ant/9.png has shape \(3, 9, 7\)"):
        load_data(f"imagefolder:{photos}").fetch(range(7))
    where = f"imagefolder:{photos}"
    for options, shape in (({"resize": 8, "crop": 6}, (3, 6, 6)), ({"resize": "4x5"}, (3, 4, 5))):
        assert load_data(where, **options).fetch(range(7))[0].shape[1:] == shape
    identities = [
        load_data(where, **options).identity
        for options in (
            {},
            {"resize": 8, "crop": 6},
            {"resize": "8:bicubic", "crop": 6},
            {"crop": 5},
            {"resize": "4x5"},
        )
    ]
    assert len(set(identities)) == len(identities)
    with pytest.raises(InputError, match=r"ant/0.png: it is 6x5: too small to be cropped to 6"):
        load_data(where, crop=6).fetch([0])
    for options, said in (
        ({"resize": "res256crop224", "crop": 4}, "crops to 224 itself"),
        ({"resize": "large"}, "256:bicubic"),
    ):
        with pytest.raises(InputError, match=said):
            load_data(where, **options)
    (photos / "grey").mkdir()
    image.fromarray(bytes_of(9, 7)).save(photos / "grey" / "1.png")
    with pytest.raises(InputError, match=r"grey/1.png has 1 channel"):
        load_data(where, resize="4x4").fetch([0, 4])


def test_files_and_classes_are_named_in_every_output(photos: Path) -> None:
    (photos.parent / "m.py").write_text(FACTORY)
    words = [
        f"{photos.parent}/m.py:make",
        "--data",
        f"imagefolder:{photos}",
        "--classes",
        f"{photos.parent}/classes.txt",
    ]
    words += ["--steps", "1", "--no-checks", "--json"]
    report = photos.parent / "report.xml"
    found = json.loads(call("evaluate", *words, "--indices", str(_indices(photos)), "--junit", str(report)).stdout)
    assert found["files"] == ["zebra/1.png", "ant/2.png"]
    assert found["class_names"] == ORDER
    assert "zebra/1.png (zebra -&gt; ant)" in report.read_text()
    rows = list(csv.DictReader(io.StringIO(call("runs", "export", found["key"]).stdout)))
    assert [(row["file"], row["label"], row["label_name"], row["clean_name"]) for row in rows] == [
        ("zebra/1.png", "1", "zebra", "ant"),
        ("ant/2.png", "2", "ant", "ant"),
    ]
    outcomes = json.loads(call("runs", "export", found["key"], "--format", "json").stdout)["outcomes"]
    assert [row["file"] for row in outcomes] == found["files"]
    shown = json.loads(call("runs", "show", found["key"], "--json").stdout)
    assert shown["result"]["files"] == found["files"]


def _indices(photos: Path) -> Path:
    file = photos.parent / "indices.txt"
    file.write_text("zebra/1.png\nant/2.png\n")
    return file


def test_a_failed_test_names_files_and_classes(photos: Path) -> None:
    data = load_data(f"imagefolder:{photos}", classes=ORDER)
    model = nn.Sequential(nn.Flatten(), nn.Linear(90, 4))
    torch.nn.init.zeros_(model[1].weight)  # pyright: ignore[reportArgumentType]
    with torch.no_grad():
        model[1].bias.copy_(torch.tensor([0.0, 0.0, 1.0, 0.0]))
    with pytest.raises(AssertionError, match=r"zebra/0.png \(zebra -> ant\)"):
        assert_robust(model, data, tmifpe.Threat("linf", 0.1), 1.0, tmifpe.PGD(steps=1), checks=False)


def test_data_without_names_has_none() -> None:
    model, data = tmifpe.load_model("digits-robust"), tmifpe.load_data("digits", limit=2)
    found = tmifpe.evaluate(model, data, tmifpe.Threat("linf", 0.1), tmifpe.PGD(steps=1), checks=False)
    assert (found.files, found.class_names) == ((), ())
    assert not {"files", "class_names"} & set(found.to_json())


def test_another_sample_is_drawn_by_its_own_seed() -> None:
    def drawn(**options: Any) -> list[int]:
        return list(load_data("digits", sample=20, **options).indices)

    assert drawn() == drawn(sample_seed=0) != drawn(sample_seed=1)
    words = ["evaluate", "digits-robust", "--sample", "20", "--steps", "1", "--no-checks", "--json"]
    keys = [
        json.loads(call(*words, *more).stdout)["key"] for more in ([], ["--sample-seed", "1"], ["--sample-seed", "0"])
    ]
    assert keys[0] == keys[2] != keys[1]
    targeted = [
        "table-targeted",
        "digits-robust",
        "--sample",
        "20",
        "--losses",
        "ce",
        "--targets",
        "second",
        "--steps",
        "1",
    ]
    assert json.loads(call(*targeted, "--json").stdout)["rows"][0]["attacked"] <= 20
    assert "one of them" in call("table1", "--sample", "2", "--limit", "2", code=2).stderr
