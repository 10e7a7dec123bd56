"""What a user's editor knows: pyright reports a misspelt option, and accepts a right one."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PYRIGHT = Path(sys.executable).with_name("pyright")

SCRIPT = """\
import torch
import tmifpe
from tmifpe.testing import assert_robust

model = torch.nn.Linear(4, 3)
data = (torch.rand(8, 4), torch.zeros(8, dtype=torch.long))
threat = tmifpe.Threat("linf", 0.1)
tmifpe.evaluate(model, data, threat, "ce", {evaluate}, seed=1)
tmifpe.compare(model, data, threat, ["ce"], {compare}, seeds=(0, 1))
assert_robust(model, data, threat, 0.4, {assert_robust})
"""
RIGHT = {"evaluate": "limit=4", "compare": "batch_size=2", "assert_robust": "limit=4"}
SCRIPTS = {
    "right": {},
    "wrong_type": {"evaluate": 'mode="verdikt"'},
    **{f"misspelt_{verb}": {verb: "limitt=4"} for verb in RIGHT},
}


@pytest.fixture(scope="module")
def pyright() -> Path:
    if not PYRIGHT.exists() and shutil.which("pyright") is None:
        pytest.skip("pyright is not installed: make setup brings it")
    return PYRIGHT if PYRIGHT.exists() else Path("pyright")


@pytest.fixture(scope="module")
def told(pyright: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    """The errors in each script. One call for all of them: most of its time goes into reading torch."""
    folder = tmp_path_factory.mktemp("scripts")
    for name, options in SCRIPTS.items():
        (folder / f"{name}.py").write_text(SCRIPT.format(**(RIGHT | options)), encoding="utf-8")
    (folder / "pyrightconfig.json").write_text(f'{{"extraPaths": ["{ROOT / "src"}"]}}', encoding="utf-8")
    words = [str(pyright), "--pythonpath", sys.executable, "--outputjson", *(f"{name}.py" for name in SCRIPTS)]
    said = json.loads(subprocess.run(words, cwd=folder, capture_output=True, text=True, timeout=300).stdout)
    assert said["summary"]["filesAnalyzed"] == len(SCRIPTS)
    found: dict[str, list[str]] = {name: [] for name in SCRIPTS}
    for each in said["generalDiagnostics"]:
        found[Path(each["file"]).stem] += [each["message"]] if each["severity"] == "error" else []
    return found


def test_a_right_script_is_accepted(told):
    assert told["right"] == []


@pytest.mark.parametrize("verb", sorted(RIGHT))
def test_a_misspelt_option_is_reported(told, verb):
    assert any('No parameter named "limitt"' in error for error in told[f"misspelt_{verb}"])


def test_a_value_of_the_wrong_type_is_reported(told):
    assert len(told["wrong_type"]) == 1
