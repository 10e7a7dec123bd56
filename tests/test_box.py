"""Images in any box: [-1, 1] and [0, 255] from the data to the exported files, as if it were [0, 1]."""

from __future__ import annotations

import io
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from typer.testing import CliRunner

import tmifpe
from tests.masked import Honest, images
from tmifpe import PGD, InputError, Threat, evaluate
from tmifpe.cli import app
from tmifpe.core.errors import MisfitError
from tmifpe.models.onnx_bytes import whole_steps
from tmifpe.store import Store
from tmifpe.store.export import robustbench_file

pytestmark = pytest.mark.usefixtures("unchecked")

BOXES = [(-1.0, 1.0), (0.0, 255.0)]


class Boxed(nn.Module):
    """The honest model for images in another box."""

    def __init__(self, low: float, high: float) -> None:
        super().__init__()
        self.inner, self.low, self.high = Honest(), low, high

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner((x - self.low) / (self.high - self.low))


def moved(low: float, high: float, n: int = 40) -> tuple[torch.Tensor, torch.Tensor]:
    x = images(n)
    return low + (high - low) * x, Honest()(x).argmax(dim=1)


@pytest.mark.checked
@pytest.mark.numerical
@pytest.mark.parametrize("norm", ["linf", "l2"])
@pytest.mark.parametrize("box", BOXES)
def test_any_box_gives_the_verdicts_of_the_usual_one(box, norm):
    low, high = box
    eps, width = (0.05 if norm == "linf" else 0.15), high - low
    plain = evaluate(Honest().double(), moved(0, 1), Threat(norm, eps), PGD(steps=10), keep_adv=True, checks=False)
    other = evaluate(
        Boxed(low, high).double(), moved(low, high), Threat(norm, eps * width, low, high), PGD(steps=10), keep_adv=True
    )
    assert 0 < plain.broken < plain.n
    # An example within rounding of the edge may fall either way; no two boxes round alike.
    differ = plain.outcomes.fooled != other.outcomes.fooled
    assert (np.abs(plain.outcomes.margin[differ]) < 1e-3).all()
    assert {flag.name for flag in other.flags} == set()
    assert float(other.adv.min()) >= low
    assert float(other.adv.max()) <= high
    assert other.to_json()["box"] == [low, high]
    assert f"[{low:g}, {high:g}]" in str(other)


def test_bytes_fill_the_box():
    pixels = (255 * images(8)).round().to(torch.uint8)
    labels = torch.zeros(8, dtype=torch.long)
    for (low, high), data in ((box, tmifpe.data.as_data((pixels, labels))) for box in BOXES):
        x, _ = tmifpe.data.in_box(data, (low, high)).fetch(range(8))
        np.testing.assert_allclose(x, low + (high - low) * pixels.double() / 255, rtol=1e-6, atol=1e-6)
        assert float(x.min()) >= low
        assert float(x.max()) <= high
    whole = torch.arange(256, dtype=torch.uint8).reshape(1, 1, 16, 16)
    x, _ = tmifpe.data.in_box(tmifpe.data.as_data((whole, labels[:1])), (0.0, 255.0)).fetch([0])
    assert torch.equal(x, whole.float())


def test_lazy_data_and_subsets_know_the_box():
    x, y = moved(-1, 1)
    pairs = [(image, int(label)) for image, label in zip(x, y, strict=True)]
    result = evaluate(Boxed(-1, 1), pairs, Threat("linf", 0.1, -1, 1), PGD(steps=5), sample=20)
    whole = evaluate(Boxed(-1, 1), (x, y), Threat("linf", 0.1, -1, 1), PGD(steps=5))
    assert result.outcomes.fooled.tolist() == whole.outcomes.fooled[result.outcomes.index].tolist()
    with pytest.raises(InputError, match=r"must lie in \[-1, 1\]"):
        evaluate(Boxed(-1, 1), (2 * x, y), Threat("linf", 0.1, -1, 1), PGD(steps=5))


def test_a_model_made_for_another_box_is_refused():
    model, data = tmifpe.load_model("digits-robust"), tmifpe.load_data("digits", limit=4)
    with pytest.raises(MisfitError, match=r"takes images in \[0, 1\], not in \[0, 255\]"):
        evaluate(model, data, Threat("linf", 8, 0, 255))
    given = tmifpe.load_model("digits-robust", mean=(0.0,), std=(255.0,))  # its normalisation in those units
    wide = evaluate(given, data, Threat("linf", 25.5, 0, 255), PGD(steps=3))
    plain = evaluate(model, data, Threat("linf", 0.1), PGD(steps=3))
    assert wide.clean_accuracy == plain.clean_accuracy


def test_the_store_keeps_boxes_apart_and_exports_to_robustbench_in_0_1(tmp_path):
    options = {"store": tmp_path, "keep_adv": True, "name": "m"}
    first = evaluate(Boxed(0, 255), moved(0, 255), Threat("linf", 12, 0, 255), PGD(steps=3), **options)
    other = evaluate(Boxed(0, 255), moved(0, 255), Threat("linf", 12, 0, 256), PGD(steps=3), **options)
    assert first.spec.key() != other.spec.key()
    store = Store(tmp_path)
    run = next(run for run in store.runs() if run.spec.threat.high == 255)
    exported = torch.load(io.BytesIO(robustbench_file(store, run)), weights_only=True)
    np.testing.assert_allclose(exported, first.adv / 255, atol=1e-6)


def test_an_audit_takes_a_box():
    found = tmifpe.audit(Boxed(0, 255), moved(0, 255), ["tmifpe"], ["fp32"], box=(0, 255))
    assert found.findings[0].sound
    with pytest.raises(InputError, match="must lie in"):
        tmifpe.audit(Boxed(0, 255), moved(0, 255), ["tmifpe"], ["fp32"])


FACTORY = """
import torch
from tmifpe import load_model

def make():
    inner = load_model("digits-robust").module
    low, high = {low}, {high}

    class Boxed(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = inner

        def forward(self, x):
            return self.inner((x - low) / (high - low))

    return Boxed()
"""


@pytest.mark.parametrize(("low", "high", "eps"), [(0, 255, "25.5"), (-1, 1, "0.2")])
def test_box_on_the_command_line(tmp_path, low, high, eps):
    (tmp_path / "made.py").write_text(FACTORY.format(low=low, high=high), encoding="utf-8")
    words = ["--limit", "30", "--device", "cpu", "--json"]
    attack = ["--steps", "5", "--no-checks", "--no-store"]
    model, box = f"{tmp_path}/made.py:make", ["--box", f"{low},{high}"]

    def run(*more: str) -> dict:
        result = CliRunner().invoke(app, [*more, *words])
        assert result.exit_code == 0, result.output
        return json.loads(result.stdout)

    plain = run("evaluate", "digits-robust", "--eps", "0.1", *attack)
    saved = Path(tmp_path / "adv.npz")
    found = run("evaluate", model, *box, "--eps", eps, *attack, "--save-adv", str(saved))
    assert found["box"] == [low, high]
    assert found["clean_accuracy"] == plain["clean_accuracy"]
    assert abs(found["broken"] - plain["broken"]) <= 1  # one may lie within rounding of the edge
    with np.load(saved) as file:
        assert low <= file["adv"].min()
        assert file["adv"].max() <= high
        assert str(file["box"]) == f"{low},{high}"
    assert run("evaluate", model, *box, *attack)["eps"] == pytest.approx(8 / 255 * (high - low))
    assert run("audit", model, *box, "--losses", "tmifpe", "--precisions", "fp32")["findings"][0]["input"]["flat"] == 0
    assert set(run("compare", model, *box, "--losses", "cw", *attack)["losses"]) == {"cw"}


@pytest.mark.parametrize("text", ["1", "1,0", "0,1,2", "a,b", "0,0", "nan,1"])
def test_a_box_that_is_none(text):
    result = CliRunner().invoke(app, ["evaluate", "digits-robust", "--box", text, "--no-store"])
    assert result.exit_code == 2
    assert "--box must be" in result.stderr


def test_bytes_take_whole_steps():
    """A uint8 model rounds: a point at the edge of a ball between two bytes would leave it."""
    for eps, steps, said in (
        (8 / 255, 8, 0),
        (0.1, 25, 1),
        (0.3, 76, 1),
        (1 / 255, 1, 0),
        (0.001, 0, 1),
        (1.0, 255, 0),
    ):
        threat, notes = whole_steps(Threat("linf", eps))
        assert threat.eps == pytest.approx(steps / 255)
        assert threat.eps <= eps
        assert len(notes) == said


# What rounding leads out of the box.


@pytest.mark.parametrize(("low", "high"), [(0.0, 1.0), (-1.0, 1.0), (0.0, 255.0)])
@pytest.mark.parametrize("lazy", [False, True])
def test_one_unit_in_the_last_place_is_moved_to_the_edge_and_noted(low: float, high: float, lazy: bool) -> None:
    model, (x, y) = Boxed(low, high), moved(low, high)
    x = x.clone()
    x[0, 0, 0, 0] = torch.nextafter(torch.tensor(high), torch.tensor(torch.inf))
    x[1, 0, 0, 0] = low - high * 2**-24
    data = [(image, int(label)) for image, label in zip(x, y, strict=True)] if lazy else (x, y)
    attack, threat, edge = PGD(steps=3), Threat("linf", 0.05 * (high - low), low, high), x.clamp(low, high)
    found = evaluate(model, data, threat, attack, keep_adv=True)
    assert any("reached out of the box by the rounding of float32" in note for note in found.notes)
    inside = evaluate(model, (edge, y), threat, attack, keep_adv=True)
    assert found.adv is not None
    assert inside.adv is not None
    assert torch.equal(found.adv, inside.adv)
    assert not any("rounding of float32" in note for note in inside.notes)
    assert torch.equal(attack(model, x, y, threat), attack(model, edge, y, threat))
    assert tmifpe.minimal(model, x, y, "linf", steps=3, box=(low, high)).adv.max() <= high


def test_what_lies_farther_out_is_refused_with_its_number() -> None:
    (x, y), threat = moved(0.0, 1.0), Threat("linf", 0.05)
    x = x.clone()
    x[0, 0, 0, 0] = 1 + 3 * 2**-23
    for call in (
        lambda: evaluate(Boxed(0.0, 1.0), (x, y), threat),
        lambda: PGD(steps=3)(Boxed(0.0, 1.0), x, y, threat),
        lambda: tmifpe.certify(Boxed(0.0, 1.0), x, y, threat),
    ):
        with pytest.raises(InputError, match=r"must lie in \[0, 1\] but reach from 0\.\d+ to 1\.00000036"):
            call()
    x[0, 0, 0, 0] = 1 + 2**-10  # what float16 has next to 1 is no rounding of float32
    with pytest.raises(InputError, match=r"to 1\.001;"):
        evaluate(Boxed(0.0, 1.0), (x.half(), y), threat)
