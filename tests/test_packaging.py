"""What is shipped, and how soon it answers: the wheel, the command without torch, completion, pins."""

from __future__ import annotations

import json
import os
import re
import runpy
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

import tmifpe
from tmifpe.attacks import ATTACKS
from tmifpe.checks.flags import FLAGS
from tmifpe.cli import listing
from tmifpe.data import DATA
from tmifpe.losses import LOSSES
from tmifpe.models import MODELS
from tmifpe.norms import NORMS
from tmifpe.version import __version__

ROOT = Path(__file__).resolve().parent.parent
SRC = Path(tmifpe.__file__).parent.parent

# Whatever a command imports beside the standard library, Typer and Rich fails at once.
BLOCKED = """
import sys
sys.modules |= dict.fromkeys(["torch", "numpy", "scipy", "sklearn", "safetensors", "jinja2", "matplotlib"])
"""


def python(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join([str(SRC), os.environ.get("PYTHONPATH", "")])
    given = os.environ | {"PYTHONPATH": path, "COLUMNS": "200"} | environment
    return subprocess.run([sys.executable, *words], env=given, capture_output=True, text=True, timeout=120)


# The command, without torch.


def test_every_help_and_every_list_does_without_torch():
    walk = """
from typer.main import get_command
from tmifpe.cli import app

def commands(group, words):
    yield words
    for name, one in getattr(group, "commands", {}).items():
        yield from commands(one, [*words, name])

command = get_command(app)
called = [[*words, "--help"] for words in commands(command, [])] + [["list", kind] for kind in KINDS]
for words in called:
    try:
        command(words)
    except SystemExit as ended:
        assert not ended.code, words
print("called", len(called))
"""
    said = python("-c", f"{BLOCKED}\nKINDS = {list(listing.KINDS)}\n{walk}")
    assert said.returncode == 0, said.stderr
    called = int(said.stdout.rpartition("called ")[2])
    assert called > 25 + len(listing.KINDS)
    assert said.stdout.count("Usage: ") == called - len(listing.KINDS)


@pytest.mark.parametrize(
    ("kind", "registry"),
    [
        ("losses", LOSSES),
        ("norms", NORMS),
        ("attacks", ATTACKS),
        ("models", MODELS),
        ("data", DATA),
        ("flags", FLAGS),
    ],
)
def test_the_list_is_what_there_is(kind, registry):
    shown = listing.read_catalogue(kind)
    assert shown is not registry
    own = [name for name in registry if registry.summary(name) and name in shown]
    assert list(shown) == own
    assert all(shown.summary(name) == registry.summary(name) for name in own)


def test_python_m_is_the_command():
    assert python("-m", "tmifpe", "--help").stdout.startswith("Usage: tmifpe ")
    wrong = python("-m", "tmifpe", "list", "loses")
    assert (wrong.returncode, "did you mean 'losses'" in wrong.stderr) == (2, True)


# Completion.


@pytest.mark.parametrize(
    ("typed", "wanted"),
    [
        ("tmifpe evaluate digits-", {"digits-robust", "digits-distilled"}),
        ("tmifpe compare digits-robust --losses ce,tmi", {"ce,tmifpe", "ce,tmifpe-naive"}),
    ],
)
def test_the_shell_completes_names(typed, wanted):
    code = f"{BLOCKED}\nsys.argv = ['tmifpe']\nfrom tmifpe.cli import main\nmain()"
    words = {"COMP_WORDS": typed, "COMP_CWORD": str(len(typed.split()) - 1)}
    assert set(python("-c", code, _TMIFPE_COMPLETE="complete_bash", **words).stdout.split()) == wanted


def test_completers_know_every_kind():
    def completed(complete, text):
        return {name for name, _ in complete(text)}

    assert completed(listing.complete_models, "digits-r") == {"digits-robust"}
    assert completed(listing.complete_data, "cifar") == {"cifar10", "cifar100"}
    assert completed(listing.complete_norms, "l") == {"linf", "l2", "l1"}
    assert completed(listing.complete_losses, "mi") == {"mifpe"}
    assert completed(listing.complete_attacks, "ce+ga") == {"ce+gama"}
    assert completed(listing.complete_attacks, "pgd(loss=ce,steps=5),dl") == {"pgd(loss=ce,steps=5),dlr"}
    assert completed(listing.complete_models, "my_model.py") == set()  # the shell then offers files


def test_the_script_for_the_shell_is_the_commands():
    said = python("-m", "tmifpe", "--show-completion", "bash", _TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION="1")
    assert "_TMIFPE_COMPLETE=complete_bash" in said.stdout
    assert re.search(r"complete -o default -F \w+ tmifpe$", said.stdout.strip())


# What is shipped.


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("hatchling", reason="hatchling is not installed: make setup brings it")
    folder = tmp_path_factory.mktemp("dist")
    said = subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-d", str(folder)], cwd=ROOT, capture_output=True, text=True
    )
    assert said.returncode == 0, said.stderr
    return folder


def test_the_wheel_holds_the_package_and_nothing_else(built):
    (wheel,) = built.glob("*.whl")
    with zipfile.ZipFile(wheel) as file:
        names = {name for name in file.namelist() if ".dist-info/" not in name}
        about = {Path(name).name: file.read(name).decode() for name in file.namelist() if ".dist-info/" in name}
    there = {path.relative_to(SRC).as_posix() for path in (ROOT / "src" / "tmifpe").rglob("*") if path.is_file()}
    assert names == {name for name in there if "__pycache__" not in name}
    assert {
        "tmifpe/py.typed",
        "tmifpe/paper/table1.json",
        "tmifpe/models/weights/digits-robust.safetensors",
        "tmifpe/models/weights/digits-distilled.safetensors",
        "tmifpe/report/templates/report.html",
        "tmifpe/report/templates/theory.js",
    } <= names
    assert wheel.name == f"tmifpe-{__version__}-py3-none-any.whl"
    assert wheel.stat().st_size < 2e6
    assert "tmifpe = tmifpe.cli:main" in about["entry_points.txt"]
    assert "Requires-Python: >=3.10" in about["METADATA"]
    assert "LICENSE" in about


def test_the_sdist_builds_itself_again_and_carries_no_weights_but_ours(built):
    (sdist,) = built.glob("*.tar.gz")
    with tarfile.open(sdist) as file:
        names = {name.partition("/")[2] for name in file.getnames()}
    assert {"pyproject.toml", "README.md", "LICENSE", "src/tmifpe/py.typed", "tests/test_packaging.py"} <= names
    weights = {name for name in names if re.search(r"\.(pt|pth|pt2|onnx|npz|gz|pkl|safetensors)$", name)}
    assert {
        name for name in weights if not name.startswith(("src/tmifpe/models/weights/", "tests/old_stores/"))
    } == set()
    assert not [name for name in names if re.match(r"(\.venv|build|dist|demo|tmifpe-runs)/", name)]


# Pins.


def test_pins_say_which_pythons_they_are_for():
    pin = runpy.run_path(str(ROOT / "scripts" / "freeze_constraints.py"))["pin"]
    assert pin("a", "1.0+cpu", ">=3.9") == "a==1.0"
    assert pin("a", "1.0", ">=3.10.2") == "a==1.0"
    assert pin("a", "1.0", "<4,>=3.11") == 'a==1.0 ; python_version >= "3.11"'
    assert pin("a", "1.0", ">=3.11.0") == 'a==1.0 ; python_version >= "3.11"'
    assert pin("a", "1.0", ">=3.11.5") == 'a==1.0 ; python_full_version >= "3.11.5"'


def test_classifiers_name_the_pythons_that_ci_tests():
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    named = set(re.findall(r'"Programming Language :: Python :: (3\.\d+)"', text))
    matrix = re.search(r"python-version: (\[.*\])", (ROOT / ".github/workflows/ci.yml").read_text(encoding="utf-8"))
    assert matrix
    assert set(json.loads(matrix[1])) <= named
