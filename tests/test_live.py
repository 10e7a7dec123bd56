"""The live view of a run: bounds that close in, stage, pace, time left; on terminals, in notebooks and in logs."""

from __future__ import annotations

import io
import itertools
import sys
import types
from typing import Any

import pytest
import torch
from rich.console import Console
from typer.testing import CliRunner

import tmifpe
from tmifpe import PGD, Progress, Threat
from tmifpe.cli import app
from tmifpe.run import bar
from tmifpe.run.shown import live
from tmifpe.run.shown.live import Pace, View, in_lines

HALF = Progress(500, 431, 206, 225, "stage 2 of 5: gama 20", 4_000, 1_000)


class Clock:
    """Time that passes when it is told to."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def seen(title: str = "digits-robust") -> View:
    clock = Clock()
    view = View(title, clock)
    view.told(Progress(500, 20, 0, 20, "stage 1 of 5", 500, 9_000))
    clock.now = 7.0
    view.told(HALF)
    return view


def drawn(view: View, width: int, encoding: str = "utf-8") -> list[str]:
    file = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
    Console(file=file, width=width, force_terminal=True, color_system=None).print(view)
    file.seek(0)
    return file.read().splitlines()


def test_pace_and_time_left_come_from_the_steps() -> None:
    pace = seen().pace
    assert (pace.speed, pace.unit) == (500.0, "steps")  # 3500 in 7 seconds
    assert pace.seconds_left(HALF) == 2.0
    counted = Clock()
    pace = Pace(counted)
    pace.told(Progress(10, 0, 0, 0))
    assert pace.seconds_left(Progress(10, 0, 0, 0)) is None, "nothing is known yet"
    counted.now = 2.0
    pace.told(Progress(10, 4, 0, 0))
    assert (pace.speed, pace.unit, pace.seconds_left(Progress(10, 4, 0, 0))) == (2.0, "examples", 3.0)


def test_the_view_says_all_of_it() -> None:
    title, bounds, details = drawn(seen(), 100)
    assert title == "digits-robust  431 of 500"
    assert bounds.endswith("  robust 41.2 to 55.0 %")
    wanted = "206 withstood, 69 open, 225 broken or wrong; stage 2 of 5: gama 20; 500 steps/s; up to 0:02 left"
    assert details == wanted
    marks = bounds.partition("  ")[0]
    assert [marks.count(mark) / len(marks) for mark in "█·░"] == pytest.approx([0.412, 0.138, 0.45], abs=1 / len(marks))
    assert set(drawn(seen(), 60, "ascii")[1].partition("  ")[0]) == {"#", ".", "x"}


@pytest.mark.parametrize("width", [40, 80])
def test_the_view_fits_a_narrow_terminal(width: int) -> None:
    lines = drawn(seen("robustbench:cifar10/Linf/" + "A" * 60), width)
    assert all(len(line) <= width for line in lines)
    assert lines[0].endswith("...  431 of 500")


def test_names_cannot_steer_a_terminal_or_a_notebook() -> None:
    view = seen("<b>\x1b[31m\u202e")
    assert "\x1b" not in repr(view)
    assert "\u202e" not in "".join(drawn(view, 80))
    assert "<b>" not in view._repr_html_()
    assert "&lt;b&gt;" in view._repr_html_()


def test_logs_get_few_lines(capsys: pytest.CaptureFixture[str]) -> None:
    clock = Clock()
    with in_lines("model", clock) as told:
        for k in range(1001):
            clock.now = k * 1.0
            told(Progress(1000, k, k // 2, k - k // 2))
        for k in range(0, 1001, 5):  # the same again, under another name
            clock.now += 1.0
            told(Progress(1000, k, 0, k), "other")
    lines = capsys.readouterr().err.splitlines()
    assert [line.partition(":")[0] for line in lines] == ["model"] * 10 + ["other"] * 10
    assert lines[0] == (
        "model: 100 of 1000 done; robust 5.0 to 95.0 %; 50 withstood, 900 open, 50 broken or wrong; 1.0 examples/s; "
        "up to 15:00 left"
    )


def test_logs_get_nothing_of_a_run_of_seconds(capsys: pytest.CaptureFixture[str]) -> None:
    clock = Clock()
    with in_lines("model", clock) as told:
        for k in range(101):
            clock.now = k / 25
            told(Progress(100, k, k, 0))
    assert capsys.readouterr().err == ""


def test_a_notebook_updates_one_cell(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    shown: list[str] = []
    handle = types.SimpleNamespace(update=lambda view: shown.append(view._repr_html_()))
    made: Any = types.ModuleType("IPython.display")
    made.display = lambda view, display_id: handle if display_id else None
    monkeypatch.setitem(sys.modules, "IPython", types.ModuleType("IPython"))
    monkeypatch.setitem(sys.modules, "IPython.display", made)
    monkeypatch.setattr("rich.console._is_jupyter", lambda: True)
    with bar.shown_on_stderr("model") as told:
        for _ in range(50):
            told(HALF)
    assert len(shown) <= 3, "not one per step"
    assert "431 of 500" in shown[-1]
    assert "robust 41.2 to 55.0 %" in shown[-1]
    assert capsys.readouterr() == ("", "")


def test_force_color_makes_no_terminal_of_a_log(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setattr(bar, "on_terminal", lambda *_: pytest.fail("a log is no terminal"))
    with bar.shown_on_stderr("model") as told:
        told(HALF)


class Line(torch.nn.Module):
    """Two classes, apart by the first pixel."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        first = x.flatten(1)[:, 0] - 0.5
        return torch.stack([-first, first], dim=1) + 0 * x.flatten(1).sum(1, keepdim=True)


def test_a_run_tells_stage_steps_and_what_is_left() -> None:
    model, data = tmifpe.load_model("digits-robust"), tmifpe.load_data("digits", limit=8)
    told: list[Progress] = []
    stages = [PGD("ce", steps=3), PGD(steps=6)]
    options: Any = {"checks": False, "shard_size": 4, "progress": told.append}
    found = tmifpe.evaluate(model, data, Threat("linf", 0.1), stages, **options)
    names = list(dict.fromkeys(step.stage for step in told if step.stage))
    assert names == ["stage 1 of 2: pgd ce 3", "stage 2 of 2: pgd tmifpe 6"]
    assert [step.steps for step in told] == sorted(step.steps for step in told)
    assert told[-1].steps == found.tally.forwards
    assert told[-1].left == 0
    assert told[0].left <= 8 * (4 + 7), "no more than the budget"
    assert all(one.bounds[0] >= other.bounds[0] for other, one in itertools.pairwise(told))
    assert all(one.bounds[1] <= other.bounds[1] for other, one in itertools.pairwise(told))
    assert told[-1].bounds == (found.robust_accuracy, found.robust_accuracy)


def test_what_is_left_counts_down_to_the_end() -> None:
    """Nothing can be broken at eps 0, so that the budget is exact: every look takes one pass off what is left."""
    x = torch.rand(6, 1, 2, 2)
    told: list[Progress] = []
    labels = Line()(x).argmax(dim=1)
    tmifpe.evaluate(Line(), (x, labels), Threat("linf", 0.0), PGD(steps=9), checks=False, progress=told.append)
    left = [step.left for step in told]
    assert left == sorted(left, reverse=True)
    assert left[0] > 0
    assert left[-1] == 0


# --quiet.


def call(*words: str) -> Any:
    return CliRunner().invoke(app, [*words])


QUICK = ("--eps", "0.15", "--limit", "8", "--steps", "2", "--no-store", "--no-checks")


@pytest.mark.usefixtures("unchecked")
def test_quiet_silences_remarks_and_progress_only(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    monkeypatch.setattr(live, "_SELDOM", 0.0)
    adv = tmp_path / "adv.npz"
    words = ("evaluate", "digits-robust", *QUICK, "--attack", "paper", "--save-adv", str(adv))
    loud, quiet = call(*words), call(*words, "--quiet")
    assert f"wrote {adv}" in loud.stderr.replace("\n", "")
    assert "notice: --steps with --attack paper is one PGD" in loud.stderr
    assert "digits-robust: " in loud.stderr
    assert quiet.stderr == ""
    assert "robust accuracy" in quiet.stdout
    assert quiet.stdout.partition("cost")[0] == loud.stdout.partition("cost")[0]
    wrong = call("evaluate", "digits-robbust", *QUICK, "-q")
    assert wrong.exit_code == 2
    assert "did you mean" in wrong.stderr
    missed = call("evaluate", "digits-robust", *QUICK, "-q", "--fail-below", "0.99")
    assert missed.exit_code == 1
    assert "is required" in missed.stderr


VERBS = ("evaluate", "compare", "curve", "verify", "audit", "run", "demo", "table1", "table-targeted")


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_that_computes_can_be_quiet(verb: str) -> None:
    assert "--quiet" in call(verb, "--help").stdout


@pytest.mark.usefixtures("unchecked")
def test_compare_says_which_loss_it_is_at(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "_SELDOM", 0.0)
    said = call("compare", "digits-robust", *QUICK, "--losses", "ce,tmifpe").stderr
    assert "digits-robust, ce (1 of 2): " in said
    assert "digits-robust, tmifpe (2 of 2): " in said
