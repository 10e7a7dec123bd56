"""Code of a user's that fails while data is read: one sentence with file and line, and the exit code of a mistake."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch.utils.data import DataLoader, Dataset
from typer.testing import CliRunner

import tmifpe
from tmifpe import InputError, Threat
from tmifpe.cli import app
from tmifpe.data import as_data

SOURCE = """
import torch
from torch.utils.data import Dataset

class Late(Dataset):
    def __len__(self): return 20
    def __getitem__(self, k):
        if k > 4: raise RuntimeError("\\x1b[31mno disk\\nat all")
        return torch.rand(1, 8, 8), k % 10

class Quits(Dataset):
    def __len__(self): return 20
    def __getitem__(self, k): raise SystemExit(0)

class Own:
    name, identity, shape, classes, indices = "own", "x", (1, 8, 8), 10, range(20)
    def __len__(self): return 20
    def fetch(self, positions): raise ValueError("\\x1b[2J fetch failed")

def build(): raise OSError("\\x1b]0;title\\x07 build failed")
"""
SAID = {
    "Late": ("example 5 of Late failed: RuntimeError:", "no disk (source.py, line 8)"),
    "Quits": ("example 0 of Quits failed: SystemExit: 0", "(source.py, line 13)"),
    "Own": ("fetching from Own failed: ValueError:", "fetch failed (source.py, line 18)"),
    "build": ("source.py:build failed: OSError:", "build failed (source.py, line 20)"),
}


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("source.py").write_text(SOURCE)


@pytest.mark.parametrize("name", SAID)
def test_a_source_that_fails_is_a_mistake_said_in_one_line(name: str) -> None:
    words = ["evaluate", "digits-robust", "--data", f"source.py:{name}", "--attack", "fgsm", "--no-checks"]
    done = CliRunner().invoke(app, [*words, "--no-store", "--fail-below", "0.1", "--quiet"])
    assert done.exit_code == 2, done.exception
    assert done.stderr.startswith("error: ")
    assert done.stderr.count("\n") == 1
    assert all(said in done.stderr for said in SAID[name])
    assert done.stderr.strip().isprintable()


def test_in_python_the_cause_is_kept() -> None:
    class Pairs(Dataset[tuple[torch.Tensor, int]]):
        def __len__(self) -> int:
            return 3

        def __getitem__(self, k: int) -> tuple[torch.Tensor, int]:
            raise AttributeError("no such column")

    model, threat = tmifpe.load_model("digits-robust"), Threat("linf", 0.1)
    for data in (Pairs(), DataLoader(Pairs(), batch_size=2), DataLoader(Pairs(), batch_size=2, shuffle=True)):
        with pytest.raises(InputError, match=r"no such column \(test_failing_sources\.py, line") as seen:
            tmifpe.evaluate(model, data, threat, "fgsm", checks=False)
        assert isinstance(seen.value.__cause__, AttributeError)


def test_data_of_ones_own_keeps_its_attributes() -> None:
    class Own:
        name, identity, shape, classes, indices = "own", "x", (1, 8, 8), 10, range(5)

        def __len__(self) -> int:
            return 5

        def fetch(self, positions: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
            return torch.full((len(positions), 1, 8, 8), 0.5), torch.tensor(positions)

    data = as_data(Own())
    assert (len(data), data.name, data.classes, getattr(data, "files", None)) == (5, "own", 10, None)
    assert as_data(data) is data
    found = tmifpe.evaluate(tmifpe.load_model("digits-robust"), Own(), Threat("linf", 0.1), "fgsm", checks=False)
    assert len(found.outcomes) == 5


def test_a_bug_of_ours_is_no_missed_gate() -> None:
    code = "from tmifpe import cli\ndef boom(**_): raise KeyError('\\x1b[31mbug')\ncli.app = boom; cli.main()"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 70
    assert "KeyError" in done.stderr
    assert "\x1b" not in done.stderr
