"""The verified accuracy equals what an independent script of twenty lines counts in the exported files."""

from __future__ import annotations

import re
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

import tmifpe
from tests.stores import environment
from tmifpe.cli.sources import write_file
from tmifpe.evaluation.store.export import adv_file

SCRIPT = Path(__file__).resolve().parent.parent / "benchmarks" / "recount.py"


def recount(model, data, threat, folder: Path, n: int):
    """Export model, images and adversarial examples, and let the script count; also what the evaluation says."""
    result = tmifpe.evaluate(model, data, threat, tmifpe.PGD(steps=10), keep_adv=True, checks=False)
    x, _ = data.fetch(range(n))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of torch.export, about itself
        exported = torch.export.export(model.module, (x[:2],), dynamic_shapes=({0: torch.export.Dim("n")},))
        torch.export.save(exported, folder / "model.pt2")
    write_file(str(folder / "adv.safetensors"), adv_file(result))
    save_file({"x": x}, folder / "clean.safetensors")
    files = [str(folder / name) for name in ("model.pt2", "adv.safetensors", "clean.safetensors")]
    counted = subprocess.run(
        [sys.executable, SCRIPT, *files, threat.norm, str(threat.eps)],
        env=environment(folder),
        capture_output=True,
        text=True,
        check=False,
    )
    assert counted.returncode == 0, counted.stderr
    return result, [int(number) for number in re.findall(r"\d+", counted.stdout)]


@pytest.mark.parametrize(
    ("name", "norm", "eps"),
    [("digits-robust", "linf", 0.15), ("digits-robust", "l2", 0.8), ("digits-distilled", "linf", 0.1)],
)
def test_bundled_models(tmp_path, name, norm, eps):
    model, data = tmifpe.load_model(name), tmifpe.load_data("digits")
    result, counts = recount(model, data, tmifpe.Threat(norm, eps), tmp_path, len(data))
    assert counts == [result.robust, result.n, 0, 0]
    assert 0 < result.broken < result.n


def test_mnist_fast(tmp_path, shared):
    model = tmifpe.load_model("mnist-fast", weights=shared / "models" / "mnist_fast_at.pth")
    data = tmifpe.load_data(f"mnist:{shared / 'data' / 'mnist'}", limit=1000)
    result, counts = recount(model, data, tmifpe.Threat("linf", 0.3), tmp_path, 1000)
    assert counts == [result.robust, 1000, 0, 0]
    assert result.broken > 0


def test_the_script_can_say_no(tmp_path):
    """Images that are outside the ball, or not misclassified, do not pass."""
    model, data = tmifpe.load_model("digits-robust"), tmifpe.load_data("digits", limit=50)
    result, counts = recount(model, data, tmifpe.Threat("linf", 0.15), tmp_path, 50)
    assert counts == [result.robust, 50, 0, 0]
    x, labels = data.fetch(range(50))
    forged = {"adv": torch.cat([1 - x[:20], x[20:]]), "labels": labels, "fooled": torch.ones(50, dtype=torch.bool)}
    save_file(forged, tmp_path / "adv.safetensors")
    files = [str(tmp_path / name) for name in ("model.pt2", "adv.safetensors", "clean.safetensors")]
    done = subprocess.run([sys.executable, SCRIPT, *files, "linf", "0.15"], capture_output=True, text=True, check=True)
    _, _, outside, unbroken = (int(number) for number in re.findall(r"\d+", done.stdout))
    assert outside == 20
    assert unbroken > 20, "the clean images at the end are no adversarial examples"


def test_the_script_is_short_and_independent():
    text = SCRIPT.read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 20
    assert set(re.findall(r"^(?:import|from) (\w+)", text, re.MULTILINE)) == {"sys", "torch", "safetensors"}
