"""`tmifpe doctor` finds what is broken, names it, and is not brought down by it."""

from __future__ import annotations

import errno
import json
import os
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Callable
from contextlib import closing
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import tmifpe
from tmifpe.cli import app
from tmifpe.doctor import self_test as known
from tmifpe.doctor.diagnosis import Diagnosis
from tmifpe.doctor.imports import import_problems
from tmifpe.doctor.packages import find_packages, requirements
from tmifpe.doctor.store_health import find_store

SRC = Path(tmifpe.__file__).parent.parent


def examined(*words: str) -> tuple[int, dict[tuple[str, str], dict[str, str]]]:
    """The exit code, and the diagnoses by what they are about."""
    said = CliRunner().invoke(app, ["doctor", "--json", *words])
    told = json.loads(said.stdout)
    assert told["well"] == (said.exit_code == 0)
    return said.exit_code, {(one["about"], one["name"]): one for one in told["diagnoses"]}


@pytest.fixture
def needs(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """tmifpe as if it needed these packages only: to import all of them takes twenty seconds."""

    def given(*lines: str) -> None:
        asked = metadata.requires
        monkeypatch.setattr(metadata, "requires", lambda name: list(lines) if name == "tmifpe" else asked(name))

    return given


def package(folder: Path, name: str, code: str, version: str = "") -> None:
    folder.mkdir(exist_ok=True)
    (folder / f"{name}.py").write_text(code, encoding="utf-8")
    if version:
        info = folder / f"{name}-{version}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n", encoding="utf-8")


# Packages.


def test_what_does_not_import_is_named_with_its_error(tmp_path, monkeypatch):
    package(tmp_path, "prints", "print('[1, 2]')")
    package(tmp_path, "needy", "import no_such_module")
    package(tmp_path, "raises", "raise OSError('built for another torch\\nand more')")
    package(tmp_path, "leaves", "raise SystemExit(3)")
    package(tmp_path, "dies", "import os; os._exit(7)")
    package(tmp_path, "after", "")
    monkeypatch.syspath_prepend(tmp_path)
    assert import_problems(["prints", "needy", "raises", "leaves", "dies", "after", "nowhere"]) == {
        "prints": "",
        "needy": "does not import: No module named 'no_such_module'",
        "raises": "does not import: OSError: built for another torch",
        "leaves": "does not import: SystemExit: 3",
        "dies": "ends the process that imports it (exit code 7)",
        "after": "",
        "nowhere": "is not installed",
    }


def test_what_hangs_is_named(tmp_path, monkeypatch):
    package(tmp_path, "hangs", "import threading; threading.Event().wait()")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr("tmifpe.doctor.imports.SECONDS", 3.0)
    assert import_problems(["hangs"]) == {"hangs": "does not import within 3 s"}


def test_an_extra_is_ok_absent_or_broken(tmp_path, monkeypatch, needs):
    package(tmp_path, "good", "", "2.10")
    package(tmp_path, "old", "", "2.9.1rc1")
    package(tmp_path, "bad", "1 / 0", "1.0")
    package(tmp_path, "unlisted", "")  # importable, without metadata
    (tmp_path / "gone-1.0.dist-info").mkdir()
    (tmp_path / "gone-1.0.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: gone\nVersion: 1.0\n")
    monkeypatch.syspath_prepend(tmp_path)
    extras = {
        "well": ["good>=2.9", "unlisted"],
        "missing": ["good", "nowhere>=1"],
        "worn": ["old>=2.10"],
        "crashing": ["bad", "nowhere>=1"],
        "hollow": ["gone"],
        "all": ["bad"],  # made of the others, which say it better
    }
    needs("good", "nowhere", *(f'{one}; extra == "{extra}"' for extra, asked in extras.items() for one in asked))
    found = {(one.about, one.name): one for one in find_packages()}
    assert {name: one.state for name, one in found.items()} == {
        ("package", "good"): "ok",
        ("package", "nowhere"): "broken",
        ("extra", "well"): "ok",
        ("extra", "missing"): "absent",
        ("extra", "worn"): "broken",
        ("extra", "crashing"): "broken",
        ("extra", "hollow"): "broken",
    }
    assert found["extra", "well"].told == "good 2.10, unlisted"
    assert "pip install 'tmifpe[missing]'" in found["extra", "missing"].told
    assert found["extra", "worn"].told == "old is older than 2.10, which tmifpe needs"
    assert found["extra", "crashing"].told == "bad does not import: ZeroDivisionError: division by zero"
    assert found["extra", "hollow"].told == "gone 1.0 is installed, but has no module gone"


def test_what_tmifpe_itself_asks_for_is_understood():
    lines = metadata.requires("tmifpe") or []
    found = requirements(lines)
    assert {one.extra for one in found} >= {"", "plots", "onnx", "robustbench"}
    assert {"torch", "numpy"} <= {one.name for one in found if not one.extra}
    assert all(one.lowest for one in found if one.name != "setuptools")
    assert [one.module for one in found if one.name == "scikit-learn"] == ["sklearn"]


def test_without_torch_it_still_says_so(tmp_path, monkeypatch, needs):
    package(tmp_path, "torch", "raise ImportError('libcudart.so.12: cannot open shared object file')")
    monkeypatch.syspath_prepend(tmp_path)
    needs("torch>=2.2")
    code, found = examined("--store", str(tmp_path / "runs"))
    assert code == 1
    assert "libcudart" in found["package", "torch"]["told"]
    assert {found[about, ""]["state"] for about in ("device", "store", "self-test")} == {"not tried"}


@pytest.mark.numerical
@pytest.mark.convolutional
def test_a_broken_extra_is_found_and_all_else_is_well(tmp_path, monkeypatch, needs):
    package(tmp_path / "fake", "onnx", "raise ImportError('compiled for another Python')")
    monkeypatch.syspath_prepend(tmp_path / "fake")
    needs("rich>=13", 'onnx>=1.15; extra == "onnx"')
    code, found = examined("--store", str(tmp_path / "runs"))
    assert code == 1
    assert [name for name, one in found.items() if one["state"] == "broken"] == [("extra", "onnx")]
    assert "compiled for another Python" in found["extra", "onnx"]["told"]
    assert found["self-test", "digits-robust"]["state"] == "ok"
    assert not (tmp_path / "runs").exists()
    needs("rich>=13", 'nowhere>=1; extra == "other"')
    monkeypatch.setattr("tmifpe.doctor.examine.self_test", lambda: Diagnosis("self-test", "", "ok"))
    said = CliRunner().invoke(app, ["doctor", "--store", str(tmp_path / "runs")])
    assert said.exit_code == 0
    assert "absent    other" in said.stdout
    assert said.stdout.endswith("All is well.\n")


@pytest.mark.slow
def test_the_whole_of_it_with_a_broken_package_first_on_the_path(tmp_path):
    package(tmp_path, "matplotlib", "raise ImportError('no Agg')")
    path = os.pathsep.join([str(tmp_path), str(SRC), os.environ.get("PYTHONPATH", "")])
    words = [sys.executable, "-m", "tmifpe", "doctor", "--json"]
    said = subprocess.run(words, cwd=tmp_path, env=os.environ | {"PYTHONPATH": path}, capture_output=True, text=True)
    assert said.returncode == 1, said.stderr
    found = {(one["about"], one["name"]): one for one in json.loads(said.stdout)["diagnoses"]}
    assert "matplotlib does not import: ImportError: no Agg" in found["extra", "plots"]["told"]
    # A package that draws by itself may need it, too; what tmifpe needs does not.
    assert {one["state"] for (about, _), one in found.items() if about in ("package", "store", "self-test")} == {"ok"}


# The self-test.


@pytest.mark.numerical
@pytest.mark.convolutional
@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"ROBUST": known.ROBUST[:-1], "BROKEN": (*known.BROKEN, known.ROBUST[-1])}, "wrong verdicts"),
        ({"EPS": 0.01}, "wrong verdicts"),
        ({"MODEL": "no-such-model"}, "InputError: unknown model"),
    ],
)
def test_the_self_test_can_fail(wrong: dict[str, Any], said: str, monkeypatch):
    for name, value in wrong.items():
        monkeypatch.setattr(known, name, value)
    found = known.self_test()
    assert found.state == "broken"
    assert found.told.startswith(said)


# The store.


def about_store(folder: Path) -> dict[str, Diagnosis]:
    return {one.name: one for one in find_store(str(folder))}


def test_a_store_that_is_well(tmp_path, stored):
    stored(tmp_path / "runs")
    before = {path: path.read_bytes() for path in (tmp_path / "runs").rglob("*") if path.is_file()}
    found = about_store(tmp_path / "runs")
    assert {one.state for one in found.values()} == {"ok"}
    assert found["database"].told == "sound, 1 run"
    assert {path: path.read_bytes() for path in before} == before
    with closing(sqlite3.connect(tmp_path / "runs" / "runs.sqlite", isolation_level=None)) as busy:
        busy.execute("BEGIN IMMEDIATE")
        found = about_store(tmp_path / "runs")
    assert found["writable"] == Diagnosis("store", "writable", "ok", "another process writes to it now")


def test_a_store_that_is_not_there_yet_is_not_made(tmp_path):
    found = about_store(tmp_path / "some" / "runs")
    assert {one.state for one in found.values()} == {"ok"}
    assert "none yet" in found["place"].told
    assert not list(tmp_path.iterdir())


def test_a_store_that_cannot_be_written(tmp_path, monkeypatch, needs, stored):
    """Permissions do not stop root, so that the system's answer is given by hand; a file in the way stops anybody."""
    (tmp_path / "file").write_text("in the way")
    for folder in (tmp_path / "file", tmp_path / "file" / "runs"):
        found = about_store(folder)["writable"]
        assert found.state == "broken", folder
        assert "is not a folder" in found.told
    stored(tmp_path / "runs")

    def refused(*_: object, **__: object) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(tempfile, "TemporaryFile", refused)
    for folder in (tmp_path / "runs", tmp_path / "later"):
        found = about_store(folder)["writable"]
        assert found.state == "broken"
        assert "cannot be written to" in found.told
    monkeypatch.undo()
    needs("rich>=13")
    monkeypatch.setattr("tmifpe.doctor.examine.self_test", lambda: Diagnosis("self-test", "", "ok"))
    code, found = examined("--store", str(tmp_path / "file"))
    assert code == 1
    assert [name for name, one in found.items() if one["state"] == "broken"] == [("store", "writable")]


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="permissions do not stop root")
def test_a_store_without_permission(tmp_path, stored):
    stored(tmp_path / "runs")
    (tmp_path / "runs").chmod(0o500)
    try:
        assert about_store(tmp_path / "runs")["writable"].state == "broken"
    finally:
        (tmp_path / "runs").chmod(0o700)


@pytest.mark.parametrize("damage", ["garbage", "other"])
def test_a_damaged_store(damage: str, tmp_path, stored):
    stored(tmp_path / "runs")
    path = tmp_path / "runs" / "runs.sqlite"
    if damage == "garbage":
        content = bytearray(path.read_bytes())
        content[4096:] = b"\xff" * (len(content) - 4096)
        path.write_bytes(content)
    else:
        path.unlink()
        with closing(sqlite3.connect(path)) as connection:
            connection.execute("CREATE TABLE mine (a)")
    found = about_store(tmp_path / "runs")["database"]
    assert found.state == "broken"
    assert ("tmifpe runs repair" if damage == "garbage" else "another program") in found.told
