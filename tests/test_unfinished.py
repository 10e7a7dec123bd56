"""A run that was killed has bounds and no accuracy, wherever it is shown; and checks that were cut are said to be."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from tests.stores import Killed, N, ask, killed_after
from tmifpe import Result
from tmifpe.cli import app
from tmifpe.core.errors import IncompleteError
from tmifpe.report.gates import Gates
from tmifpe.report.junit import junit_xml
from tmifpe.report.page.board import board_html, board_row
from tmifpe.report.page.render import report_html
from tmifpe.report.page.reported import Reported
from tmifpe.report.summary import summary
from tmifpe.store import Store

DONE = 16


def killed(folder: Path, after: int) -> Result:
    """What a store says of a run that was killed once so many of its 48 examples had a verdict."""
    with pytest.raises(Killed):
        ask(folder, progress=killed_after(after))
    (run,) = Store(folder).runs()
    return Store(folder).result(run)


@pytest.fixture(scope="module")
def unfinished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Result]:
    folder = tmp_path_factory.mktemp("unfinished")
    return folder, killed(folder, DONE)


def call(folder: Path, *words: str, code: int = 0) -> Any:
    done = CliRunner(env={"COLUMNS": "200"}).invoke(app, [*words, "--store", str(folder)])
    assert done.exit_code == code, (done.output, done.exception)
    return done


def test_bounds_count_all_that_is_missing_as_broken_and_as_robust(unfinished: tuple[Path, Result]) -> None:
    _, found = unfinished
    assert (len(found.outcomes), found.missing, found.complete) == (DONE, N - DONE, False)
    assert found.bounds == (found.robust / N, (found.robust + N - DONE) / N)
    whole = ask()
    assert found.bounds[0] < whole.robust_accuracy < found.bounds[1]
    assert found.clean_bounds[0] <= whole.clean_accuracy <= found.clean_bounds[1]
    for name in ("robust_accuracy", "clean_accuracy", "interval", "success_rate", "second_robust_accuracy"):
        with pytest.raises(IncompleteError, match=f"{N - DONE} of {N} examples have no verdict"):
            getattr(found, name)
    told = found.to_json()
    assert (told["robust_accuracy"], told["clean_accuracy"], told["interval"]) == (None, None, None)
    assert (told["missing"], told["bounds"]) == (N - DONE, list(found.bounds))


def shows(unfinished: tuple[Path, Result]) -> dict[str, str]:
    """Everything that shows a run, as text."""
    folder, found = unfinished
    told = Reported(found)
    texts = {
        "text": str(found),
        "repr": repr(found),
        "markdown": found.to_markdown(),
        "notebook": found._repr_html_(),
        "page": report_html([told]),
        "comparison": report_html([told, told]),
        "board": board_html([board_row(told, "a.html")], "board"),
        "gates": junit_xml(found, Gates(robust=0.1)),
        "summary": summary(found, Gates(robust=0.1)),
        "list": call(folder, "runs", "list").stdout,
        "show": call(folder, "runs", "show", "latest").stdout,
        "show as JSON": call(folder, "runs", "show", "latest", "--json").stdout,
        "list as JSON": call(folder, "runs", "list", "--json").stdout,
    }
    (run,) = Store(folder).runs()
    texts["export"] = call(folder, "runs", "export", run.name, "--format", "json").stdout
    for kind in ("md", "latex", "json", "csv"):
        texts[f"report as {kind}"] = call(folder, "report", "latest", "--format", kind).stdout
    return texts


def test_nothing_that_shows_it_shows_an_accuracy(unfinished: tuple[Path, Result]) -> None:
    _, found = unfinished
    share, (low, high) = found.robust / DONE, found.bounds
    assert len({share, low, high}) == 3
    for name, text in shows(unfinished).items():
        for written in (f"{share:.2%}", f"{100 * share:.2f} ", f'accuracy": {share}'):
            assert written not in text, name
        assert f"{100 * low:.2f}" in text or f"{low}" in text, name
        assert f"{100 * high:.2f}" in text or f"{high}" in text, name
    assert f"Not finished: {DONE} of {N}" in shows(unfinished)["show"]


def test_without_a_shard_there_are_no_bounds_either(tmp_path: Path) -> None:
    found = killed(tmp_path, 0)
    assert (len(found.outcomes), found.missing) == (0, N)
    assert f"0 of {N} examples have a verdict" in str(found)
    assert "%" not in str(found)
    (run,) = Store(tmp_path).runs()
    shown = call(tmp_path, "runs", "show", run.name).stdout
    assert f"0 of {N}" in shown
    assert "%" not in shown
    assert "%" not in call(tmp_path, "runs", "list").stdout.replace("robust %", "")
    told = json.loads(call(tmp_path, "runs", "show", run.name, "--json").stdout)["result"]
    assert (told["robust_accuracy"], told["clean_accuracy"], told["missing"]) == (None, None, N)
    assert "bounds" not in told


def test_a_part_without_a_shard_says_no_accuracy_and_misses_no_gate(tmp_path: Path) -> None:
    words = ["evaluate", "digits-robust", "--limit", "4", "--attack", "fgsm", "--no-checks", "--fail-below", "0.9"]
    done = call(tmp_path, *words, "--shard", "2/2")
    assert "accuracy" not in done.stdout
    told = json.loads(call(tmp_path, *words, "--shard", "2/2", "--json").stdout)
    assert (told["robust_accuracy"], told["n"], told["missing"]) == (None, 0, 0)


def test_a_finished_run_shows_its_accuracy_again(unfinished: tuple[Path, Result], tmp_path: Path) -> None:
    killed(tmp_path, DONE)
    whole = ask(tmp_path)
    (run,) = Store(tmp_path).runs()
    again = Store(tmp_path).result(run)
    assert again.complete
    assert again.robust_accuracy == whole.robust_accuracy
    assert f"{whole.robust_accuracy:.2%}" in str(again)


CUT = ("the layers were not looked at", "4 of 16 survivors were attacked again")


def test_checks_that_were_cut_for_cost_are_said_with_the_result(tmp_path: Path) -> None:
    ask(tmp_path)
    (run,) = Store(tmp_path).runs()
    plain = replace(Store(tmp_path).result(run), check_forwards=10)
    for cut in ((), CUT):
        found = replace(plain, checks_cut=cut)
        told = Reported(found)
        page = report_html([told])
        assert ("no check found a reason to doubt" in page) == (not cut)
        texts = [page, report_html([told, told]), board_html([board_row(told, "a.html")], "board")]
        texts += [found.to_markdown(), summary(found), junit_xml(found), json.dumps(found.to_json())]
        for text in texts:
            assert (CUT[0] in text) == bool(cut)
    never = report_html([Reported(replace(plain, check_forwards=0))])
    assert "no check found a reason to doubt" not in never


def test_a_stored_run_keeps_what_was_cut_and_noted(tmp_path: Path) -> None:
    ask(tmp_path, checks=True)
    store = Store(tmp_path)
    (run,) = store.runs()
    assert run.result is not None
    kept = replace(run, result=run.result | {"checks_cut": list(CUT), "notes": ["a note"]})
    found = store.result(kept)
    assert (found.checks_cut, found.notes) == (CUT, ("a note",))
    assert re.search(r"checks.*cut for cost", found.to_markdown())
