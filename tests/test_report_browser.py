"""The report in a real browser: charts, filters, hostile names, accessibility, a hundred thousand outcomes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.browser import PHONE, opened
from tests.pages import hostile, long_name, made_up, shown
from tmifpe.report.page.render import report_html

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("page") / "report.html"
    path.write_text(report_html([shown(made_up())]), encoding="utf-8")
    return path


def test_charts_show(browser: Any, page: Path) -> None:
    with opened(browser, page) as it:
        boxes = [one.bounding_box() for one in it.page.query_selector_all("svg")]
        assert len(boxes) == 6
        assert all(box["width"] > 300 and box["height"] > 150 for box in boxes)
        styled = "getComputedStyle(document.querySelector('svg .line.c0')).stroke"
        assert it.page.evaluate(styled) != "none", "the policy admits our own style sheet"


def test_filters_filter(browser: Any, page: Path) -> None:
    def count() -> int:
        return it.page.locator(".card:visible").count()

    with opened(browser, page) as it:
        every = count()
        assert every == 40
        it.page.select_option("select[name=label]", "3")
        assert 0 < count() < every
        assert set(it.page.eval_on_selector_all(".card:not([hidden])", "all => all.map(c => c.dataset.label)")) == {"3"}
        assert it.page.inner_text(".filters output") == f"{count()} of {every}"
        it.page.click("button[type=reset]")
        it.wait_for_none(".card[hidden]")
        for name in ("fragile", "nearest"):
            it.page.check(f"input[name={name}]")
            seen = it.page.eval_on_selector_all(".card:not([hidden])", f"all => all.map(c => c.dataset.{name})")
            assert set(seen) == {"1"}
            it.page.uncheck(f"input[name={name}]")
        it.page.fill("input[name=steps]", "30")
        assert 0 < count() < every
        it.page.fill("input[name=steps]", "")
        it.page.select_option("select[name=stage]", "withstood")
        assert 0 < count() < every
        it.page.select_option("select[name=order]", "margin")
        margins = it.page.eval_on_selector_all(
            ".card:not([hidden])", "all => all.map(c => Math.abs(Number(c.dataset.margin)))"
        )
        assert margins == sorted(margins)


def test_filters_work_from_the_keyboard(browser: Any, page: Path) -> None:
    with opened(browser, page) as it:
        it.page.focus("input[name=nearest]")
        it.page.keyboard.press("Space")
        assert it.page.locator(".card[hidden]").count() > 0
        it.page.keyboard.press("Tab")
        assert it.page.evaluate("document.activeElement.name") == "order"


def test_hostile_names_run_nothing(browser: Any, tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    path.write_text(report_html([hostile(), shown(made_up(30))]), encoding="utf-8")
    with opened(browser, path) as it:
        it.page.wait_for_timeout(100)
        assert "2 runs compared" in it.page.title()
        assert it.page.locator("script").count() == 1
        assert "<script>document.title='owned'</script>" in it.page.inner_text("summary h2 >> nth=0")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_serious(scheme: str, browser: Any, tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    path.write_text(report_html([shown(made_up(100, 4), 3), shown(made_up(9, 3, 1), 1)]), encoding="utf-8")
    with opened(browser, path, color_scheme=scheme) as it:
        it.page.evaluate("document.querySelectorAll('details').forEach((one) => { one.open = true; })")
        assert not it.serious()


def test_the_theme_can_be_turned(browser: Any, page: Path) -> None:
    def colour() -> str:
        return it.page.evaluate("getComputedStyle(document.body).backgroundColor")

    with opened(browser, page, color_scheme="light") as it:
        before = colour()
        it.page.click("#theme")
        assert colour() != before


def test_a_phone_shows_it_without_scrolling_sideways(browser: Any, tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    path.write_text(report_html([hostile(), shown(made_up(classes=40))]), encoding="utf-8")
    with opened(browser, path) as it:
        it.page.set_viewport_size(PHONE)
        it.page.evaluate("document.querySelectorAll('details').forEach((one) => { one.open = true; })")
        assert it.fits()


def test_a_hundred_thousand_outcomes_are_usable_at_once(browser: Any, tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    path.write_text(report_html([shown(made_up(100_000, 100), 500)]), encoding="utf-8")
    with opened(browser, path) as it:
        assert it.page.locator(".card").count() == 500
        it.page.check("input[name=fragile]")
        assert it.page.locator(".card:not([hidden])").count() > 0


OVERLAPS = """() => {
  const found = [];
  for (const svg of document.querySelectorAll('svg')) {
    const frame = svg.getBoundingClientRect();
    if (!frame.width) continue;
    const texts = [...svg.querySelectorAll('text')].map((one) => [one, one.getBoundingClientRect()]);
    for (const [one, box] of texts)
      if (box.left < frame.left - 1 || box.right > frame.right + 1
          || box.top < frame.top - 1 || box.bottom > frame.bottom + 1)
        found.push(`cut: ${one.textContent}`);
    const level = texts.filter(([one]) => !one.hasAttribute('transform'));
    level.forEach(([one, a], k) => level.slice(k + 1).forEach(([other, b]) => {
      const x = Math.min(a.right, b.right) - Math.max(a.left, b.left);
      const y = Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top);
      if (x > 1 && y > 4) found.push(`${one.textContent} runs into ${other.textContent}`);
    }));
  }
  return found;
}"""
"""Boxes of text are as tall as the tallest letter of the font: 4 pixels of them are empty."""


@pytest.mark.parametrize("runs", [1, 7, 30])
def test_long_names_fit_in_every_chart(runs: int, browser: Any, tmp_path: Path) -> None:
    from tmifpe.report.page.board import board_html, board_row

    reports, rows = [], []
    for k in range(runs):
        made = made_up(60, 6, k, class_names=tuple(map(long_name, range(6))))
        for eps in (0.05, 0.1):
            spec = replace(made.spec, model=long_name(k), seed=0, threat=replace(made.spec.threat, eps=eps))
            one = shown(replace(made, spec=spec), 0)
            rows.append(board_row(one, "report.html"))
        reports.append(one)
    pages = {"report": report_html(reports), "board": board_html(rows, long_name(1))}
    for name, text in pages.items():
        (tmp_path / f"{name}.html").write_text(text, encoding="utf-8")
        with opened(browser, tmp_path / f"{name}.html") as it:
            assert not it.page.evaluate(OVERLAPS)
            assert it.fits()
            if name == "board":
                box = it.page.locator("#board tbody td strong").first.bounding_box()
                assert box["x"] + box["width"] < 1280, "the number is in sight"
            if runs > 1:
                names = it.page.eval_on_selector_all("svg >> nth=0 >> text", "all => all.map(one => one.textContent)")
                assert sum("…" in one for one in set(names)) == min(runs, 12 if name == "board" else 30), "names differ"
