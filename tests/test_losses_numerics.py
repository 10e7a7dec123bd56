"""The losses against their formulas, and T-MIFPE where floating point is hardest: powers of two, gaps of one ulp."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from tmifpe.core.errors import InputError
from tmifpe.core.numerics import exp_or_zero, left_over, pull_back, safe_gap
from tmifpe.losses import get_loss
from tmifpe.losses.scaled import Temperature, chosen_t
from tmifpe.theory.formats import lam_of
from tmifpe.theory.solver import T_TWO

pytestmark = [pytest.mark.numerical, pytest.mark.usefixtures("either_library")]


def gradient(name: str, z: Tensor, labels: Tensor, targets: Tensor | None = None) -> Tensor:
    leaf = z.clone().requires_grad_()
    return torch.autograd.grad(get_loss(name)(leaf, labels, targets).sum(), leaf)[0]


def by_autograd(formula: Tensor, leaf: Tensor) -> Tensor:
    return torch.autograd.grad(formula.sum(), leaf)[0]


@pytest.fixture(scope="module")
def z() -> Tensor:
    return torch.randn(64, 10, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


@pytest.fixture(scope="module")
def labels(z: Tensor) -> Tensor:
    return z.argsort(dim=1)[torch.arange(64), torch.arange(64) % 10]


def test_ce_margin_is_cross_entropy(z: Tensor, labels: Tensor) -> None:
    leaf = z.clone().requires_grad_()
    value = functional.cross_entropy(leaf, labels, reduction="none")
    torch.testing.assert_close(get_loss("ce-margin")(z, labels), value.detach(), rtol=1e-12, atol=0)
    torch.testing.assert_close(gradient("ce-margin", z, labels), by_autograd(value, leaf), rtol=1e-11, atol=1e-15)


def test_ce_margin_keeps_the_label_where_ce_loses_it() -> None:
    gaps = torch.tensor([-20.0, -80.0, -103.0])
    z = torch.stack((torch.zeros(3), gaps), dim=1)
    labels = torch.zeros(3, dtype=torch.long)
    assert (gradient("ce", z, labels)[:, 0] == 0).all()
    got = -gradient("ce-margin", z, labels)[:, 0].double()
    torch.testing.assert_close(got[:2], torch.exp(gaps.double())[:2], rtol=1e-5, atol=0)
    assert got[2] > 0


def test_cw_and_dlr_are_the_published_formulas(z: Tensor, labels: Tensor) -> None:
    leaf = z.clone().requires_grad_()
    others = leaf.masked_fill(functional.one_hot(labels, 10).bool(), -torch.inf).amax(dim=1)
    own = leaf.gather(1, labels[:, None])[:, 0]
    ordered = leaf.sort(dim=1, descending=True).values
    cw, dlr = others - own, -(own - others) / (ordered[:, 0] - ordered[:, 2])
    torch.testing.assert_close(get_loss("cw")(z, labels), cw.detach())
    torch.testing.assert_close(gradient("cw", z, labels), by_autograd(cw, leaf))
    torch.testing.assert_close(get_loss("dlr")(z, labels), dlr.detach())
    leaf2 = z.clone().requires_grad_()
    ordered = leaf2.sort(dim=1, descending=True).values
    own = leaf2.gather(1, labels[:, None])[:, 0]
    others = leaf2.masked_fill(functional.one_hot(labels, 10).bool(), -torch.inf).amax(dim=1)
    dlr = -(own - others) / (ordered[:, 0] - ordered[:, 2])
    published = by_autograd(dlr, leaf2) * (ordered[:, 0] - ordered[:, 2]).detach()[:, None]
    torch.testing.assert_close(gradient("dlr", z, labels), published, rtol=1e-9, atol=1e-12)


def test_targeted_dlr_is_the_published_formula(z: Tensor, labels: Tensor) -> None:
    targets = (labels + 3) % 10
    leaf = z.clone().requires_grad_()
    ordered = leaf.sort(dim=1, descending=True).values
    gap = leaf.gather(1, labels[:, None])[:, 0] - leaf.gather(1, targets[:, None])[:, 0]
    value = -gap / (ordered[:, 0] - 0.5 * (ordered[:, 2] + ordered[:, 3]))
    torch.testing.assert_close(get_loss("dlr")(z, labels, targets), value.detach())
    spread = (ordered[:, 0] - 0.5 * (ordered[:, 2] + ordered[:, 3])).detach()[:, None]
    published = by_autograd(value, leaf) * spread
    torch.testing.assert_close(gradient("dlr", z, labels, targets), published, rtol=1e-9, atol=1e-12)


def test_dlr_of_close_logits_in_half_precision_keeps_its_direction() -> None:
    z = torch.tensor([[3e-6, 2e-6, 1e-6, 0.0]], dtype=torch.float16)
    for targets in (None, torch.tensor([2])):
        grad = gradient("dlr", z, torch.tensor([0]), targets)
        assert grad.isfinite().all()
        assert grad.abs().max() <= 2
        assert (grad != 0).any()


@pytest.mark.parametrize("name", ["mifpe", "mifpe(T=10)", "tmifpe", "tmifpe(t_rule=one-step)", "tmifpe(lam=20)"])
@pytest.mark.parametrize("targeted", [False, True])
def test_scaled_losses_are_cross_entropy_of_scaled_logits(z: Tensor, labels: Tensor, name: str, targeted: bool) -> None:
    """Value and gradient of CE(t z/Delta), the gradient divided by c = t/Delta."""
    targets = labels if targeted else None
    loss = get_loss(name)
    rule, lam = getattr(loss, "t_rule", "exact"), getattr(loss, "lam", None) or lam_of(z.dtype)
    t = chosen_t(z, labels, Temperature(rule, lam))
    if name.startswith("mifpe"):
        t = torch.full_like(t, getattr(loss, "T"))  # noqa: B009
    first, second = z.topk(2).values.unbind(1)
    c = t / (first - second)
    leaf = (z * c[:, None]).requires_grad_()
    value = functional.cross_entropy(leaf, labels, reduction="none") * (-1 if targeted else 1)
    torch.testing.assert_close(loss(z, labels, targets), value.detach(), rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(gradient(name, z, labels, targets), by_autograd(value, leaf), rtol=1e-9, atol=1e-12)


def test_naive_has_the_same_direction_times_c(z: Tensor, labels: Tensor) -> None:
    t = chosen_t(z, labels, Temperature("exact", lam_of(z.dtype)))
    first, second = z.topk(2).values.unbind(1)
    naive = gradient("tmifpe-naive", z, labels) * ((first - second) / t)[:, None]
    torch.testing.assert_close(gradient("tmifpe", z, labels), naive, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("k", [2, 10, 13, 14, 100])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_scaling_by_powers_of_two_changes_no_bit(k: int, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(k)
    z = torch.randn(20, k, generator=generator).to(dtype)
    z[0] = z[0, 0]  # all tied
    z[1] = 0.0
    z[2, :2] = 3.0  # tied at the top
    for aim in (z.argmax(dim=1), z.argmin(dim=1), torch.arange(20) % k):
        for targets in (None, aim):
            want = gradient("tmifpe", z, aim, targets)
            assert torch.isfinite(want).all()
            for power in (-20, -13, -1, 7, 20):
                assert torch.equal(gradient("tmifpe", z * 2.0**power, aim, targets), want)


def close_rows(ulps: int, offset: float) -> Tensor:
    """float32 rows at `offset` whose top two differ by `ulps` units, and the rest lie within 6 Delta below.

    Ratios are not whole numbers: z/Delta would then be rounded alike in all classes, and the naive order look right.
    """
    generator = torch.Generator().manual_seed(ulps)
    spacing = torch.finfo(torch.float32).eps * offset
    units = torch.randint(ulps, 6 * ulps + 1, (200, 10), generator=generator).float()
    units[:, 0], units[:, 1] = 0.0, ulps
    return (offset - units * spacing)[:, torch.randperm(10, generator=generator)]


@pytest.mark.parametrize("ulps", [1, 2, 3, 7, 50, 1000])
@pytest.mark.parametrize("offset", [1.0, 8.0, 4096.0])
@pytest.mark.parametrize("place", [0, 1, 4])
def test_gaps_of_one_ulp(ulps: int, offset: float, place: int) -> None:
    """The weights err by rounding alone; the naive form, on the same logits with the same t, visibly."""
    z = close_rows(ulps, offset)
    assert z.dtype == torch.float32
    labels = z.argsort(dim=1, descending=True, stable=True)[:, place]
    t = chosen_t(z, labels, Temperature("exact", lam_of(z.dtype)))
    exact = z.double()  # float64 holds the stored logits, their differences and the products to spare
    first, second = exact.topk(2).values.unbind(1)
    delta = (first - second)[:, None]
    assert (delta > 0).all()
    truth = torch.softmax(t.double()[:, None] * ((exact - first[:, None]) / delta), dim=1)
    truth -= functional.one_hot(labels, 10)
    norm = truth.norm(dim=1)
    error = (gradient("tmifpe", z, labels).double() - truth).norm(dim=1) / norm
    # Differences of logits are exact. Dividing by Delta and multiplying by t move an argument by 2 half units, and
    # an exponential by as many times its argument (near 1 where it has weight); exp adds 2 on any processor, a sum
    # of ten terms in the worst order 9, the division 1: at most 16 half units of float32 in all (here about 3).
    assert error.max() <= 16 * torch.finfo(torch.float32).eps / 2
    naive = gradient("tmifpe-naive", z, labels).double() * delta / t.double()[:, None]
    naive_error = (naive - truth).norm(dim=1) / norm
    # With the label below the top t is large and hardly a second class has weight: the naive error is then small.
    if place == 0 and ulps <= 50:
        assert naive_error.median() > 1e-4
        assert naive_error.median() > 1e3 * error.median()


def test_dlr_without_a_third_class_is_cw() -> None:
    """-inf third: no spread to divide by, so the margin itself is followed rather than nothing at all."""
    z = torch.tensor([[2.0, 1.0, -torch.inf, -torch.inf]])
    labels = torch.tensor([0])
    assert gradient("dlr", z, labels).tolist() == [[-1.0, 1.0, 0.0, 0.0]]
    assert gradient("dlr", z, labels, torch.tensor([1])).tolist() == [[-1.0, 1.0, 0.0, 0.0]]


def test_t_at_a_tie_is_that_of_two_classes() -> None:
    """There the ratios have no meaning; a third class one ulp below must not see a t made of them."""
    for k in (3, 10, 20):
        z = torch.zeros(2, k)
        z[:, :2], z[:, 2] = 1.0, 1.0 - 2.0**-24
        z[1, 0] += 1.0
        t = chosen_t(z, torch.tensor([0, 0]), Temperature("exact", 1.0))
        assert float(t[0]) == pytest.approx(T_TWO, rel=1e-7)
        assert float(t[1]) != pytest.approx(T_TWO, rel=1e-3)


def test_ties_in_any_number_share_the_weight() -> None:
    z = torch.tensor([[5.0, 5.0, 5.0, 1.0]])
    got = gradient("tmifpe", z, torch.tensor([0]))
    torch.testing.assert_close(got, torch.tensor([[-2 / 3, 1 / 3, 1 / 3, 0.0]]))
    for label, want in ((0, [-0.5, 0.5, 0.0]), (2, [0.5, 0.5, -1.0])):
        got = gradient("tmifpe", torch.tensor([[5.0, 5.0, 1.0]]), torch.tensor([label]))
        torch.testing.assert_close(got, torch.tensor([want]))


def test_half_logits_are_computed_in_float32() -> None:
    """The attack must not change with the dtype that the model happens to answer in: lambda is that of float32."""
    z = torch.randn(32, 10, generator=torch.Generator().manual_seed(1)).half()
    labels = z.argmin(dim=1)
    want = gradient("tmifpe", z.float(), labels)
    torch.testing.assert_close(gradient("tmifpe", z, labels), want.half(), rtol=0, atol=0)


def test_ce_in_half_precision_dies_where_the_theory_says() -> None:
    labels = torch.zeros(1, dtype=torch.long)
    for dtype, dead in ((torch.float16, 7.7), (torch.bfloat16, 5.6)):
        assert gradient("ce", torch.tensor([[dead, 0.0]], dtype=dtype), labels)[0, 0] == 0
        assert gradient("ce", torch.tensor([[dead - 1.5, 0.0]], dtype=dtype), labels)[0, 0] < 0


def test_safe_gap_changes_ties_only() -> None:
    top = torch.tensor([1.0, 1.0, 0.0, 5.0, 1e-40])
    second = torch.tensor([1.0, 1.0 - 2.0**-24, 0.0, -torch.inf, 0.0])
    gap = safe_gap(top, second)
    assert 0 < gap[0] <= 2.0**-24
    assert gap[1] == 2.0**-24
    assert gap[2] == torch.finfo(torch.float32).tiny
    assert gap[3] == torch.finfo(torch.float32).max
    assert gap[4] == top[4]


def test_exp_or_zero() -> None:
    x = torch.tensor([0.0, -1.0, -86.0, -90.0, -1e4, -torch.inf])
    got = exp_or_zero(x)
    # Two units in the last place: vectors and what is left over after them may be computed by two functions, each of
    # which errs by at most one.
    torch.testing.assert_close(got[:3], torch.exp(x[:3]), rtol=2 * torch.finfo(torch.float32).eps, atol=0)
    assert (got[3:] == 0).all()
    wide = exp_or_zero(x.double())
    torch.testing.assert_close(wide[:4], torch.exp(x.double()[:4]), rtol=2 * torch.finfo(torch.float64).eps, atol=0)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("mifpe(T=0)", "above 0"),
        ("mifpe(T=x)", "above 0"),
        ("mifpe(T=inf)", "above 0"),
        ("tmifpe(t_rule=two-step)", "exact, one-step or a number"),
        ("tmifpe(t_rule=-1)", "above 0"),
        ("tmifpe(t_rule=true)", "above 0"),
        ("tmifpe(lam=-3)", "above 0"),
        ("tmifpe-naive(lam=0)", "lam of tmifpe-naive"),
        ("tmifpe(tee=1)", "it takes t_rule, lam"),
        ("tmipfe", "did you mean 'tmifpe'"),
        ("ce(T=1)", "it takes none"),
    ],
)
def test_bad_options_get_one_sentence(text: str, says: str) -> None:
    with pytest.raises(InputError, match=says) as caught:
        get_loss(text)
    assert "\n" not in str(caught.value)


def test_two_classes_use_the_constant() -> None:
    z = torch.randn(5, 2, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    assert (chosen_t(z, z.argmax(dim=1), Temperature("exact", 1.0)) == T_TWO).all()


@pytest.mark.parametrize("text", ["mifpe(T=1e-300)", "mifpe(T=1e308)", "tmifpe(t_rule=1e-300)", "tmifpe(lam=1e300)"])
@pytest.mark.parametrize("row", [[-torch.inf, -torch.inf, 0.4], [0.3, -torch.inf, 0.4], [1.0, 1.0, -torch.inf]])
@pytest.mark.parametrize("label", [0, 1, 2])
def test_options_beyond_the_dtype_are_no_nan(text: str, row: list[float], label: int) -> None:
    z, labels = torch.tensor([row]), torch.tensor([label])
    for targets in (None, (labels + 1) % 3):
        assert not get_loss(text)(z, labels, targets).isnan().any()
        assert gradient(text, z, labels, targets).isfinite().all()


def test_before_success_targeted_tmifpe_climbs_the_margin_to_the_top_class() -> None:
    """docs/reading-table1.md: in t_u lambda is so large that only the top class and the target have weight."""
    z = torch.randn(256, 10, generator=torch.Generator().manual_seed(1))
    order = z.argsort(dim=1, descending=True)
    second, least = (order[:, k] for k in (1, -1))
    cosine = {
        target: torch.cosine_similarity(
            gradient("tmifpe", z, order[:, 0], target), gradient("cw", z, order[:, 0], target)
        )
        for target in (second, least)
    }
    assert bool((cosine[second] > 0.9999).all())
    clear = (z.gather(1, order[:, :1]) - z.gather(1, order[:, 1:2]))[:, 0] > 0.1 * (z.amax(dim=1) - z.amin(dim=1))
    assert bool((cosine[least][clear] > 0.999).all())
    assert bool((cosine[least][~clear] < 0.999).any())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_what_is_left_over_is_no_rounding(dtype: torch.dtype):
    parts = torch.rand(1000, 20, generator=torch.Generator().manual_seed(0), dtype=torch.float64).to(dtype)
    budget, spent = parts.flip(1).cumsum(dim=1)[:, -1], parts.sum(dim=1)  # the same, added in another order
    assert (budget != spent).any()
    assert not left_over(budget, spent, 20).any()
    assert torch.equal(left_over(budget, spent * 0.99, 20), budget - spent * 0.99)
    assert not left_over(budget, 2 * budget, 20).any()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_pull_back_is_the_gradient_to_the_bit(dtype: torch.dtype) -> None:
    """Also where the sum that it derives overflows or is no number."""
    x = torch.tensor([1.0, -2.0, 3.0], dtype=dtype, requires_grad=True)
    other = torch.ones(2, requires_grad=True)
    ends = [x * x * 100, x.exp()]
    grads = [torch.tensor([60000.0, torch.inf, 1e-4], dtype=dtype), torch.tensor([0.3, torch.nan, -1.0], dtype=dtype)]
    want = torch.autograd.grad(ends, [x, other], grads, retain_graph=True, allow_unused=True)
    found = pull_back(ends, [x, other], grads)
    assert want[1] is found[1] is None
    torch.testing.assert_close(found[0], want[0], rtol=0, atol=0, equal_nan=True)
