"""analyse(): against the oracle, several maxima, bad input, and how it prints."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path

import numpy as np
import pytest
import torch

from tmifpe.core.errors import InputError
from tmifpe.theory import Scenario, analyse

pytestmark = pytest.mark.numerical

CLEAN = [2.5, -1.3, 0.8, 3.8, -0.9, 1.7, -2.1, 3.6, 0.4, -1.5]


def test_oracle(shared: Path) -> None:
    for case in json.loads((shared / "paper" / "oracle.json").read_text())["cases"]:
        if case.get("tie"):
            continue
        targeted = case["scenario"].startswith("t_")
        label = (case["label"] + 1) % case["K"] if targeted else case["label"]
        target = case["label"] if targeted else None
        for precision, truth in case.get("per_precision", {"fp32": case}).items():
            found = analyse(case["logits"], label, target, precision)
            assert (str(found.scenario), found.rank) == (case["scenario"], case["rank"])
            assert found.g == pytest.approx(float(truth["g"]), rel=1e-12)
            assert found.delta == pytest.approx(float(case["delta"]), rel=1e-15)
            if case.get("near_degenerate"):
                continue
            assert found.t_star == pytest.approx(float(truth["t_star"]), rel=1e-12)
            if "grad" in truth:
                error = np.linalg.norm(np.array(found.gradient) - np.array(truth["grad"]))
                assert error <= 1e-12 * truth["grad_l2"]
        if "one_step_t" in case:
            found = analyse(case["logits"], label, target)
            assert found.one_step_t == pytest.approx(float(case["one_step_t"]), rel=1e-12)
            one_step, fixed = found.choices[1], found.choices[2]
            assert one_step.g == pytest.approx(float(case["g_one_step"]), rel=1e-9, abs=1e-100)
            assert fixed.g == pytest.approx(float(case["g_T1"]), rel=1e-12)
            assert len(found.local_maxima) == case["n_local_max"]
            if not case["near_degenerate"]:
                for got, want in zip(found.local_maxima, case["local_maxima"], strict=True):
                    assert got == pytest.approx([float(v) for v in want], rel=1e-9)


def test_two_maxima_and_the_higher_is_taken() -> None:
    """Fourteen classes, gaps 1 and twelve times 5.887: the paper's claim of one maximum ends here."""
    found = analyse([0.0, -1.0] + [-5.887] * 12, 0)
    assert len(found.local_maxima) == 2
    assert found.local_maxima[0] == pytest.approx((0.95749, 0.2863342), rel=1e-5)
    assert found.local_maxima[1] == pytest.approx((0.78831, 0.2863341), rel=1e-5)
    assert found.t_star == pytest.approx(found.local_maxima[0][0], rel=1e-12)
    assert "local maxima of g" in str(found)


@pytest.mark.parametrize("gap", [1e-6, 0.3, 1.0, 40.0, 1e6])
def test_two_classes_always_have_the_same_t(gap: float) -> None:
    assert f"{analyse([gap, 0.0], 0).t_star:.12f}" == "1.278464542761"


def test_the_choices_of_t() -> None:
    found = analyse(CLEAN, 3)
    assert [c.rule for c in found.choices] == ["exact", "one-step", "T=1"]
    assert [round(1 - c.loss, 5) for c in found.choices] == [1.0, 0.99843, 0.96806]
    successful = analyse(CLEAN, 0)
    assert successful.scenario is Scenario.U_S
    assert [c.rule for c in successful.choices] == ["exact", "T=1"]
    assert (successful.one_step_t, successful.h, successful.local_maxima) == (None, None, ())


def test_pairs_and_bounds() -> None:
    """Every pair (i-1, i) up to the rank of the label; the corrected bound never exceeds the first one."""
    found = analyse(CLEAN, 1, precision="fp16")
    assert [p.i for p in found.pairs] == list(range(2, found.rank + 1))
    assert found.rank == 8
    first = found.pairs[0]
    assert first.delta_sup == pytest.approx(2.0**-10 / found.g)
    assert all(p.delta_sup <= first.delta_sup for p in found.pairs)
    assert first.printed_coefficient == first.coefficient  # u_s: the first is printed right, the others are not
    assert all(p.printed_coefficient < p.coefficient for p in found.pairs[1:])
    assert [p.i for p in analyse(CLEAN, 3).pairs] == [2]
    assert [b.format for b in found.delta_sup] == ["fp16", "bf16", "fp32", "fp64", "fp8-e4m3", "fp8-e5m2"]


def test_json_is_plain() -> None:
    values = analyse(CLEAN, 3, target=1).to_json()
    assert json.loads(json.dumps(values, allow_nan=False)).keys() == values.keys()
    assert {"scenario", "delta", "t_star", "g", "local_maxima", "gradient"} <= set(values)
    assert isinstance(values["t_star"], float)
    assert values["delta_sup"]["fp32"]["delta_sup"] == pytest.approx(5.99e-9, rel=1e-3)


def test_it_prints_well() -> None:
    text = str(analyse(CLEAN, 3))
    assert re.search(r"t\* \(fp32\) +1\.27364730521\n", text)
    assert "untargeted, not yet successful" in text
    assert max(map(len, text.splitlines())) <= 100
    html = analyse(CLEAN, 3, target=1)._repr_html_()  # pyright: ignore[reportPrivateUsage]
    assert html.count("<table>") == html.count("</table>") == 6
    assert "targeted, not yet successful" in html
    long = str(analyse(np.linspace(5, -5, 100).tolist(), 0))
    assert "... 85 more" in long


@pytest.mark.parametrize("kind", [list, tuple, np.array, torch.tensor])
def test_rows_of_any_kind(kind: type) -> None:
    assert analyse(kind([3.0, 1.0, 2.0]), 0).delta == 1.0


@pytest.mark.parametrize(
    ("logits", "label", "says"),
    [
        (["a", "b"], 0, "row of numbers"),
        ([[1.0, 2.0]], 0, "one row"),
        ([1.0], 0, "at least two"),
        ([], 0, "at least two"),
        ([1.0, math.inf], 0, "finite"),
        ([1.0, -math.inf], 0, "finite"),
        ([1.0, math.nan], 0, "finite"),
        ([1.0, 2.0], 2, "label 2 is out of range: 2 logits have the classes 0 to 1"),
        ([1.0, 2.0], -1, "label -1 is out of range"),
        ([1.0, 1.0, 0.0], 0, "equal"),
    ],
)
def test_bad_input_gets_one_sentence(logits: list[float], label: int, says: str) -> None:
    with pytest.raises(InputError, match=says) as caught:
        analyse(logits, label)
    assert "\n" not in str(caught.value)


def test_bad_target_and_precision() -> None:
    with pytest.raises(InputError, match="target 9 is out of range"):
        analyse([1.0, 2.0], 0, target=9)
    with pytest.raises(InputError, match="unknown precision 'fp31'"):
        analyse([1.0, 2.0], 0, precision="fp31")
