"""The constants of the formats, against torch itself and the table of the notes; scenarios; Lambert's W."""

from __future__ import annotations

import math

import mpmath
import pytest
import torch

from tmifpe.core.errors import InputError
from tmifpe.theory.formats import FORMATS, format_of, lam_of
from tmifpe.theory.scenario import Scenario, is_top, scenarios
from tmifpe.theory.solver import T_TWO, bracket

pytestmark = pytest.mark.numerical

LN2 = math.log(2)
# name: smallest subnormal, first underflow, smallest normal, eps and unit roundoff, as powers of two.
TABLE = {
    "fp16": (-24, 25, 14, -10, -11),
    "bf16": (-133, 134, 126, -7, -8),
    "fp32": (-149, 150, 126, -23, -24),
    "fp64": (-1074, 1075, 1022, -52, -53),
    "fp8-e4m3": (-9, 10, 6, -3, -4),
    "fp8-e5m2": (-16, 17, 14, -2, -3),
}


@pytest.mark.parametrize("name", FORMATS)
def test_constants(name: str) -> None:
    f = FORMATS[name]
    smallest, underflow, normal, eps, unit = TABLE[name]
    assert f.smallest == 2.0**smallest
    assert f.lam == pytest.approx(-smallest * LN2, rel=1e-15)
    assert f.underflow == pytest.approx(underflow * LN2, rel=1e-15)
    assert f.lam_flush == pytest.approx(normal * LN2, rel=1e-15)
    assert (f.eps_max, f.unit_roundoff) == (2.0**eps, 2.0**unit)
    assert f.ce_dies == pytest.approx(-unit * LN2, rel=1e-15)
    info = torch.finfo(f.dtype)
    assert (info.eps, info.tiny) == (f.eps_max, 2.0**-normal)
    assert lam_of(f.dtype) == f.lam


def test_the_papers_own_digits() -> None:
    assert [round(FORMATS[n].lam, 4) for n in ("fp16", "fp32", "fp64")] == [16.6355, 103.2789, 744.4401]


@pytest.mark.parametrize("name", ["fp16", "fp32", "fp64"])
def test_exp_underflows_one_ln2_after_lambda(name: str) -> None:
    f = FORMATS[name]
    near = torch.tensor([-f.lam, -f.underflow * (1 - 1e-3), -f.underflow * (1 + 1e-3)], dtype=f.dtype)
    assert (torch.exp(near) > 0).tolist() == [True, True, False]


def test_unknown_formats() -> None:
    with pytest.raises(InputError, match="did you mean 'fp32'"):
        format_of("fp23")
    with pytest.raises(InputError, match="no lambda"):
        lam_of(torch.int64)


def test_scenarios() -> None:
    z = torch.tensor([[3.0, 1.0, 2.0], [1.0, 3.0, 2.0], [2.0, 2.0, 1.0]])
    zero = torch.zeros(3, dtype=torch.long)
    assert is_top(z, zero).tolist() == [True, False, True]
    assert scenarios(z, zero) == [Scenario.U_U, Scenario.U_S, Scenario.U_U]
    assert scenarios(z, zero + 1, zero) == [Scenario.T_S, Scenario.T_U, Scenario.T_S]
    assert [s.top for s in Scenario] == [True, False, False, True]
    assert [s.targeted for s in Scenario] == [False, False, True, True]


def test_t_of_two_classes_is_a_value_of_lamberts_w() -> None:
    assert float(1 + mpmath.lambertw(1 / mpmath.e).real) == T_TWO


@pytest.mark.parametrize("classes", [3, 10, 14, 1000])
def test_bracket_ends_at_a_value_of_lamberts_w(classes: int) -> None:
    exact = 1 + mpmath.lambertw((classes - 1) / mpmath.e).real
    assert bracket(classes)[1] == pytest.approx(float(exact), rel=1e-15, abs=0)
