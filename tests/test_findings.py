"""docs/findings.md says what the committed data says: it is made from it, and its conclusions hold in it."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent
PARTS = ("error-by-t", "gain", "one-step", "multimodal", "audits")


@pytest.fixture(scope="module")
def data() -> dict[str, Any]:
    return {part: json.loads((ROOT / f"docs/data/findings-{part}.json").read_text(encoding="utf-8")) for part in PARTS}


def test_the_page_is_made_from_the_data(data: dict[str, Any]) -> None:
    spec = importlib.util.spec_from_file_location("findings_text", ROOT / "benchmarks" / "findings_text.py")
    assert spec is not None
    assert spec.loader is not None
    text = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(text)
    page = (ROOT / "docs/findings.md").read_text(encoding="utf-8")
    assert page == text.render(data), "run: python benchmarks/findings.py write"
    for part in PARTS:
        assert data[part]["command"] == f"python benchmarks/findings.py {part}"
        assert data[part]["command"] in page


def test_the_error_is_flat_below_two_and_grows_above(data: dict[str, Any]) -> None:
    for model in data["error-by-t"]["models"].values():
        printed = {t: model["errors"][f"tmifpe-naive(t_rule={t})"] for t in data["error-by-t"]["scales"]}
        ours = {t: model["errors"][f"tmifpe(t_rule={t})"] for t in data["error-by-t"]["scales"]}
        flat = [printed[t] for t in ("0.001", "0.01", "0.1", "0.5", "1.0", "exact", "2.0")]
        assert max(e["logits_p99"] for e in flat) < 1e-6
        assert max(e["input_p99"] for e in flat) < 1.5 * min(e["input_p99"] for e in flat)
        assert printed["20.0"]["logits_p99"] > 0.5
        assert max(e["input_p99"] for e in ours.values()) < 1e-5
        assert model["predicted"]["0.001"] > 500
    unscaled = {name: m["errors"]["ce-margin"]["logits_p99"] for name, m in data["error-by-t"]["models"].items()}
    assert max(unscaled["digits-robust"], unscaled["mnist-fast"]) < 2e-6
    assert unscaled["digits-distilled"] == 1.0


def test_what_is_said_of_the_gain(data: dict[str, Any]) -> None:
    models = data["gain"]["models"]
    for name, model in models.items():
        losses = model["losses"]
        for same in ("ce-margin-scaled", "tmifpe-naive"):
            assert not any(losses[same]["only_this"] + losses[same]["only_other"])
        assert not any(model["ce_margin_against_ce"]["only_this"] + model["ce_margin_against_ce"]["only_other"])
        assert min(losses["mifpe"]["p"]) > 0.05
        assert losses["ce-margin-constant"]["mean"] > losses["tmifpe"]["mean"]
        if name != "digits-distilled":
            assert min(losses["ce-margin"]["p"]) > 0.05
            assert losses["ce-margin-constant"]["mean"] > losses["ce-margin"]["mean"]
    distilled = {loss: found["mean"] for loss, found in models["digits-distilled"]["losses"].items()}
    gained = distilled["ce"] - distilled["tmifpe"]
    assert gained > 0.5
    assert distilled["ce"] - distilled["ce-margin-constant"] > 0.9 * gained


def test_what_is_said_of_one_step_and_of_maxima(data: dict[str, Any]) -> None:
    for name, found in data["one-step"]["sets"].items():
        if name.endswith("K = 10"):
            assert abs(found["one_step"]["mean"] - found["T1"]["mean"]) < 0.03
        else:
            assert found["one_step"]["min"] < 1e-3
            assert found["one_step"]["mean"] < found["T1"]["mean"]
    for name, found in data["multimodal"]["sets"].items():
        if int(name.partition("K = ")[2]) <= 13:
            assert found["several"] == 0.0
    thousand = {
        family: data["multimodal"]["sets"][f"{family}, K = 1000"]["several"] for family in ("gaussian", "grouped")
    }
    assert thousand["grouped"] > 0.05 > thousand["gaussian"] > 0.0
    assert max(found["climb_loss"] for found in data["multimodal"]["sets"].values()) > 0.2


def test_what_is_said_of_the_audits(data: dict[str, Any]) -> None:
    for name, plain in data["audits"]["models"].items():
        for f in plain["findings"]:
            zero = max(f["logits"]["zero"], f["input"]["zero"])
            if f["loss"] == "tmifpe":
                assert zero == f["label_lost"] == 0.0
            if f["loss"] == "ce" and f["precision"] != "fp32":
                assert f["label_lost"] > 0.0
            if f["loss"] == "ce-margin" and f["precision"] != "fp16" and name != "digits-distilled":
                assert zero == f["label_lost"] == 0.0
            if f["loss"] == "ce-margin" and name == "digits-distilled":
                assert zero > 0.9
