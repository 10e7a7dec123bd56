"""The verified accuracy equals what an independent script of twenty lines counts in the exported files."""

from __future__ import annotations

import re
import runpy
import shutil
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

import tmifpe
from tests.stores import environment
from tmifpe.cli.parse import write_file
from tmifpe.run.result import Result
from tmifpe.store.adversarial import adv_file

LINF = tmifpe.Threat("linf", 0.15)
SCRIPT = Path(__file__).resolve().parent.parent / "benchmarks" / "recount.py"


def words(folder: Path, threat: tmifpe.Threat) -> list[str]:
    files = [folder / name for name in ("model.pt2", "adv.safetensors", "clean.safetensors")]
    return [str(word) for word in (SCRIPT, *files, threat.norm, threat.eps)]


def numbers(said: str) -> list[int]:
    """Robust, of how many, outside the threat, claimed broken but classified correctly."""
    return [int(number) for number in re.findall(r"\d+", said)]


@pytest.fixture
def count(monkeypatch, capsys) -> Callable[[Path, tmifpe.Threat], list[int]]:
    """What the script says, run in this process: in one of its own it imports torch for seconds."""

    def run(folder: Path, threat: tmifpe.Threat) -> list[int]:
        monkeypatch.setattr(sys, "argv", words(folder, threat))
        capsys.readouterr()
        runpy.run_path(str(SCRIPT), run_name="__main__")
        return numbers(capsys.readouterr().out)

    return run


def exported(model, data, threat: tmifpe.Threat, folder: Path) -> Result:
    """Evaluate, and write what the script reads: the model, the adversarial examples, the clean images."""
    result = tmifpe.evaluate(model, data, threat, tmifpe.PGD(steps=10), keep_adv=True, checks=False)
    x, _ = data.fetch(range(len(data)))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of torch.export, about itself
        program = torch.export.export(model.module, (x[:2],), dynamic_shapes=({0: torch.export.Dim("n")},))
        torch.export.save(program, folder / "model.pt2")
    write_file(str(folder / "adv.safetensors"), adv_file(result))
    save_file({"x": x}, folder / "clean.safetensors")
    return result


@pytest.fixture(scope="module")
def robust(tmp_path_factory) -> tuple[Path, Result]:
    """The bundled robust model and what an attack on it found, in files."""
    folder = tmp_path_factory.mktemp("robust")
    return folder, exported(tmifpe.load_model("digits-robust"), tmifpe.load_data("digits"), LINF, folder)


def test_bundled_model_in_a_process_of_its_own(robust):
    folder, result = robust
    assert 0 < result.broken < result.n
    asked = {"env": environment(folder), "capture_output": True, "text": True, "check": False}
    counted = subprocess.run([sys.executable, *words(folder, LINF)], **asked)
    assert counted.returncode == 0, counted.stderr
    assert numbers(counted.stdout) == [result.robust, result.n, 0, 0]


@pytest.mark.parametrize(
    ("name", "norm", "eps"),
    [
        ("digits-distilled", "linf", 0.1),
        pytest.param("digits-robust", "l2", 0.8, marks=pytest.mark.slow),
    ],
)
def test_other_bundled_models(tmp_path, count, name, norm, eps):
    data, threat = tmifpe.load_data("digits"), tmifpe.Threat(norm, eps)
    result = exported(tmifpe.load_model(name), data, threat, tmp_path)
    assert 0 < result.broken < result.n
    assert count(tmp_path, threat) == [result.robust, result.n, 0, 0]


def test_mnist_fast(tmp_path, count, shared):
    model = tmifpe.load_model("mnist-fast", weights=shared / "models" / "mnist_fast_at.pth")
    data, threat = tmifpe.load_data(f"mnist:{shared / 'data' / 'mnist'}", limit=150), tmifpe.Threat("linf", 0.3)
    result = exported(model, data, threat, tmp_path)
    assert 0 < result.broken < result.n
    assert count(tmp_path, threat) == [result.robust, 150, 0, 0]


def test_the_script_can_say_no(robust, count, tmp_path):
    """Images that are outside the ball, or not misclassified, do not pass."""
    x, labels = tmifpe.load_data("digits", limit=50).fetch(range(50))
    forged = {"adv": torch.cat([1 - x[:20], x[20:]]), "labels": labels, "fooled": torch.ones(50, dtype=torch.bool)}
    save_file(forged, tmp_path / "adv.safetensors")
    save_file({"x": x}, tmp_path / "clean.safetensors")
    shutil.copy(robust[0] / "model.pt2", tmp_path)
    _, _, outside, unbroken = count(tmp_path, LINF)
    assert outside == 20
    assert unbroken > 20, "the clean images at the end are no adversarial examples"


def test_the_script_is_short_and_independent():
    text = SCRIPT.read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 20
    assert set(re.findall(r"^(?:import|from) (\w+)", text, re.MULTILINE)) == {"sys", "torch", "safetensors"}
