"""The targeted table: success rates per loss and target, on the same examples."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

import tmifpe
from tmifpe import PGD, Threat
from tmifpe.cli import app

pytestmark = pytest.mark.usefixtures("unchecked")

WORDS = ["table-targeted", "digits-robust", "--eps", "0.2", "--limit", "24", "--steps", "5", "--no-store"]


def call(*words: str) -> str:
    result = CliRunner().invoke(app, [*WORDS, *words])
    assert result.exit_code == 0, result.output
    return result.stdout


def test_rows_are_models_times_targets():
    plain = json.loads(call("digits-distilled", "--losses", "gama,tmifpe", "--json"))
    assert {"command", "version"} <= set(plain)
    found = [(row["model"], row["targets"]) for row in plain["rows"]]
    models = ["digits-robust", "digits-distilled"]
    assert found == [(model, rule) for model in models for rule in ("least-likely", "second", "random")]
    for row in plain["rows"]:
        assert list(row["losses"]) == ["gama", "tmifpe"]
        for column in row["losses"].values():
            assert column["success_rate"] == pytest.approx(column["broken"] / row["attacked"])
            assert column["interval"][0] <= column["success_rate"] <= column["interval"][1]
        assert len(row["pairs"]) == 1
    rates = [row["losses"]["tmifpe"]["success_rate"] for row in plain["rows"][:3]]
    assert rates[0] < rates[1], "the second likeliest class is easier to reach than the least likely one"


def test_numbers_are_those_of_evaluate():
    row = json.loads(call("--losses", "cw", "--targets", "second", "--json"))["rows"][0]
    model, data = tmifpe.load_model("digits-robust"), tmifpe.load_data("digits", limit=24)
    alone = tmifpe.evaluate(model, data, Threat("linf", 0.2), PGD(loss="cw", steps=5), targets="second")
    assert row["losses"]["cw"]["success_rate"] == alone.success_rate
    assert row["losses"]["cw"]["broken"] == alone.broken > 0


def test_markdown_and_terminal():
    text = call("--losses", "ce,tmifpe", "--targets", "second,3", "--markdown")
    assert "| digits-robust | second |" in text
    assert "| digits-robust | 3 |" in text
    table = call("--losses", "ce,tmifpe", "--targets", "second")
    assert "tmifpe" in table
    for shown in (text, " ".join(table.split())):
        assert "* the highest of the row" in shown


@pytest.mark.parametrize(
    "words", [["--targets", "secnd"], ["--weights", "a", "--weights", "b"], ["--losses", "autoattack"]]
)
def test_mistakes_are_one_sentence(words):
    result = CliRunner().invoke(app, [*WORDS, *words])
    assert result.exit_code == 2
    assert "Traceback" not in result.output
