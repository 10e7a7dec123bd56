"""The audit finds what floating point destroys, and its own reference is right."""

from __future__ import annotations

import csv
import dataclasses
import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import mpmath
import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from typer.testing import CliRunner

import tmifpe
from tmifpe.audits.advice import advice
from tmifpe.audits.at_precision import at_precision
from tmifpe.audits.gradient_errors import Finding, Quantiles, Side, compare_gradients
from tmifpe.audits.reference_gradient import pinned, reference_gradient
from tmifpe.cli import app
from tmifpe.losses import get_loss
from tmifpe.losses.ce import CE
from tmifpe.theory.formats import FORMATS

mp = mpmath.mp.clone()
mp.dps = 60


def saturated(gap: float, classes: int = 3) -> tuple[nn.Module, Tensor, Tensor]:
    """A linear model whose top logit on every image is `gap` above the others, which differ a little."""
    model = nn.Sequential(nn.Flatten(), nn.Linear(4, classes))
    x = torch.rand(6, 1, 2, 2, generator=torch.Generator().manual_seed(0)) * 0.5 + 0.25
    with torch.no_grad():
        weight = torch.randn(classes, 4, generator=torch.Generator().manual_seed(1)) * 1e-2
        model[1].weight.copy_(weight)
        model[1].bias.copy_(torch.tensor([gap] + [-0.1 * i for i in range(classes - 1)]))
    return model, x, torch.zeros(6, dtype=torch.long)


@pytest.mark.parametrize(("precision", "gap"), [("fp16", 20.0), ("bf16", 120.0), ("fp32", 120.0)])
def test_a_saturated_model_kills_ce_and_not_tmifpe(precision: str, gap: float) -> None:
    model, x, y = saturated(gap)
    found = tmifpe.audit(model, (x, y), ["ce", "ce-margin", "cw", "tmifpe"], [precision])
    ce, margin_form, ours = (found.finding(loss, precision) for loss in ("ce", "ce-margin", "tmifpe"))
    assert ce.logits.zero == ce.input.zero == ce.label_lost == 1.0
    assert ce.logits.error == Quantiles(1.0, 1.0, 1.0, 1.0)
    assert ce.sign_disagreement == 1.0
    assert margin_form.logits.zero == 1.0  # e^-120 is below float32, e^-20 below float16
    assert ours.logits.zero == ours.input.zero == ours.label_lost == 0.0
    assert ours.sound
    assert not ce.sound
    unit = FORMATS[precision].unit_roundoff
    assert ours.logits.error.max is not None
    assert ours.logits.error.max < 4 * unit
    first = f"100 % of your correctly classified examples give ce a zero gradient in {precision}; use tmifpe or cw."
    assert first == found.advice[0]


@pytest.mark.parametrize(("precision", "gap"), [("fp16", 12.0), ("bf16", 12.0), ("fp32", 25.0)])
def test_ce_loses_its_label_before_its_gradient(precision: str, gap: float) -> None:
    model, x, y = saturated(gap)
    found = tmifpe.audit(model, (x, y), precisions=[precision])
    ce = found.finding("ce", precision)
    assert (ce.logits.zero, ce.label_lost) == (0.0, 1.0)
    assert found.finding("ce-margin", precision).label_lost == 0.0
    assert "lose the label's part of ce's gradient" in found.advice[0]
    assert found.to_json()["ce_dies"][precision]["share_above"] == 1.0


def test_thresholds_are_those_of_the_formats() -> None:
    model, x, y = saturated(1.0)
    found = tmifpe.audit(model, (x, y), ["ce"], ["bf16", "fp16", "fp32", "fp64"])
    assert {name: round(at, 2) for name, at in found.thresholds.items()} == {
        "bf16": 5.55, "fp16": 7.62, "fp32": 16.64, "fp64": 36.74,
    }  # fmt: skip
    assert found.to_json()["ce_dies"]["fp32"]["share_above"] == 0.0


def test_only_correctly_classified_examples_count() -> None:
    model, x, y = saturated(120.0)
    y[3:] = 1
    found = tmifpe.audit(model, (x, y), ["ce"], ["fp32"])
    assert found.correct.tolist() == [True] * 3 + [False] * 3
    assert found.finding("ce", "fp32").logits.zero == 1.0  # the misclassified ones have a gradient
    assert found.finding("ce", "fp32").label_lost == 1.0
    assert [row["logits_zero"] for row in found.rows()] == [True] * 3 + [False] * 3


def test_batch_size_does_not_matter() -> None:
    model, x, y = saturated(3.0)
    one, all_at_once = (tmifpe.audit(model, (x, y), precisions=["fp32"], batch_size=size) for size in (1, 6))
    assert one.n == all_at_once.n == 6
    for a, b in zip(one.rows(), all_at_once.rows(), strict=True):
        assert (a["index"], a["loss"], a["logits_zero"]) == (b["index"], b["loss"], b["logits_zero"])
        assert a["delta"] == pytest.approx(b["delta"], rel=1e-12)


# The reference ---------------------------------------------------------------------------------------------------


def softmax_gradient(logits: list[float], label: int, c: Any) -> list[Any]:
    """c (p - e_label) of c z with 60 digits."""
    z = [mp.mpf(v) for v in logits]
    top = max(z)
    e = [mp.exp(c * (v - top)) for v in z]
    rest = mp.fsum(v for i, v in enumerate(e) if i != label)
    total = rest + e[label]
    return [-c * rest / total if i == label else c * v / total for i, v in enumerate(e)]


def relative_error(got: list[float], want: list[Any]) -> float:
    difference = mp.sqrt(mp.fsum((mp.mpf(a) - b) ** 2 for a, b in zip(got, want, strict=True)))
    return float(difference / mp.sqrt(mp.fsum(b**2 for b in want)))


def reference(loss: str, logits: list[float], label: int) -> tuple[list[float], float]:
    found = reference_gradient(get_loss(loss), torch.tensor([logits], dtype=torch.float64), torch.tensor([label]))
    return found.weights[0].tolist(), found.scale.item()


@pytest.fixture(scope="module")
def cases(shared: Path) -> list[dict[str, Any]]:
    # Targeted gradients are untargeted ones of the target with the other sign; the audit is untargeted.
    return json.loads((shared / "paper" / "oracle.json").read_text())["cases"]


def test_reference_agrees_with_mpmath_on_the_oracle(cases: list[dict[str, Any]]) -> None:
    seen = dict.fromkeys(("ce", "mifpe", "tmifpe", "tmifpe-naive"), 0)
    for case in cases:
        logits, label = case["logits"], case["label"]
        weights, scale = reference("ce", logits, label)
        want = softmax_gradient(logits, label, mp.mpf(1))
        if max(abs(v) for v in want) > mp.mpf(10) ** -300:  # beyond, the scale has left float64
            assert relative_error([scale * w for w in weights], want) < 1e-12, case["id"]
            assert reference("ce-margin", logits, label) == (weights, scale)
            seen["ce"] += 1
        if case.get("tie"):
            continue
        ordered = sorted((mp.mpf(v) for v in logits), reverse=True)
        gap = ordered[0] - ordered[1]
        weights, scale = reference("mifpe", logits, label)
        assert scale == 1.0
        assert relative_error(weights, [v * gap for v in softmax_gradient(logits, label, 1 / gap)]) < 1e-12, case["id"]
        seen["mifpe"] += 1
        if case.get("near_degenerate"):  # two maxima as high as each other: t* is either
            continue
        t = mp.mpf(case["t_star"] if "t_star" in case else case["per_precision"]["fp32"]["t_star"])
        want = softmax_gradient(logits, label, t / gap)
        weights, scale = reference("tmifpe", logits, label)
        assert relative_error([float(t / gap) * w for w in weights], want) < 1e-12, case["id"]
        weights, scale = reference("tmifpe-naive", logits, label)
        assert relative_error([scale * w for w in weights], want) < 1e-12, case["id"]
        seen["tmifpe"] += 1
    assert seen["ce"] > 100
    assert seen["mifpe"] > 100
    assert seen["tmifpe"] > 100


@pytest.mark.parametrize("gap", [1e-6, 1.0, 30.0, 700.0])
def test_reference_of_ce_is_right_at_every_gap(gap: float) -> None:
    logits = [gap, 0.0, -1.5]
    weights, scale = reference("ce", logits, 0)
    assert relative_error([scale * w for w in weights], softmax_gradient(logits, 0, mp.mpf(1))) < 1e-12


def test_reference_of_dlr_and_cw() -> None:
    logits = [3.0, 1.0, -1.0, -4.0]
    assert reference("cw", logits, 0) == ([-1.0, 1.0, 0.0, 0.0], 1.0)
    # -(z0 - z1)/(z0 - z2) = -2/4: by z0 -(1/4) + 2/16, by z1 1/4, by z2 -2/16; all times the spread, 4.
    assert reference("dlr", logits, 0)[0] == pytest.approx([-0.5, 1.0, -0.5, 0.0])


def test_lambda_is_pinned_to_float32() -> None:
    assert spelled(pinned(get_loss("tmifpe"))) == pytest.approx(149 * math.log(2))
    assert spelled(pinned(get_loss("tmifpe(lam=87)"))) == 87
    assert pinned(get_loss("ce")) == get_loss("ce")


def spelled(loss: Any) -> float:
    return loss.lam


def test_errors_of_known_gradients() -> None:
    truth = torch.tensor([[3.0, 4.0], [3.0, 4.0], [3.0, 4.0], [0.0, 0.0], [3.0, 4.0]], dtype=torch.float64)
    got = torch.tensor([[6.0, 8.0], [0.0, 0.0], [-3.0, 4.0], [0.0, 0.0], [math.nan, 1.0]])
    scale = torch.tensor([1.0, 0.0, 1.0, 1.0, 1.0], dtype=torch.float64)  # even a scale that has underflowed
    m = compare_gradients(got, truth, scale, torch.ones(5, dtype=torch.bool))
    np.testing.assert_allclose(m.error, [1.0, 1.0, 6 / 5, 0.0, math.nan])
    np.testing.assert_allclose(m.direction, [0.0, 1.0, 6 / 5, 0.0, math.nan], atol=1e-15)
    np.testing.assert_allclose(m.signs[:4], [0.0, 1.0, 0.5, 0.0])
    assert m.zero.tolist() == [False, True, False, False, False]
    assert m.flat.tolist() == [False, False, False, True, False]
    assert m.nonfinite.tolist() == [False, False, False, False, True]


# Losses from outside ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Mine(CE):
    """Cross-entropy under another name."""

    name: ClassVar[str] = "mine"


def plain_ce(logits: Tensor, labels: Tensor) -> Tensor:
    return functional.cross_entropy(logits, labels, reduction="none")


@pytest.mark.parametrize("gap", [25.0, 120.0, 800.0])
def test_a_loss_is_audited_by_its_own_reference_whatever_its_name(gap: float) -> None:
    model, x, y = saturated(gap)
    found = tmifpe.audit(model, (x, y), ["ce", Mine], ["fp32"])
    ce, mine = found.findings
    assert mine == dataclasses.replace(ce, loss=mine.loss)
    assert mine.label_lost == 1.0
    assert not any("reference gradient" in note for note in found.notes)


@pytest.mark.parametrize("gap", [25.0, 120.0, 800.0])
def test_a_reference_that_has_vanished_proves_nothing(gap: float) -> None:
    """In float64 the label's part of a plain function's gradient is 0 from a gap of 37 on, all of it from 745 on."""
    model, x, y = saturated(gap)
    found = tmifpe.audit(model, (x, y), [plain_ce, "tmifpe"], ["fp32"])
    plain = found.findings[0]
    assert plain.label_lost == 1.0
    assert plain.logits.flat == plain.input.flat == 0.0
    assert (plain.logits.zero, plain.input.zero) == ((1.0, 1.0) if gap > 100 else (0.0, 0.0))
    assert not plain.sound
    assert "use tmifpe" in found.advice[0]
    said = [note for note in found.notes if "plain_ce" in note]
    assert len(said) == (gap > 37)
    assert all("on 6 of the correctly classified examples" in note for note in said)


# Precisions that a model cannot run in -----------------------------------------------------------------------------


class OnlyFloat32(nn.Module):
    """A model with a constant that conversion does not reach."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(30.0))
        self.hidden = [torch.eye(4)[:3]]

    def forward(self, x: Tensor) -> Tensor:
        return self.scale * (x.flatten(1) @ self.hidden[0].T)


def test_what_cannot_run_is_emulated_and_said() -> None:
    x = torch.tensor([[1.0, 0.1, 0.0, 0.0]]).reshape(1, 1, 2, 2)
    found = tmifpe.audit(OnlyFloat32(), (x, torch.tensor([0])), ["ce", "tmifpe"], ["bf16", "fp32"])
    assert ["emulated" in note for note in found.notes] == [True, True, False]
    assert "the layers ran in float32" in found.notes[1]
    assert found.finding("ce", "bf16").label_lost == 1.0  # Delta = 27: the loss itself is in bf16
    assert found.finding("tmifpe", "bf16").sound


def test_a_function_is_audited_too() -> None:
    found = tmifpe.audit(lambda x: 40 * x.flatten(1), (torch.eye(4).reshape(4, 1, 2, 2), torch.arange(4)), ["ce"])
    assert not any("emulated" in note for note in found.notes)
    assert found.finding("ce", "fp16").logits.zero == 1.0
    assert found.finding("ce", "fp32").label_lost == 1.0


def test_a_model_that_casts_for_itself_is_emulated() -> None:
    images = torch.eye(4).reshape(4, 1, 2, 2)
    found = tmifpe.audit(lambda x: 12 * x.float().flatten(1), (images, torch.arange(4)), ["ce"], ["bf16"])
    assert all("emulated" in note for note in found.notes[:2])  # the reference, too
    assert found.finding("ce", "bf16").label_lost == 1.0


def test_overflow_in_half_precision_is_said() -> None:
    model, x, y = saturated(1e6)
    found = tmifpe.audit(model, (x, y), ["tmifpe"], ["fp16", "fp32"])
    assert found.finding("tmifpe", "fp16").logits.nonfinite == 1.0
    assert found.finding("tmifpe", "fp32").sound
    assert found.advice[0] == "In fp16 every example has NaN or infinite logits: the network itself overflows."
    json.dumps(found.to_json(), allow_nan=False)


def test_a_flat_network_is_not_blamed_on_the_loss() -> None:
    found = tmifpe.audit(lambda x: x.flatten(1).round(), (torch.eye(4).reshape(4, 1, 2, 2), torch.arange(4)), ["cw"])
    assert found.advice[0].startswith("For 100 % of your correctly classified examples the network has no gradient")
    assert found.finding("cw", "fp32").input.zero == 0.0


def test_the_model_is_given_back_as_it_came() -> None:
    model, x, y = saturated(3.0)
    model.train()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    tmifpe.audit(model, (x, y))
    assert model.training
    assert all(p.requires_grad and p.dtype == torch.float32 for p in model.parameters())
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_a_random_model_is_said_to_be_random_and_leaves_the_generator_alone() -> None:
    model, images, labels = (lambda x: 3 * x.flatten(1)), torch.eye(4).reshape(4, 1, 2, 2), torch.arange(4)
    before = torch.get_rng_state()
    found = tmifpe.audit(lambda x: model(x) + 0.01 * torch.rand(len(x), 4), (images, labels), ["cw"], ["fp32"])
    assert torch.equal(before, torch.get_rng_state())
    assert any(note.startswith("this model gives other logits each time") for note in found.notes)
    assert not any("each time" in note for note in tmifpe.audit(model, (images, labels), ["cw"], ["fp32"]).notes)


def test_network_runs_for_real_where_it_can() -> None:
    model, x, _ = saturated(3.0)
    with at_precision(model, "bf16", x) as network:
        logits, back = network.forward(x)
        assert logits.dtype == torch.bfloat16
        assert back(torch.ones_like(logits)).shape == x.shape
        assert not network.emulated


# Words -----------------------------------------------------------------------------------------------------------


def finding(loss: str, zero: float = 0.0, lost: float = 0.0, signs: float = 0.0, p99: float = 1e-7) -> Finding:
    error = Quantiles(0.0, 0.0, p99, 1.0)
    side = Side(zero, 0.0, 0.0, error, error)
    return Finding(loss, "fp16", lost, signs, side, side)


def test_advice() -> None:
    said = advice([finding("ce", zero=0.42, lost=0.8), finding("ce-margin"), finding("tmifpe")])
    assert said == (
        "42 % of your correctly classified examples give ce a zero gradient in fp16; use tmifpe or ce-margin.",
    )
    only = advice([finding("ce", zero=0.5)])
    assert only[0].endswith("no loss audited is free of this, use a wider precision.")
    signs = advice([finding("ce-margin", signs=0.57), finding("tmifpe", signs=0.05)])
    assert "ce-margin keeps a gradient but has the wrong sign at 57 % of the pixels (tmifpe: 5 %)" in signs[1]
    assert "even tmifpe has the wrong sign at 5 % of the pixels" in signs[2]
    fine = advice([finding("ce", p99=1e-3), finding("tmifpe")])
    assert " ".join(fine) == (
        "In fp16 every loss keeps its gradient on all your correctly classified examples; its relative error "
        "(99th percentile, with respect to the logits) is largest for ce, 1.0e-03; that of tmifpe is 1.0e-07."
    )


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"losses": ["tmipfe"]}, "did you mean 'tmifpe'"),
        ({"losses": []}, "at least one"),
        ({"losses": ["ce", "ce"]}, "different losses"),
        ({"precisions": ["fp8"]}, "unknown precision"),
        ({"limit": 0}, "limit must be a whole number of at least 1"),
        ({"batch_size": 0}, "batch_size must be a whole number of at least 1"),
    ],
)
def test_bad_input(options: dict[str, Any], complaint: str) -> None:
    model, x, y = saturated(1.0)
    with pytest.raises(tmifpe.InputError, match=complaint):
        tmifpe.audit(model, (x, y), **options)


def test_a_model_that_is_always_wrong_or_has_too_few_classes_is_refused() -> None:
    model, x, y = saturated(5.0)
    with pytest.raises(tmifpe.InputError, match="classifies none of the 6 examples"):
        tmifpe.audit(model, (x, y + 1))
    with pytest.raises(tmifpe.InputError, match="label 7 is out of range"):
        tmifpe.audit(model, (x, y + 7))
    with pytest.raises(tmifpe.InputError, match="out of range: the model has 2 classes"):
        tmifpe.audit(lambda x: x.flatten(1)[:, :1], (x, y + 2), ["tmifpe"])  # one number per image means two classes


# Real models -----------------------------------------------------------------------------------------------------


def test_digits_distilled() -> None:
    found = tmifpe.audit(
        tmifpe.load_model("digits-distilled"), tmifpe.load_data("digits"), precisions=["fp32"], limit=64
    )
    assert found.finding("ce", "fp32").logits.zero > 0.5
    assert found.finding("ce", "fp32").input.zero > 0.5
    ours = found.finding("tmifpe", "fp32")
    assert (ours.logits.zero, ours.input.zero, ours.label_lost) == (0.0, 0.0, 0.0)
    assert ours.input.error.p99 is not None
    assert ours.input.error.p99 < 1e-4


@pytest.mark.parametrize("which", ["mnist-fast", "cifar10_resnet4b"])
def test_published_models_lose_little_but_something(shared: Path, which: str) -> None:
    if which == "mnist-fast":
        model = tmifpe.load_model(which, weights=shared / "models" / "mnist_fast_at.pth")
        data = tmifpe.load_data(f"mnist:{shared / 'data' / 'mnist'}")
    else:
        pytest.importorskip("onnx")
        mean, std = (0.4914, 0.4822, 0.4465), (0.2471, 0.2435, 0.2616)
        model = tmifpe.load_model(str(shared / "models" / f"{which}.onnx"), mean=mean, std=std)
        data = tmifpe.load_data(f"npz:{shared / 'data' / 'cifar10' / 'test_first_846.npz'}")
    found = tmifpe.audit(model, data, ["ce", "tmifpe"], ["fp32"], limit=64)
    ce, ours = found.finding("ce", "fp32"), found.finding("tmifpe", "fp32")
    assert ce.logits.error.p99 is not None
    assert ours.logits.error.p99 is not None
    assert 1e-6 < ce.logits.error.p99 < 0.05
    assert ce.logits.error.p99 > 10 * ours.logits.error.p99
    assert ce.logits.zero == 0.0


# The command line --------------------------------------------------------------------------------------------------


def test_command(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    folder = tmp_path / "deep" / "audit"
    arguments = ["audit", "digits-distilled", "--data", "digits", "--limit", "8", "--precisions", "fp32"]
    run = CliRunner().invoke(
        app, [*arguments, "--losses", "ce,tmifpe(t_rule=one-step)", "--json", "--out", str(folder)]
    )
    assert run.exit_code == 0, run.output
    plain = json.loads(run.stdout)
    assert plain == json.loads((folder / "audit.json").read_text())
    assert [(f["loss"], f["precision"]) for f in plain["findings"]] == [
        ("ce", "fp32"), ("tmifpe(t_rule=one-step)", "fp32"),
    ]  # fmt: skip
    assert plain["findings"][0]["logits"]["zero"] > 0.5
    with (folder / "audit.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 16
    assert rows[0]["index"] == "0"
    assert (folder / "audit.png").read_bytes().startswith(b"\x89PNG")


def test_command_refuses_a_folder_that_is_a_file_before_any_work(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    (tmp_path / "taken").write_text("")
    run = CliRunner().invoke(app, ["audit", "no-such-model", "--out", str(tmp_path / "taken")])
    assert run.exit_code == 2
    assert "cannot make the folder" in run.output


def test_command_in_words() -> None:
    run = CliRunner().invoke(app, ["audit", "digits-robust", "--limit", "8", "--losses", "ce,tmifpe"])
    assert run.exit_code == 0, run.output
    for piece in ("zero", "label", "Gap Δ", "5.55 (bf16)", "use tmifpe", "The whole network ran in fp64"):
        assert piece in " ".join(run.stdout.split())


@pytest.mark.parametrize("bad", [["--losses", "tmipfe"], ["--precisions", "fp12"], ["--losses", ","]])
def test_command_refuses(bad: list[str]) -> None:
    run = CliRunner().invoke(app, ["audit", "digits-robust", "--limit", "4", *bad])
    assert run.exit_code == 2
    assert "Traceback" not in run.output


def test_one_finite_logit_is_no_infinity_in_json(robust_digits):
    class One(nn.Module):
        def forward(self, x):
            logits = torch.full((len(x), 10), -torch.inf, dtype=x.dtype)
            logits[:, 0] = x.mean((1, 2, 3))
            return logits

    found = tmifpe.audit(One(), (robust_digits[1][:3], torch.zeros(3, dtype=torch.long)), precisions=["fp32"])
    assert found.to_json()["delta"]["max"] is None
