"""The theory page in a real browser: its own arithmetic against the oracle, the losses, and Figure 1."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from tests.browser import PHONE, opened
from tmifpe import get_loss
from tmifpe.cli import app
from tmifpe.report.figure1 import PANELS, curves
from tmifpe.report.page.theory import theory_html

LOSSES = ("ce", "ce-margin", "cw", "dlr", "mifpe", "tmifpe")


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("page") / "theory.html"
    path.write_text(theory_html(), encoding="utf-8")
    return path


def test_the_command_writes_it(tmp_path: Path) -> None:
    out = tmp_path / "theory.html"
    assert CliRunner().invoke(app, ["theory", "--page", "--out", str(out)]).exit_code == 0
    assert out.read_text(encoding="utf-8") == theory_html()
    said = CliRunner().invoke(app, ["theory"])
    assert said.exit_code == 2
    assert "--page" in said.stderr


@pytest.mark.browser
def test_t_star_of_the_oracle(browser: Any, page: Path, shared: Path) -> None:
    """Every case, in every precision that it has: 1e-9 of t*, relative; a root of a smooth function by bisection.

    Six of the 201 cases are ties, where t* does not exist: the page says so.
    """
    cases = json.loads((shared / "paper" / "oracle.json").read_text(encoding="utf-8"))["cases"]
    assert len(cases) == 201
    asked: list[tuple[Any, ...]] = []
    wanted: list[float | None] = []
    for case in cases:
        aim = case["label"]
        targeted = case["scenario"].startswith("t_")
        rows = case.get("per_precision") or {"fp64": case}
        for precision, numbers in rows.items():
            asked.append((case["logits"], aim, aim if targeted else None, precision))
            wanted.append(None if numbers.get("t_star") is None else float(numbers["t_star"]))
    with opened(browser, page) as it:
        script = (
            "asked => asked.map((one) => { const found = tmifpe.analyse(...one); return found.tie ? null : found.t; })"
        )
        found = it.page.evaluate(script, asked)
    assert len(wanted) > 500
    assert wanted.count(None) == 6
    assert [t is None for t in found] == [truth is None for truth in wanted]
    worst = max(abs(t - truth) / truth for t, truth in zip(found, wanted, strict=True) if truth is not None)
    assert worst < 1e-9


@pytest.mark.browser
@pytest.mark.parametrize("target", [None, 1])
def test_gradients_are_those_of_the_losses(target: int | None, browser: Any, page: Path) -> None:
    """In float64: ours and the page's round differently in the last digits, of numbers of size 1."""
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(20, 6, dtype=torch.float64, generator=generator) * 4
    with opened(browser, page) as it:
        script = "asked => asked.map((one) => tmifpe.analyse(...one).gradients)"
        found = it.page.evaluate(script, [(row.tolist(), 0, target, "fp64") for row in rows])
    labels = torch.zeros(20, dtype=torch.long)
    for loss in LOSSES:
        z = rows.clone().requires_grad_()
        get_loss(loss)(z, labels, None if target is None else labels + target).sum().backward()
        seen = torch.tensor([one[loss] for one in found], dtype=torch.float64)
        assert z.grad is not None
        torch.testing.assert_close(seen, z.grad, rtol=1e-9, atol=1e-12)


@pytest.mark.browser
def test_ce_loses_its_label_where_the_formats_say(browser: Any, page: Path) -> None:
    """Two classes, a gap on either side of ce_dies: -ln(unit roundoff)."""
    from tmifpe.theory.formats import FORMATS

    with opened(browser, page) as it:
        for name in ("fp16", "bf16", "fp32"):
            at = FORMATS[name].ce_dies
            script = "([gap, name]) => tmifpe.analyse([gap, 0], 0, null, name).gradients.ce[0]"
            assert it.page.evaluate(script, [at * 1.1, name]) == 0
            assert it.page.evaluate(script, [at * 0.9, name]) < 0


@pytest.mark.browser
def test_typing_dragging_and_figure_1(browser: Any, page: Path) -> None:
    drawn = curves()
    with opened(browser, page) as it:
        assert it.page.locator("svg polyline").count() == 25  # five curves in each of five charts
        for panel in PANELS:
            it.page.click(f"#panel-{panel.letter} button")
            seen = it.page.inner_text("#bounds tbody tr:nth-child(3) td:nth-child(2)")
            assert float(seen) == pytest.approx(drawn[panel.letter].marks["fp32"].t_star, rel=1e-5)
        it.page.fill("#target", "")
        it.page.fill("#logits", "1, 2, 3")
        it.page.fill("#label", "2")
        assert it.page.inner_text("#facts tbody tr:first-child td").startswith("u_u")
        it.page.focus("#sliders input >> nth=0")
        it.page.keyboard.press("End")
        assert it.page.inner_text("#facts tbody tr:first-child td").startswith("u_s")
        it.page.fill("#logits", "1, 1, <b>")
        assert "must be a number" in it.page.inner_text("#said")
        it.page.fill("#logits", "1, 1")
        it.page.fill("#label", "0")
        assert "Delta is 0" in it.page.inner_text("#said")


@pytest.mark.browser
def test_it_fits_a_phone_and_axe_finds_nothing_serious(browser: Any, page: Path) -> None:
    with opened(browser, page) as it:
        assert not it.serious()
        it.page.set_viewport_size(PHONE)
        assert it.fits()
