"""Logits of every kind, to every loss and to the theory: a finite answer that is right, or one sentence."""

from __future__ import annotations

import json
import math
from typing import Any

import torch
from hypothesis import strategies as st
from torch import Tensor

from tests.fuzz.fuzzing import fuzz, mix, tried
from tests.fuzz.tensors import FLOATING, Made, tensors
from tmifpe.core.numerics import is_usable, margin
from tmifpe.losses import LOSSES, get_loss
from tmifpe.theory import FORMATS, analyse, lam_of, solve_t
from tmifpe.theory.scenario import scenarios

OPTIONS = {
    "mifpe": ["", "(T=1e300)", "(T=1e-300)", "(T=10)"],
    "tmifpe": ["", "(t_rule=one-step)", "(lam=1e308)", "(lam=1e-300)", "(t_rule=1e308)", "(t_rule=0.5)"],
    "tmifpe-naive": ["", "(t_rule=one-step)", "(lam=1e308)"],
}
SPELLINGS = [name + option for name in LOSSES for option in OPTIONS.get(name, [""])]
ROWS = st.tuples(st.integers(0, 3), st.integers(1, 16))
SHAPES = ROWS | ROWS | ROWS | st.lists(st.integers(0, 3), max_size=5).map(tuple)
CLASSES = st.lists(st.integers(-1, 4), max_size=4)
NAMED = ("inside", "inside", "inside", "any", "float", "int32", "list", "short")


def classes_for(logits: Any, kind: str, drawn: list[int]) -> Any:
    """One class per row of the logits, or something like it."""
    n, most = (logits.shape[0], logits.shape[1]) if logits.dim() == 2 else (2, 3)
    inside = torch.tensor([(drawn[k % len(drawn)] if drawn else k) % max(1, most) for k in range(n)], dtype=torch.int64)
    kinds = {"any": torch.tensor(drawn, dtype=torch.int64), "float": inside.float(), "int32": inside.int()}
    kinds |= {"list": inside.tolist(), "short": inside[:-1], "inside": inside}
    return kinds[kind]


@fuzz(
    100,
    800,
    name=st.sampled_from(SPELLINGS),
    made=tensors(SHAPES, good=0.7),
    labels=st.tuples(st.sampled_from(NAMED), CLASSES),
    targets=st.none() | st.none() | st.tuples(st.sampled_from(NAMED), CLASSES),
)
def test_loss(name: str, made: Made, labels: tuple[str, list[int]], targets: tuple[str, list[int]] | None) -> None:
    loss, z = get_loss(name), made.tensor
    y = classes_for(z, *labels)
    t = None if targets is None else classes_for(z, *targets)
    leaf = z.detach().clone().requires_grad_() if z.dtype in FLOATING and z.layout is torch.strided else z
    value = tried(lambda: loss(leaf, y, t))
    if value is None:
        return
    assert leaf.dtype in FLOATING
    assert value.shape == (len(z),)
    (grad,) = torch.autograd.grad(value.sum(), leaf)
    usable = is_usable(z.detach())
    assert not value.isnan().any()
    assert (value[~usable] == 0).all()
    assert torch.isfinite(grad).all()
    assert (grad[~usable] == 0).all()


@fuzz(30, 400, made=tensors(st.tuples(st.integers(1, 3), st.integers(2, 8)), good=1.0), aim=st.integers(0, 1))
def test_margin_says_who_wins(made: Made, aim: int) -> None:
    z = made.tensor[is_usable(made.tensor)]
    labels = torch.full((len(z),), aim)
    gap = margin(z, labels)
    ahead = z.gather(1, labels[:, None])[:, 0] > z.masked_fill(torch.eye(z.shape[1])[aim].bool(), -torch.inf).amax(
        dim=1
    )
    # A difference of equal infinities, or one that overflows, has no size, but never the wrong sign.
    known = ~gap.isnan()
    assert ((gap < 0) == ahead)[known].all()
    assert len(scenarios(z, labels)) == len(z)


FLOATS = st.floats() | st.floats(-50, 50) | st.sampled_from([0.0, -0.0, 5e-324, 1e-310, 1e308, -1.7e308, 1e-30, 3.0])
ROW = st.lists(FLOATS, max_size=20) | st.lists(st.floats(-30, 30), min_size=2, max_size=20)
LABELS = st.integers(0, 3) | st.integers(-3, 30) | st.sampled_from([None, 1.0, 1.5, "1", True, 10**30, math.nan])


@fuzz(40, 500, row=ROW, label=LABELS, target=st.none() | LABELS, precision=st.sampled_from(list(FORMATS)) | mix())
def test_analysis(row: list[float], label: Any, target: Any, precision: str) -> None:
    found = tried(lambda: analyse(row, label, target, precision))
    if found is None:
        return
    json.dumps(found.to_json(), allow_nan=False)
    assert abs(math.fsum(found.gradient)) <= 1e-9 * max(map(abs, found.gradient))
    assert all(choice.g <= found.g * (1 + 1e-9) for choice in found.choices if found.scenario.top)
    assert "<script" not in found._repr_html_()
    assert str(found)


@fuzz(10, 100, thing=st.sampled_from([None, "fp32", 5, [], "x", torch.int64, torch.float32, torch.complex64, Tensor]))
def test_lambda(thing: Any) -> None:
    found = tried(lambda: lam_of(thing))
    assert found is None or 0 < found < math.inf


@fuzz(25, 300, made=tensors(st.tuples(st.integers(0, 3), st.integers(0, 20)) | SHAPES, good=0.8))
def test_solver(made: Made) -> None:
    d = made.tensor
    if d.dtype in FLOATING and d.dim() == 2 and d.layout is torch.strided:  # each at least 1, the smallest 1
        d = d.detach().abs().nan_to_num(nan=torch.inf, posinf=torch.inf).clamp(min=1.0)
        d = torch.cat([torch.ones_like(d[:, :1]), d[:, 1:]], dim=1)
    t = tried(lambda: solve_t(d))
    if t is not None:
        assert t.shape == (len(d),)
        assert torch.isfinite(t).all()
        assert (t > 0).all()
