"""Names from elsewhere in what people and programs read: tables, errors, HTML, XML, JSON, pictures, the terminal."""

from __future__ import annotations

import io
import os
import subprocess
import sys
import threading
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest
import torch
from hypothesis import strategies as st
from rich.console import Console

import tmifpe
from tests.fuzz.fuzzing import NASTY, fuzz, mix
from tests.fuzz.test_store import Tiny, examples
from tmifpe.cli.audit import audit_table
from tmifpe.cli.compare import comparison_table
from tmifpe.cli.console import harmless, plain, progress_on_stderr, result_table
from tmifpe.cli.parse import write_file
from tmifpe.core.errors import InputError
from tmifpe.evaluation.compare import Comparison
from tmifpe.report.broken import describe
from tmifpe.report.gates import Gates
from tmifpe.report.junit import junit_xml
from tmifpe.report.summary import summary
from tmifpe.run.result import Flag, Result
from tmifpe.run.shown.progress import Progress
from tmifpe.theory import analyse

NAMES = (
    st.sampled_from(NASTY)
    | st.text(max_size=15)
    | mix("[bold]x[/bold]", "[link=x]y[/link]", "a\\", "\\[", "[@click=f]")
)


@cache
def result() -> Result:
    return tmifpe.evaluate(Tiny(), examples(), tmifpe.Threat("linf", 0.2), tmifpe.PGD(steps=1), checks=False)


def named(name: str) -> Result:
    """A result whose every text is that name."""
    spec = replace(result().spec, model=name, data=name, targets=name, verify=name, mode=name, precision=name)
    return replace(result(), spec=spec, flags=(Flag(name, name, name),))


def rendered(thing: Any) -> str:
    """As on a terminal, 4000 columns wide, with colours; then without our own escape sequences."""
    screen = Console(
        file=io.StringIO(), force_terminal=True, width=4000, color_system="truecolor", legacy_windows=False
    )
    screen.print(thing)
    text = screen.file.getvalue()  # pyright: ignore[reportAttributeAccessIssue]
    plain_screen = Console(file=io.StringIO(), force_terminal=False, width=4000)
    plain_screen.print(thing)
    shown = plain_screen.file.getvalue()  # pyright: ignore[reportAttributeAccessIssue]
    assert "\x1b" not in shown  # what is left when rich adds none itself comes from a name
    assert text
    return shown


@fuzz(10, 60, name=NAMES)
def test_tables_show_names_as_they_are(name: str) -> None:
    short = harmless(name)[:12].replace("\\", "/")  # rich itself shows some backslashes twice, and others not
    for table in (result_table(named(short)), comparison_table(short, Comparison({short: (named(short),)}, (0,)))):
        assert short.strip() in rendered(table)
    found = replace(audited(), model=short, data=short)
    assert short.strip() in rendered(audit_table(found))
    assert rendered(plain(short)).strip() == short.strip()


@cache
def audited() -> Any:
    return tmifpe.audit(Tiny(), examples(), ["ce"], ["fp32"])


@fuzz(8, 150, name=NAMES)
def test_progress_takes_any_title(name: str) -> None:
    with progress_on_stderr(name) as told:
        told(Progress(4, 2, 1, 1))


@fuzz(25, 400, name=NAMES)
def test_junit_is_xml_whatever_the_names(name: str) -> None:
    tree = ET.fromstring(junit_xml(named(name), Gates(1.0)))
    assert tree.tag == "testsuite"
    assert [child.tag for child in tree] == ["properties", "testcase"]
    assert len(tree.findall(".//failure")) + len(tree.findall(".//system-out")) == 1
    assert describe(named(name))
    written = summary(named(name), Gates(1.0))
    assert len(written.splitlines()) == len(summary(named("x"), Gates(1.0)).splitlines())
    assert "<" not in written.replace(r"\<", "")


@fuzz(25, 400, text=NAMES)
def test_harmless_text_cannot_steer_a_terminal(text: str) -> None:
    shown = harmless(text)
    assert shown.isprintable()
    shown.encode()


def test_html_of_an_analysis_is_escaped() -> None:
    found = analyse([2.0, 1.0, 0.0], label=0)
    evil = replace(
        found, precision="<script>alert(1)</script>", choices=(replace(found.choices[0], rule="<img src=x>"),)
    )
    page = evil._repr_html_()
    assert "<script" not in page
    assert "<img" not in page
    assert "&lt;script&gt;" in page


@pytest.mark.parametrize("name", ["a$b$c", "$\\frac{$", "\\", "%", "é\x1b[31m"])
def test_pictures_take_any_name(name: str) -> None:
    pytest.importorskip("matplotlib")
    from tmifpe.report.audit_files import draw_audit

    draw_audit(replace(audited(), model=name, data=name), "x.png")
    assert Path("x.png").stat().st_size > 1000


def test_a_device_or_a_pipe_is_written_to_and_not_replaced() -> None:
    """As root, replacing /dev/null by a file of results would break the machine."""
    os.mkfifo("pipe")
    heard: list[bytes] = []
    listener = threading.Thread(target=lambda: heard.append(Path("pipe").read_bytes()))
    listener.start()
    write_file("pipe", b"rows")
    listener.join(10)
    assert heard == [b"rows"]
    assert Path("pipe").is_fifo()
    write_file(os.devnull, b"rows")
    assert not Path(os.devnull).is_file()


def test_a_file_is_complete_or_not_there() -> None:
    write_file("x.csv", b"rows")
    assert Path("x.csv").read_bytes() == b"rows"
    for bad in ("", ".", "..", "/", "x.csv/y", "no/such", "\0", "~nobody-of-that-name/x", "x" * 300):
        with pytest.raises(InputError, match="cannot write"):
            write_file(bad, b"rows")
    assert {path.name for path in Path().iterdir()} == {"x.csv"}


@pytest.mark.slow
@pytest.mark.parametrize("encoding", ["ascii", "cp1252"])
def test_a_terminal_of_another_encoding(encoding: str) -> None:
    """Characters that it cannot show become others, not a traceback."""
    code = "from tmifpe.cli import main; main()"
    for line in (["list", "models"], ["evaluate", "Δ\udcff.py:x"]):
        done = subprocess.run(
            [sys.executable, "-c", code, *line],
            env=os.environ | {"PYTHONIOENCODING": encoding, "OMP_NUM_THREADS": "1"},
            capture_output=True,
            timeout=600,
            check=False,
        )
        assert b"Traceback" not in done.stderr
        assert done.returncode in (0, 2)


def test_out_of_memory_is_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    from typer.testing import CliRunner

    from tmifpe.cli import app

    def full(*_: Any, **__: Any) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB.\nmore")

    monkeypatch.setattr(tmifpe, "evaluate", full, raising=False)
    found = CliRunner().invoke(app, ["evaluate", "digits-robust", "--limit", "2"])
    assert found.exit_code == 2
    assert "--batch-size" in found.stderr
    assert sum(bool(line.strip()) for line in found.stderr.splitlines()) == 1
