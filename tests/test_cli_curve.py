"""`tmifpe curve`, and lists of radii, on the command line."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from tmifpe.cli import app

DIGITS = ["digits-robust", "--data", "digits", "--limit", "6", "--no-checks"]


@pytest.fixture(autouse=True)
def _own_store(tmp_path, monkeypatch):
    monkeypatch.setenv("TMIFPE_STORE", str(tmp_path / "store"))


def call(*words: str, code: int = 0):
    result = CliRunner().invoke(app, list(words))
    assert result.exit_code == code, (result.output, result.stderr, result.exception)
    return result


def test_curve_as_table_json_csv_and_figure(tmp_path):
    told = ["curve", *DIGITS, "--to", "0.3", "--at", "0.1,51/255", "--resolution", "0.02"]
    found = json.loads(call(*told, "--json", "--csv", str(tmp_path / "c.csv")).stdout)
    assert [one["eps"] for one in found["at"]] == [0.1, 0.2]
    assert found["to"] == 0.3
    assert len(found["curve"]) == 257
    assert len(found["brackets"]) == found["n"] == 6
    assert (tmp_path / "c.csv").read_text().startswith("eps,robust_accuracy,low,high\n0.0,")
    again = call(*told, "--figure", str(tmp_path / "c.png"))
    assert "Half of the 6 examples" in " ".join(again.stdout.split())
    assert (tmp_path / "c.png").stat().st_size > 5000
    listed = call("runs", "list").stdout
    assert "bracket" in listed


def test_lists_of_radii():
    words = ["--eps", "0.2,0.05,0.1", "--steps", "5"]
    found = json.loads(call("evaluate", *DIGITS, *words, "--json").stdout)
    assert found["eps"] == 0.2
    assert [one["eps"] for one in found["radii"]] == [0.05, 0.1, 0.2]
    assert "at eps 0.05" in call("evaluate", *DIGITS, *words).stdout
    assert "at 0.05" in call("compare", *DIGITS, *words, "--losses", "ce,tmifpe").stdout


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["curve", *DIGITS], "--to"),
        (["curve", *DIGITS, "--to", "0"], "above 0"),
        (["curve", *DIGITS, "--to", "many"], "must be a number"),
        (["curve", *DIGITS, "--to", "0.3", "--at", "0.5"], "from 0 to 0.3"),
        (["curve", *DIGITS, "--to", "0.3", "--at", "0.1,,0.2"], "must be a number"),
        (["curve", *DIGITS, "--to", "0.3", "--resolution", "-1"], "resolution"),
        (["curve", *DIGITS, "--to", "9e9"], "far beyond the box"),
        (["curve", *DIGITS, "--to", "0.3", "--figure", "x.txt"], "a figure is"),
        (["curve", *DIGITS, "--to", "0.3", "--norm", "l2", "--certify"], "certificates are for the norm linf"),
        (["curve", *DIGITS, "--to", "0.3", "--attack", "full"], "--attack"),
        (["evaluate", *DIGITS, "--eps", "0.1,"], "must be a number"),
        (["evaluate", *DIGITS, "--eps", "0.1,-0.2"], "radii"),
    ],
)
def test_mistakes_are_one_sentence(words, said):
    result = call(*words, code=2)
    assert said in " ".join(result.stderr.split())
    assert "Traceback" not in result.stderr
