"""T-MIFPE against 201 cases computed with 60 digits: t*, g and the gradient, in float64 and float32."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tmifpe.losses import get_loss
from tmifpe.losses.scaled import Temperature, chosen_t
from tmifpe.theory.formats import FORMATS
from tmifpe.theory.scenario import scenarios

pytestmark = [pytest.mark.numerical, pytest.mark.usefixtures("either_library")]

TOLERANCE = {torch.float64: 1e-12, torch.float32: 1e-5}
COUNT = 201


@pytest.fixture(scope="module")
def cases(shared: Path) -> list[dict[str, Any]]:
    found = json.loads((shared / "paper" / "oracle.json").read_text())["cases"]
    assert len(found) == COUNT
    return found


def loaded(case: dict[str, Any], dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor | None]:
    """Logits, label and target of a case; untargeted cases name the label, targeted ones the target."""
    z = torch.tensor([case["logits"]], dtype=torch.float64).to(dtype)
    named = torch.tensor([case["label"]])
    targeted = case["scenario"].startswith("t_")
    return z, (named + 1) % z.shape[1] if targeted else named, named if targeted else None


def weights(z: Tensor, labels: Tensor, targets: Tensor | None, loss: str = "tmifpe") -> Tensor:
    leaf = z.clone().requires_grad_()
    return torch.autograd.grad(get_loss(loss)(leaf, labels, targets).sum(), leaf)[0]


def assert_close(got: Tensor, case: dict[str, Any], tolerance: float) -> None:
    """The gradient c w (K,) in the relative 2-norm; large K by its largest entries and its norm."""
    norm = case["grad_l2"]
    if "grad" in case:
        want = torch.tensor(case["grad"], dtype=torch.float64)
        assert (got - want).norm() <= tolerance * norm
        return
    index = torch.tensor([i for i, _ in case["grad_top"]])
    want = torch.tensor([v for _, v in case["grad_top"]], dtype=torch.float64)
    assert (got[index] - want).norm() <= tolerance * norm
    assert abs(got.norm() - norm) <= tolerance * norm
    assert abs(got.abs().sum() - case["grad_sum_abs"]) <= tolerance * case["grad_sum_abs"]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_top_scenarios(cases: list[dict[str, Any]], dtype: torch.dtype) -> None:
    tolerance, seen = TOLERANCE[dtype], 0
    for case in cases:
        if "t_star" not in case or case.get("tie"):
            continue
        z, labels, targets = loaded(case, dtype)
        aim = labels if targets is None else targets
        t = chosen_t(z, aim, Temperature("exact", 1.0))[0].double()
        top = z.topk(2).values[0].double()
        delta = float(case["delta"]) if dtype == torch.float64 else float(top[0] - top[1])
        w = weights(z, labels, targets)[0].double()
        g = t / delta * w.abs()[case["label"]]
        assert abs(g - float(case["g"])) <= tolerance * float(case["g"]), case["id"]
        if not case["near_degenerate"]:
            assert abs(t - float(case["t_star"])) <= tolerance * float(case["t_star"]), case["id"]
            assert_close(w * t / delta, case, tolerance)
        assert [str(s) for s in scenarios(z, labels, targets)] == [case["scenario"]]
        seen += 1
    assert seen == 80


@pytest.mark.parametrize("precision", ["fp16", "bf16", "fp32", "fp64"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_other_scenarios(cases: list[dict[str, Any]], dtype: torch.dtype, precision: str) -> None:
    tolerance, lam, seen = TOLERANCE[dtype], FORMATS[precision].lam, 0
    for case in cases:
        if "per_precision" not in case:
            continue
        truth = case["per_precision"][precision]
        z, labels, targets = loaded(case, dtype)
        aim = labels if targets is None else targets
        t = chosen_t(z, aim, Temperature("exact", lam))[0].double()
        top = z.topk(2).values[0].double()
        delta = float(case["delta"]) if dtype == torch.float64 else float(top[0] - top[1])
        w = weights(z, labels, targets, f"tmifpe(lam={lam!r})")[0].double()
        c = t / delta
        assert abs(t - float(truth["t_star"])) <= tolerance * float(truth["t_star"]), case["id"]
        # g = c p_1: the weight of the top class.
        g = c * w.abs()[z[0].argmax()]
        assert abs(g - float(truth["g"])) <= tolerance * float(truth["g"]), case["id"]
        if "grad_l2" in truth:  # half precisions keep no gradient for K > 14
            assert_close(w * c, truth, tolerance)
        assert [str(s) for s in scenarios(z, labels, targets)] == [case["scenario"]]
        seen += 1
    assert seen == 115


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_ties_give_the_limit_direction(cases: list[dict[str, Any]], dtype: torch.dtype) -> None:
    tied = [case for case in cases if case.get("tie")]
    assert len(tied) == 6
    for case in tied:
        z, labels, targets = loaded(case, dtype)
        want = torch.tensor([case["limit_dir"]], dtype=dtype)
        got = weights(z, labels, targets)
        torch.testing.assert_close(got if targets is None else -got, want, rtol=1e-6, atol=1e-30)
