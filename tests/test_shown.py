"""Results, comparisons, curves, smallest perturbations and audits in notebooks, Markdown, LaTeX and figures."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import tmifpe
from tests.pages import HOSTILE, hostile, made_up, made_up_curve
from tmifpe import PGD, Curve, InputError, Threat
from tmifpe.evaluation.minimal import Minimal


@pytest.fixture(scope="module")
def things() -> dict[str, Any]:
    model, data = tmifpe.load_model("digits-robust"), tmifpe.load_data("digits", limit=24)
    row = tmifpe.compare(model, data, Threat("linf", 0.15), ["ce", "tmifpe"], PGD(steps=3), checks=False, seeds=(0, 1))
    audit = tmifpe.audit(model, data, ["ce", "tmifpe"], ["fp16"], limit=8)
    size = torch.tensor([0.0, 0.25, 0.5, torch.inf], dtype=torch.float64)
    small = Minimal(torch.zeros(4, 1, 2, 2), size)
    curve = made_up_curve(0, certify=True)
    line = Curve(replace(curve.result, spec=replace(curve.result.spec, model=HOSTILE)), (0.1,))
    found = {"result": made_up(), "hostile": hostile().result, "comparison": row, "audit": audit}
    return found | {"curve": curve, "hostile curve": line, "minimal": small}


KINDS = ("result", "hostile", "comparison", "audit", "curve", "hostile curve", "minimal")


@pytest.mark.parametrize("kind", KINDS)
def test_notebooks_show_a_short_table(kind: str, things: dict[str, Any]) -> None:
    html = things[kind]._repr_html_()
    assert html.startswith("<table>")
    assert len(html) < 6_000
    assert "<script" not in html
    assert "<img" not in html


@pytest.mark.parametrize("kind", KINDS)
def test_markdown_and_latex_hold_the_table(kind: str, things: dict[str, Any]) -> None:
    text, tex = things[kind].to_markdown(), things[kind].to_latex()
    widths = {line.count("|") - line.count("\\|") for line in text.splitlines() if line.startswith("|")}
    assert widths
    assert text.count("\n|---") >= 1
    assert tex.count(r"\begin{tabular}") == tex.count(r"\end{tabular}") >= 1
    assert HOSTILE not in text


def test_the_numbers_are_in_them(things: dict[str, Any]) -> None:
    result, row = things["result"], things["comparison"]
    number = f"{100 * result.robust_accuracy:.2f}"
    assert number in result._repr_html_()
    assert number in result.to_markdown()
    for loss in ("ce", "tmifpe"):
        assert f"{100 * row.mean(loss):.2f}" in row.to_latex()
    assert f"{100 * things['curve'].point(0.15).robust_accuracy:.2f}" in things["curve"].to_markdown()
    assert "| median size of all images | 0.25 |" in things["minimal"].to_markdown()
    lost = things["audit"].finding("ce", "fp16").label_lost
    assert f"| ce | fp16 | {100 * lost:.1f} |" in things["audit"].to_markdown()


@pytest.mark.parametrize("kind", KINDS)
def test_plots_are_drawn(kind: str, things: dict[str, Any], tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    figure = things[kind].plot(tmp_path / "figure.png")
    assert (tmp_path / "figure.png").stat().st_size > 5_000
    assert figure.axes


@pytest.mark.parametrize("kind", KINDS)
def test_the_text_is_short(kind: str, things: dict[str, Any]) -> None:
    text = repr(things[kind])
    assert text.startswith("<")
    assert len(text) < 700
    assert "\n" not in text


def test_tables_for_pandas(things: dict[str, Any]) -> None:
    pytest.importorskip("pandas")
    row, curve = things["comparison"].to_pandas(), things["curve"].to_pandas()
    assert list(row["loss"]) == ["ce", "ce", "tmifpe", "tmifpe"]
    assert list(row["seed"]) == [0, 1, 0, 1]
    assert row["robust_accuracy"][2] == things["comparison"].results["tmifpe"][0].robust_accuracy
    assert list(curve.columns) == ["eps", "robust_accuracy", "low", "high", "certified_accuracy"]
    assert len(curve) == len(things["curve"].points)
    assert list(things["minimal"].to_pandas()["found"]) == [True, True, True, False]
    audit = things["audit"].to_pandas()
    assert len(audit) == 8 * 2
    assert audit["label_lost"].dtype == bool


def test_a_plot_that_cannot_be_written_is_said(things: dict[str, Any], tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    with pytest.raises(InputError, match="cannot write the figure"):
        things["comparison"].plot(tmp_path / "none" / "figure.png")
