"""The paper's Table 1 on the command line: measured beside printed, and what is missing said in full."""

from __future__ import annotations

import json
import re
from importlib.util import find_spec

import pytest
import torch
from typer.testing import CliRunner

from tests.data_files import make_cifar, make_idx
from tests.model_files import save_zoo
from tmifpe import InputError
from tmifpe.cli import app
from tmifpe.models.mnist import fast_network
from tmifpe.paper.rows import choose_rows, paper_rows
from tmifpe.paper.table1 import printed_value
from tmifpe.report import table1 as report

pytestmark = pytest.mark.usefixtures("unchecked")

LOSSES = ["ce", "cw", "dlr", "gama", "mifpe", "tmifpe", "autoattack"]


def call(*words: object) -> str:
    result = CliRunner().invoke(app, ["table1", *map(str, words)])
    assert result.exit_code == 0, result.output
    return result.stdout


def rows_of(*words: object) -> list[dict]:
    plain = json.loads(call(*words, "--json", "--no-store"))
    assert {"command", "version", "rows"} <= set(plain)
    return plain["rows"]


@pytest.fixture
def home(tmp_path):
    """Random weights of the Fast AT architecture, and six images."""
    make_idx(tmp_path / "data" / "mnist")
    (tmp_path / "models").mkdir()
    torch.manual_seed(0)
    torch.save(fast_network().state_dict(), tmp_path / "models" / "mnist_fast_at.pth")
    return ["--weights-dir", tmp_path / "models", "--data-dir", tmp_path / "data", "--losses", "ce,gama", "--steps", 2]


def test_data_are_the_paper_s():
    rows = paper_rows()
    assert len(rows) == len({row.id for row in rows}) == 30
    assert [sum(row.dataset == name for row in rows) for name in ("mnist", "cifar10", "cifar100", "imagenet")] == [
        5,
        20,
        3,
        2,
    ]
    for row in rows:
        assert set(row.printed) == {"clean", *LOSSES}
        assert all(0 < row.printed[loss] <= row.printed["clean"] <= 1 for loss in LOSSES)
        assert (row.norm, row.eps) in {("linf", "0.3"), ("linf", "8/255"), ("linf", "4/255"), ("l2", "0.5")}
        assert row.model is None or row.weights is not None


def test_data_are_those_of_the_shared_copy(shared):
    theirs = json.loads((shared / "paper" / "table1.json").read_text(encoding="utf-8"))["rows"]
    for ours, row in zip(paper_rows(), theirs, strict=True):
        assert ours.printed == {k: round(row["gama_pgd" if k == "gama" else k] / 100, 4) for k in ("clean", *LOSSES)}
        assert (ours.dataset, ours.norm, ours.eps) == (row["dataset"], row["norm"].lower(), row["eps"])
        assert (ours.defense, ours.architecture, ours.cite) == (row["defense"], row["architecture"], row["cite"])
        assert row["robustbench_id"] is None or ours.model.endswith(row["robustbench_id"])


def test_without_anything_at_hand_every_row_says_what_it_needs(tmp_path):
    rows = rows_of("--weights-dir", tmp_path, "--data-dir", tmp_path)
    assert [row["number"] for row in rows] == list(range(1, 31))
    for row, source in zip(rows, paper_rows(), strict=True):
        assert row["status"] == "missing"
        assert "data:" in row["needs"]
        assert (source.weights or f"{source.id}.pt2") in row["needs"]
        if source.model and source.model.startswith("robustbench:"):
            assert source.model in row["needs"]
            assert str(tmp_path / source.model.removeprefix("robustbench:")) + ".pt" in row["needs"]
    assert "30 of 30 rows were not measured" in call("--weights-dir", tmp_path, "--data-dir", tmp_path)


def test_a_row_is_measured_beside_what_is_printed(home):
    rows = rows_of(*home, "--rows", "mnist", "--seeds", "0,1")
    assert [row["status"] for row in rows] == ["missing"] * 4 + ["measured"]
    row = rows[-1]
    assert (row["id"], row["n"], row["seeds"], row["needs"]) == ("mnist-fast", 6, [0, 1], "")
    assert row["clean"]["printed"] == 0.985
    assert list(row["columns"]) == ["ce", "gama"]
    for name, printed in (("ce", 0.8682), ("gama", 0.8762)):
        column = row["columns"][name]
        assert column["printed"] == printed
        assert column["difference"] == pytest.approx(column["measured"] - printed, abs=1e-6)
        assert column["measured"] == pytest.approx(sum(column["values"]) / 2)
        assert column["worst_case"] <= column["min"] <= column["measured"] <= column["max"]
        low, high = column["interval"]
        assert low <= column["values"][0] <= high
    assert [(pair["first"], pair["second"]) for pair in row["pairs"]] == [("ce", "gama")]
    assert any("other weights" in remark for remark in row["remarks"])
    assert not any("of 6 images" in remark for remark in row["remarks"])
    (some,) = rows_of(*home, "--rows", "mnist-fast", "--limit", 4)
    assert some["remarks"][0].startswith("These are 4 of 6 images")


def test_an_export_named_after_its_row_is_found(tmp_path, monkeypatch):
    from tmifpe.paper import rows as module

    seen = []
    monkeypatch.setattr(module, "load_model", lambda text, *, weights, device: seen.append((text, weights)))
    make_idx(tmp_path / "mnist")
    for name in ("mnist-madry.onnx", "mnist-gowal.pt2", "mnist-mma.txt"):
        (tmp_path / name).touch()
    for row in choose_rows(["mnist"]):
        with pytest.raises((module.Missing, AttributeError)):  # what the stand-in returns is no classifier
            module.load_row(row, tmp_path, tmp_path, None, "cpu")
    assert seen == [(str(tmp_path / "mnist-gowal.pt2"), None), (str(tmp_path / "mnist-madry.onnx"), None)]


def test_a_file_that_does_not_fit_is_said_and_the_rest_goes_on(home, tmp_path):
    torch.save(fast_network().state_dict(), tmp_path / "models" / "mnist_trades_smallcnn.pt")
    trades, fast = rows_of(*home, "--rows", "mnist-trades,mnist-fast")
    assert (trades["status"], fast["status"]) == ("missing", "measured")
    assert "do not fit mnist-smallcnn" in trades["needs"]


def test_weights_of_the_zoo_are_found_in_its_layout_or_by_a_name_that_is_unique(tmp_path, monkeypatch):
    from tmifpe.paper import rows as module

    seen = []

    def load(text, *, weights, device):
        where = text.removeprefix("robustbench:") + ".pt"
        seen.append((text, (weights / where).read_bytes()))
        raise InputError("far enough")

    monkeypatch.setattr(module, "load_model", load)
    (tmp_path / "Wong2020Fast.pt").write_bytes(b"flat")
    (tmp_path / "Ding2020MMA.pt").write_bytes(b"which?")
    (tmp_path / "cifar10" / "L2").mkdir(parents=True)
    (tmp_path / "cifar10" / "L2" / "Ding2020MMA.pt").write_bytes(b"layout")
    for row in choose_rows(["cifar10"]):
        with pytest.raises(module.Missing):
            module.load_row(row, tmp_path, tmp_path, None, "cpu")
    assert seen == [
        ("robustbench:cifar10/Linf/Wong2020Fast", b"flat"),
        ("robustbench:cifar10/L2/Ding2020MMA", b"layout"),
    ]


@pytest.mark.slow
def test_a_bare_file_of_the_zoo_is_loaded_by_the_zoo(tmp_path):
    if find_spec("robustbench") is None:
        pytest.skip("the extra robustbench is not installed")
    save_zoo(tmp_path)
    (tmp_path / "cifar10" / "Linf" / "Wong2020Fast.pt").rename(tmp_path / "Wong2020Fast.pt")
    make_cifar(tmp_path / "data" / "cifar10")
    words = ["--weights-dir", tmp_path, "--data-dir", tmp_path / "data", "--losses", "ce", "--steps", 1]
    (row,) = rows_of(*words, "--rows", "cifar10-wong2020fast")
    assert row["status"] == "measured", row["needs"]


def test_runs_are_kept_and_returned(home, tmp_path):
    words = [*home, "--rows", "mnist-fast", "--store", tmp_path / "runs", "--json"]
    first, second = (json.loads(call(*words))["rows"][0]["columns"] for _ in range(2))
    assert (tmp_path / "runs").is_dir()
    for name in ("ce", "gama"):
        assert first[name]["values"] == second[name]["values"]
        assert first[name]["forwards"] == second[name]["forwards"]


def test_markdown_is_a_table_per_row(home):
    text = call(*home, "--rows", "mnist", "--seeds", "0,1", "--markdown", "--no-store")
    assert "### MNIST, Fast adversarial training, SmallCNN (ℓ∞ 0.3)" in text
    assert re.search(r"^\| ce \| [\d.]+ \| 86\.82 \| [+-][\d.]+ \|", text, re.MULTILINE)
    assert "`tmifpe table1 --rows mnist-madry`" in text
    for block in re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE):
        assert len({line.count("|") for line in block.splitlines()}) == 1


def test_latex_is_one_tabular(home):
    text = call(*home, "--rows", "mnist", "--latex", "--no-store")
    lines = [line for line in text.splitlines() if line.endswith(r"\\")]
    assert len(lines) == 6
    assert {line.count("&") for line in lines} == {5}
    assert text.count(r"\begin{tabular}") == text.count(r"\end{tabular}") == 1
    assert "(86.82)" in text
    assert report.latex([]).count(r"\hline") == 3


def test_table_on_a_terminal(home):
    text = call(*home, "--rows", "mnist-fast,mnist-madry", "--no-store")
    assert "86.82" in text
    assert "1 of 2 rows were not measured" in text


@pytest.mark.parametrize(
    "words",
    [["--rows", "mnist-fest"], ["--losses", "tmipfe"], ["--json", "--latex"], ["--seeds", "a"], ["--limit", "0"]],
)
def test_mistakes_are_one_sentence(words):
    result = CliRunner().invoke(app, ["table1", *words])
    assert result.exit_code == 2
    assert "Traceback" not in result.output


def test_rows_by_id_number_and_words():
    assert [row.id for row in choose_rows(["mnist-fast"])] == ["mnist-fast"]
    assert [row.number for row in choose_rows(["30", "1"])] == [1, 30]
    assert [row.id for row in choose_rows(["cifar10/Linf/Wong2020Fast"])] == ["cifar10-wong2020fast"]
    assert len(choose_rows(["l2"])) == 5
    assert len(choose_rows(["trades"])) == 2
    assert len(choose_rows([])) == 30


def test_printed_values_belong_to_plain_columns():
    row = choose_rows(["mnist-fast"])[0]
    assert printed_value(row, "gama(momentum=0.75)") == printed_value(row, "gama") == 0.8762
    assert printed_value(row, "autoattack") == 0.8293
    assert printed_value(row, "mifpe(T=10)") is None
    assert printed_value(row, "fgsm") is None


def test_real_rows_come_near_the_paper(shared):
    """Fifty images: the clean accuracy and the printed values lie inside what fifty images can say."""
    words = ["--weights-dir", shared / "models", "--data-dir", shared / "data", "--limit", 50, "--steps", 10]
    (row,) = rows_of(*words, "--rows", "mnist-fast", "--losses", "ce,tmifpe")
    assert row["n"] == 50
    assert not [remark for remark in row["remarks"] if "other weights" in remark]
    for column in row["columns"].values():
        low, high = column["interval"]
        assert low <= column["printed"] <= high


def test_an_empty_choice_of_rows_is_not_every_row():
    told = CliRunner().invoke(app, ["table1", "--rows", ","])
    assert told.exit_code == 2
    assert "--rows is empty" in told.output
