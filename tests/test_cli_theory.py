"""The verbs figure1 and theory, in process."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from tmifpe.cli.figure1 import figure1
from tmifpe.cli.theory import read_logits, theory
from tmifpe.core.errors import InputError

CLEAN = "2.5,-1.3,0.8,3.8,-0.9,1.7,-2.1,3.6,0.4,-1.5"


def run(*words: str) -> Any:
    app = typer.Typer()
    app.command("figure1")(figure1)
    # A row of logits may start with a minus sign, which must not be taken for an option.
    app.command("theory", context_settings={"ignore_unknown_options": True})(theory)
    return CliRunner().invoke(app, words)


def test_theory_prints_tables() -> None:
    result = run("theory", CLEAN, "--label", "3")
    assert result.exit_code == 0
    for word in ("u_u", "1.27364730521", "one-step", "delta_sup", "gradient", "a_k"):
        assert word in result.stdout


def test_theory_json_is_one_object() -> None:
    result = run("theory", CLEAN, "--label", "3", "--target", "1", "--precision", "fp16", "--json")
    values = json.loads(result.stdout)
    assert values["scenario"] == "t_u"
    assert (values["t_star"], values["rank"]) == (1.0, 8)
    assert sum(values["gradient"]) == pytest.approx(0.0, abs=1e-12)


@pytest.mark.parametrize("order", [("-1.3,2.5,-.8", "--label", "1"), ("--label", "1", "--", "-1.3,2.5,-.8")])
def test_logits_may_start_with_a_minus(order: tuple[str, ...]) -> None:
    result = run("theory", "--json", *order)
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["logits"] == [-1.3, 2.5, -0.8]


def test_logits_from_a_file_and_a_plot(tmp_path: Path) -> None:
    file, picture = tmp_path / "z.txt", tmp_path / "z.svg"
    file.write_text("[0, -1,\n" + " ".join(["-5.887"] * 12) + "]\n")
    result = run("theory", str(file), "--label", "0", "--plot", str(picture))
    assert result.exit_code == 0, result.output
    assert "local maxima of g" in result.stdout
    assert picture.read_text().startswith("<?xml")


def test_two_classes() -> None:
    assert "1.27846454276" in run("theory", "7,3", "--label", "0").stdout


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("1,x,3", "--label", "0"), "'x' is not a number"),
        (("nowhere.txt", "--label", "0"), "no file has that name"),
        (("1,2",), "needs logits and --label"),
        (("1", "--label", "0"), "at least two"),
        (("1,2", "--label", "5"), "out of range"),
        (("1,inf", "--label", "0"), "finite"),
        (("-inf,1", "--label", "0"), "finite"),
        (("1,2", "--label", "0", "--precision", "fp23"), "did you mean 'fp32'"),
        (("1,2", "--label", "0", "--plot", "x.gif"), "one of the endings"),
    ],
)
def test_bad_input_is_an_input_error(words: tuple[str, ...], says: str) -> None:
    """The command line turns it into one sentence and exit 2."""
    result = run("theory", *words)
    assert isinstance(result.exception, InputError)
    assert says in str(result.exception)


@pytest.mark.parametrize("words", [("1,2", "--label", "x"), ("1,2", "3", "--label", "0")])
def test_usage_errors(words: tuple[str, ...]) -> None:
    assert run("theory", *words).exit_code == 2


def test_reading_logits(tmp_path: Path) -> None:
    assert read_logits("1 2;3,\t4") == [1.0, 2.0, 3.0, 4.0]
    assert read_logits("") == []
    binary = tmp_path / "b.bin"
    binary.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InputError, match="cannot read logits"):
        read_logits(str(binary))
    assert read_logits(",".join(["1.5"] * 3000)) == [1.5] * 3000


def test_figure1(tmp_path: Path) -> None:
    path = tmp_path / "f.png"
    result = run("figure1", "--out", str(path))
    assert result.exit_code == 0, result.output
    assert path.stat().st_size > 10_000
    assert "(a) u_u: t* = 1.273647, g = 1.393303" in result.stdout
    assert "(b) u_s: g only increases; t*: fp16 15.9122, bf16 88.1804, fp32 98.7885, fp64 712.073" in result.stdout


@pytest.mark.parametrize("extra", [(), ("--paper",)])
def test_figure1_json(extra: tuple[str, ...]) -> None:
    values = json.loads(run("figure1", "--json", *extra).stdout)
    assert values["paper"] == bool(extra)
    assert len(values["panels"]) == 4
