"""Gates for a CI: what a result must reach, and reports that are written whatever happens."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest
import torch
from torch import nn
from typer.testing import CliRunner

import tmifpe
from tmifpe.cli import app
from tmifpe.report.gates import Gates
from tmifpe.report.summary import summary
from tmifpe.testing import assert_robust

QUICK = ["evaluate", "digits-robust", "--eps", "0.15", "--limit", "24", "--steps", "3", "--no-store"]
THREAT = tmifpe.Threat("linf", 0.05)


def call(*words: str, code: int) -> Any:
    result = CliRunner().invoke(app, list(words))
    assert result.exit_code == code, (result.output, result.stderr, result.exception)
    return result


def constant() -> nn.Module:
    """Always class 0: robust as nothing else, and right in one of ten cases."""
    model = nn.Linear(64, 10)
    nn.init.zeros_(model.weight)
    with torch.no_grad():
        model.bias.copy_(torch.arange(10.0).flip(0))
    return nn.Sequential(nn.Flatten(), model)


@pytest.mark.usefixtures("not_led_in")
def test_a_model_that_guesses_does_not_pass_a_low_gate() -> None:
    data = tmifpe.load_data("digits", limit=100)
    found = tmifpe.evaluate(constant(), data, THREAT, tmifpe.PGD(steps=1))
    assert 0.05 <= found.robust_accuracy <= 0.15
    with pytest.raises(AssertionError, match="no better than guessing"):
        assert_robust(constant(), data, THREAT, at_least=0.05, attack=tmifpe.PGD(steps=1))
    assert [case.name for case in Gates(0.05).missed(found)] == ["better than guessing"]
    assert not Gates().missed(found), "nothing was asked"


@pytest.mark.usefixtures("not_led_in")
def test_gates_on_clean_accuracy_interval_and_flags() -> None:
    model, data = tmifpe.load_model("digits-robust"), tmifpe.load_data("digits", limit=24)
    options: dict[str, Any] = {"attack": tmifpe.PGD(steps=3)}
    result = assert_robust(model, data, THREAT, 0.1, clean_at_least=0.5, lower_at_least=0.1, **options)
    low, value = result.interval[0], result.robust_accuracy
    between = (low + value) / 2
    assert not Gates(between).missed(result)
    with pytest.raises(AssertionError, match="lower end of the 95 % interval"):
        assert_robust(model, data, THREAT, 0.1, lower_at_least=between, **options)
    with pytest.raises(AssertionError, match=r"clean accuracy .* at least 100.00% is required"):
        assert_robust(
            tmifpe.load_model("digits-robust"), _mislabelled(data), THREAT, 0.1, clean_at_least=1.0, **options
        )
    with pytest.raises(AssertionError, match="large-eps"):
        assert_robust(model, data, tmifpe.Threat("linf", 0.9), 0.0, strict=True, **options)
    assert_robust(model, data, tmifpe.Threat("linf", 0.9), 0.0, **options)
    with pytest.raises(tmifpe.InputError, match="leave one of them out"):
        assert_robust(model, data, THREAT, 0.1, strict=True, checks=False, **options)


def _mislabelled(data: tmifpe.Data) -> tuple[torch.Tensor, torch.Tensor]:
    images, labels = data.fetch(range(24))
    return images, torch.cat([(labels[:1] + 1) % 10, labels[1:]])


@pytest.mark.usefixtures("not_led_in")
def test_gates_of_the_command_line(tmp_path: Path) -> None:
    report, text = tmp_path / "report.xml", tmp_path / "summary.md"
    files = ["--junit", str(report), "--summary", str(text)]
    call(*QUICK, *files, "--fail-below", "0.01", "--fail-below-clean", "0.5", "--fail-below-lower", "0.01", code=0)
    suite = ET.parse(report).getroot()
    assert (suite.get("tests"), suite.get("failures"), suite.get("errors")) == ("3", "0", "0")
    assert text.read_text().startswith("### Passed: digits-robust on digits")
    told = call(*QUICK, *files, "--fail-below-lower", "0.999", code=1)
    assert "lower end of the 95 % interval" in told.stderr
    assert ET.parse(report).getroot().get("failures") == "1"
    assert text.read_text().startswith("### Failed")
    assert "**missed**: lower end of the 95 % interval" in text.read_text()
    assert "90 % is 0.9" in call(*QUICK, "--fail-below-clean", "90", code=2).stderr


def test_reports_are_written_when_the_run_fails(tmp_path: Path) -> None:
    report, text = tmp_path / "report.xml", tmp_path / "summary.md"
    (tmp_path / "m.py").write_text("def make():\n    raise RuntimeError('out of <cheese>')\n")
    call("evaluate", f"{tmp_path}/m.py:make", "--junit", str(report), "--summary", str(text), code=2)
    suite = ET.parse(report).getroot()
    assert (suite.get("tests"), suite.get("failures"), suite.get("errors")) == ("1", "0", "1")
    error = suite.find("testcase/error")
    assert error is not None
    assert "out of <cheese>" in error.get("message", "")
    assert text.read_text().startswith("### Error: ")
    assert r"out of \<cheese\>" in text.read_text()


def test_names_in_a_summary_are_text() -> None:
    result = tmifpe.evaluate(constant(), tmifpe.load_data("digits", limit=4), THREAT, tmifpe.PGD(steps=1), checks=False)
    name = "<b>*x*</b>|\n# [a](b)"
    written = summary(replace(result, spec=replace(result.spec, model=name)))
    quick = tmifpe.evaluate(constant(), tmifpe.load_data("digits", limit=4), THREAT, "quick", checks=False)
    assert "| attack | quick |" in summary(quick)
    assert r"### Passed: \<b\>\*x\*\</b\>\| \# \[a\](b) on digits" in written
