"""The board: a static site over a store, with and without a browser."""

from __future__ import annotations

import sqlite3
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import tmifpe
from tests.browser import PHONE, opened
from tests.pages import HOSTILE, hostile, made_up, shown
from tests.stores import ask
from tmifpe.cli import app
from tmifpe.report.page.board import BoardRow, board_html, board_row


def call(*words: object, code: int = 0) -> str:
    result = CliRunner().invoke(app, [str(word) for word in words])
    assert result.exit_code == code, (result.output, result.stderr, result.exception)
    return result.stdout if code == 0 else result.stderr


def fifty() -> list[BoardRow]:
    """Ten models at five radii, one of them hostile and one incomplete."""
    rows = []
    for k in range(50):
        made = made_up(200, seed=k)
        spec = made.spec
        name = HOSTILE if k == 7 else f"model-{k % 10}"
        threat = tmifpe.Threat("linf", 0.1 * (1 + k // 10))
        made = replace(made, spec=replace(spec, model=name, threat=threat, seed=0), missing=5 if k == 3 else 0)
        rows.append(board_row(shown(made, 0), f"reports/{k}.html"))
    return rows


def test_board_of_a_store(tmp_path: Path) -> None:
    ask(tmp_path / "runs")
    ask(tmp_path / "runs", seed=1)
    assert "2 runs" in call("board", tmp_path / "runs", "--out", tmp_path / "site", "--gallery", 3)
    index = (tmp_path / "site" / "index.html").read_text(encoding="utf-8")
    keys = [run.key for run in tmifpe.Store(tmp_path / "runs").runs()]
    for key in keys:
        assert f'href="reports/{key}.html"' in index
        assert "data:image/png" in (tmp_path / "site" / "reports" / f"{key}.html").read_text(encoding="utf-8")


def test_an_empty_store_is_said(tmp_path: Path) -> None:
    assert "there is no run" in call("board", tmp_path, "--out", tmp_path / "site", code=2)


def test_a_key_cannot_name_another_file(tmp_path: Path) -> None:
    ask(tmp_path / "runs")
    with sqlite3.connect(tmp_path / "runs" / "runs.sqlite") as connection:
        connection.execute("UPDATE runs SET key = '../../owned'")
    connection.close()
    assert "is damaged" in call("board", tmp_path / "runs", "--out", tmp_path / "a" / "site", code=2)
    assert not list(tmp_path.glob("**/owned*"))


def test_the_lowest_number_is_the_one_to_believe() -> None:
    weak, strong = (board_row(shown(made_up(50, seed=k), 0), "x") for k in (0, 1))
    weak, strong = replace(weak, robust=0.5), replace(strong, robust=0.4, clean=weak.clean, attack="full")
    page = board_html([weak, strong], "board")
    assert page.count('data-best="1"') == 1
    assert page.index('data-best="0"') < page.index('data-best="1"')


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    (folder / "reports").mkdir()
    for k in range(50):
        (folder / "reports" / f"{k}.html").write_text("<!doctype html><title>report</title>")
    (folder / "index.html").write_text(board_html(fifty(), f"board {HOSTILE}"), encoding="utf-8")
    return folder / "index.html"


@pytest.mark.browser
def test_fifty_runs_sort(browser: Any, page: Path) -> None:
    with opened(browser, page) as it:
        assert it.page.locator("#board tbody tr").count() == 50
        robust = "all => all.map((row) => Number(row.cells[6].dataset.value))"
        it.page.click("th button:text-is('robust %')")
        down = it.page.eval_on_selector_all("#board tbody tr", robust)
        assert down == sorted(down, reverse=True)
        it.page.click("th button:text-is('robust %')")
        assert it.page.eval_on_selector_all("#board tbody tr", robust) == sorted(down)
        assert it.page.get_attribute("th:has(button:text-is('robust %'))", "aria-sort") == "ascending"
        it.page.focus("th button:text-is('model')")
        it.page.keyboard.press("Enter")
        names = it.page.eval_on_selector_all("#board tbody tr", "all => all.map((row) => row.cells[0].textContent)")
        assert [name for name in names if name.startswith("model")] == sorted(name for name in names if name[0] == "m")


@pytest.mark.browser
def test_fifty_runs_filter_and_every_link_leads_somewhere(browser: Any, page: Path) -> None:
    def count() -> int:
        return it.page.locator("#board tbody tr:visible").count()

    with opened(browser, page) as it:
        it.page.fill("input[name=text]", "model-4")
        assert count() == 5
        it.page.select_option("select[name=threat]", "linf 0.2")
        assert count() == 1
        it.page.click("button[type=reset]")
        it.wait_for_none("#board tr[hidden]")
        it.page.check("input[name=best]")
        assert 0 < count() < 50
        hrefs = it.page.eval_on_selector_all("#board a", "all => all.map((one) => one.getAttribute('href'))")
        assert len(hrefs) == 50
        assert all((page.parent / href).is_file() for href in hrefs)
        it.page.uncheck("input[name=best]")
        with it.page.expect_navigation():
            it.page.click("#board a >> nth=0")
        assert it.page.title() == "report"


@pytest.mark.browser
def test_flags_wrap_and_the_last_column_is_in_sight(browser: Any, tmp_path: Path) -> None:
    rows = [replace(row, flags=("saturated-logits", "found-from-outside")) for row in fifty() if row.model != HOSTILE]
    (tmp_path / "index.html").write_text(board_html(rows, "board"), encoding="utf-8")
    with opened(browser, tmp_path / "index.html") as it:
        it.page.set_viewport_size({"width": 1200, "height": 900})
        wide, room = it.page.eval_on_selector(".scroll", "one => [one.scrollWidth, one.clientWidth]")
        assert wide <= room


@pytest.mark.browser
def test_axe_finds_nothing_serious_and_names_are_text(browser: Any, page: Path) -> None:
    with opened(browser, page) as it:
        assert it.page.title().startswith("Robustness board")
        assert it.page.locator("script").count() == 1
        assert not it.serious()


@pytest.mark.browser
def test_on_a_phone_the_table_scrolls_and_not_the_page(browser: Any, page: Path) -> None:
    with opened(browser, page) as it:
        for size in (PHONE, PHONE | {"width": 390}):
            it.page.set_viewport_size(size)
            assert it.fits()
            it.page.evaluate("scrollTo(500, 0)")
            assert it.page.evaluate("scrollX") == 0, "a finger moves the table in its own box"
            assert it.page.eval_on_selector(".scroll:has(#board)", "one => one.scrollWidth > one.clientWidth")


def test_hostile_rows_are_text() -> None:
    page = board_html([board_row(hostile(), "reports/x.html")], HOSTILE)
    assert "<script>document" not in page
    assert "<img" not in page
