"""What every loss promises, checked for each entry of the registry by itself."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from tests.cases import cases
from tmifpe.core.errors import InputError
from tmifpe.losses import LOSSES, Loss, get_loss, spelling
from tmifpe.testing import check_loss

pytestmark = pytest.mark.numerical

# lam is fixed where a loss has it: its default is that of the dtype, so float32 and float64 would differ on purpose.
FIXED = {"tmifpe": "tmifpe(lam=50)", "tmifpe-naive": "tmifpe-naive(lam=50)"}
EXTRA = ["mifpe(T=10)", "tmifpe(t_rule=one-step)", "tmifpe(t_rule=1.5)"]
# Large K brings the grid and several maxima into play.
SHAPES = [(8, 4), (8, 10), (4, 40)]

every = pytest.mark.parametrize("name", [*LOSSES, *EXTRA])
both = pytest.mark.parametrize("targeted", [False, True])


def rows(n: int, k: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor, Tensor]:
    """Logits, labels and targets: half of the labels on top, and the same for the targets."""
    generator = torch.Generator().manual_seed(seed)
    z = torch.randn(n, k, generator=generator, dtype=torch.float32).to(dtype)
    order = z.argsort(dim=1, descending=True)
    labels = torch.where(torch.arange(n) % 2 == 0, order[:, 0], order[:, 2])
    targets = torch.where(torch.arange(n) % 2 == 0, order[:, 1], order[:, 0])
    return z, labels, targets


def look(loss: Loss, z: Tensor, labels: Tensor, targets: Tensor | None) -> tuple[Tensor, Tensor]:
    leaf = z.clone().requires_grad_()
    value = loss(leaf, labels, targets)
    return value.detach(), torch.autograd.grad(value.sum(), leaf)[0]


def relative(got: Tensor, want: Tensor) -> float:
    """The largest row error in the 2-norm, relative to the row."""
    error = (got.double() - want.double()).norm(dim=-1)
    return float((error / want.double().norm(dim=-1).clamp(min=1e-300)).max())


@every
@both
@pytest.mark.parametrize("shape", SHAPES)
def test_one_differentiable_value_per_example(name: str, targeted: bool, shape: tuple[int, int]) -> None:
    z, labels, targets = rows(*shape)
    value, grad = look(get_loss(name), z, labels, targets if targeted else None)
    assert value.shape == (shape[0],)
    assert grad.shape == z.shape
    assert value.dtype == grad.dtype == z.dtype
    assert torch.isfinite(value).all()
    assert torch.isfinite(grad).all()


@every
@both
@pytest.mark.parametrize("shape", SHAPES)
def test_float32_agrees_with_float64(name: str, targeted: bool, shape: tuple[int, int]) -> None:
    loss = get_loss(FIXED.get(name, name if "t_rule" not in name else name.replace(")", ",lam=50)")))
    z, labels, targets = rows(*shape)
    single = look(loss, z, labels, targets if targeted else None)
    double = look(loss, z.double(), labels, targets if targeted else None)
    torch.testing.assert_close(single[0].double(), double[0], rtol=1e-4, atol=1e-6)
    assert relative(single[1], double[1]) < 1e-4


@every
def test_keeps_the_contract(name: str) -> None:
    """Also finite at every scale, which is checked nowhere else."""
    check_loss(name)


@every
@both
def test_permuting_the_classes_permutes_the_gradient(name: str, targeted: bool) -> None:
    z, labels, targets = rows(16, 10, seed=2, dtype=torch.float64)
    z[3] = torch.tensor([2.0, 2.0, 2.0, 1.0, 1.0, 0.0, 0.0, 0.0, -1.0, -1.0])  # ties share alike
    labels[3], targets[3] = 0, 4
    perm = torch.randperm(10, generator=torch.Generator().manual_seed(0))
    inverse = torch.argsort(perm)
    before = look(get_loss(name), z, labels, targets if targeted else None)
    after = look(get_loss(name), z[:, perm], inverse[labels], inverse[targets] if targeted else None)
    torch.testing.assert_close(after[0], before[0], rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(after[1], before[1][:, perm], rtol=1e-9, atol=1e-12)


@every
@both
@pytest.mark.parametrize("k", [10, 40])
def test_rows_do_not_see_each_other(name: str, targeted: bool, k: int) -> None:
    z, labels, targets = rows(9, k, seed=3)
    z[4] = torch.nan
    whole = look(get_loss(name), z, labels, targets if targeted else None)
    for i in (0, 3, 8):
        one = slice(i, i + 1)
        alone = look(get_loss(name), z[one], labels[one], targets[one] if targeted else None)
        torch.testing.assert_close(alone[0], whole[0][one], rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(alone[1], whole[1][one], rtol=1e-5, atol=1e-6)


@every
@both
def test_the_gradient_sums_to_zero(name: str, targeted: bool) -> None:
    """A constant added to all logits changes nothing, so no loss may pull on it."""
    z, labels, targets = rows(32, 10, seed=4)
    _, grad = look(get_loss(name), z, labels, targets if targeted else None)
    assert (grad.sum(dim=1).abs() <= 1e-5 * grad.abs().sum(dim=1)).all()


@every
def test_an_attack_leaves_the_label(name: str) -> None:
    """Where the label leads, ascent lowers it and raises its rival; a target that trails is raised."""
    z, labels, targets = rows(32, 10, seed=5)
    z, labels, targets = z[::2], labels[::2], targets[::2]
    _, grad = look(get_loss(name), z, labels, None)
    assert (grad.gather(1, labels[:, None]) < 0).all()
    assert (grad.gather(1, targets[:, None]) > 0).all()
    _, grad = look(get_loss(name), z, labels, targets)
    assert (grad.gather(1, targets[:, None]) > 0).all()
    assert (grad.gather(1, labels[:, None]) < 0).all()


@every
@both
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_ties_stay_finite(name: str, targeted: bool, dtype: torch.dtype) -> None:
    z = torch.tensor(
        [[0.0] * 5, [1.0] * 5, [-3.0] * 5, [2, 2, 1, 0, 0], [7, 7, 7, 1, 1], [1e6, 1e6, 0, 0, 0]], dtype=dtype
    )
    for label in range(5):
        labels = torch.full((len(z),), label)
        value, grad = look(get_loss(name), z, labels, (labels + 1) % 5 if targeted else None)
        assert torch.isfinite(value).all()
        assert torch.isfinite(grad).all()


@every
@both
def test_infinitely_unlikely_classes(name: str, targeted: bool) -> None:
    """-inf has no weight, also where all but one class are -inf; nothing becomes NaN."""
    low = -math.inf
    z = torch.tensor([[3.0, 1.0, low, 0.0, low], [3.0, low, low, low, low], [low, low, low, 2.0, 1.0]])
    for label in range(5):
        labels = torch.full((len(z),), label)
        value, grad = look(get_loss(name), z, labels, (labels + 1) % 5 if targeted else None)
        assert not torch.isnan(value).any()
        assert torch.isfinite(grad).all()


@every
@both
@pytest.mark.parametrize("k", [5, 20])
def test_broken_rows_get_a_zero_gradient(name: str, targeted: bool, k: int) -> None:
    z, labels, targets = rows(6, k, seed=6)
    z[0, 1], z[1, 0], z[2], z[3] = torch.nan, torch.inf, torch.nan, -torch.inf
    value, grad = look(get_loss(name), z, labels, targets if targeted else None)
    assert (grad[:4] == 0).all()
    assert (value[:4] == 0).all()
    assert (grad[4] != 0).any()  # a whole row among them (the label of row 5 is third: dlr is constant there)


@every
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_logits(name: str, dtype: torch.dtype) -> None:
    z, labels, _ = rows(16, 10, seed=7, dtype=dtype)
    value, grad = look(get_loss(name), z, labels, None)
    assert grad.dtype == dtype
    assert torch.isfinite(value).all()
    assert torch.isfinite(grad).all()


@every
@both
def test_too_few_classes(name: str, targeted: bool) -> None:
    loss = get_loss(name)
    need = loss.min_classes(targeted)
    labels = torch.zeros(2, dtype=torch.long)
    for k in range(1, need):
        with pytest.raises(InputError, match=f"needs at least {need} classes") as caught:
            loss(torch.randn(2, k), labels, labels if targeted else None)
        assert ("tmifpe" in str(caught.value).split(";")[1]) == (k >= 2)
    loss(torch.randn(2, need), labels, labels if targeted else None)


@every
def test_no_rows(name: str) -> None:
    none = torch.zeros(0, dtype=torch.long)
    for k in (4, 20):
        assert get_loss(name)(torch.zeros(0, k), none).shape == (0,)


@every
def test_frozen_hashable_and_spelled(name: str) -> None:
    loss = get_loss(name)
    assert hash(loss) == hash(get_loss(name))
    assert get_loss(spelling(loss)) == loss
    assert spelling(loss) == name
    with pytest.raises(AttributeError):
        loss.T = 2.0  # pyright: ignore[reportAttributeAccessIssue]


numbers = st.one_of(
    st.sampled_from([0.0, 1.0, -math.inf, math.inf, math.nan]), st.floats(-(2.0**100), 2.0**100, width=32)
)


@every
@given(st.lists(numbers, min_size=4, max_size=16), st.integers(0, 3), st.booleans())
@settings(max_examples=cases(30), deadline=None)
def test_never_nan(name: str, logits: list[float], label: int, targeted: bool) -> None:
    z = torch.tensor([logits])
    labels = torch.tensor([label])
    value, grad = look(get_loss(name), z, labels, (labels + 1) % 4 if targeted else None)
    assert not torch.isnan(value).any()
    assert not torch.isnan(grad).any()
