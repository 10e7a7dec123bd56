"""What a user's editor knows: pyright reports a misspelt option, and accepts a right one."""

from __future__ import annotations

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


@pytest.fixture(scope="module")
def pyright() -> Path:
    if not PYRIGHT.exists() and shutil.which("pyright") is None:
        pytest.skip("pyright is not installed: make setup brings it")
    return PYRIGHT if PYRIGHT.exists() else Path("pyright")


def told(pyright: Path, folder: Path, **options: str) -> str:
    script = folder / "user.py"
    script.write_text(SCRIPT.format(**(RIGHT | options)), encoding="utf-8")
    (folder / "pyrightconfig.json").write_text(f'{{"extraPaths": ["{ROOT / "src"}"]}}', encoding="utf-8")
    words = [str(pyright), "--pythonpath", sys.executable, str(script)]
    return subprocess.run(words, cwd=folder, capture_output=True, text=True, timeout=300).stdout


def test_a_right_script_is_accepted(pyright, tmp_path):
    assert "0 errors" in told(pyright, tmp_path)


@pytest.mark.parametrize("verb", sorted(RIGHT))
def test_a_misspelt_option_is_reported(pyright, tmp_path, verb):
    assert 'No parameter named "limitt"' in told(pyright, tmp_path, **{verb: "limitt=4"})


def test_a_value_of_the_wrong_type_is_reported(pyright, tmp_path):
    assert "1 error" in told(pyright, tmp_path, evaluate='mode="verdikt"')
