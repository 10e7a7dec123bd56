"""Every attack in the registry, on models whose answer is known."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
import torch
from torch import nn

import tmifpe
from tests.linear import Linear, distance, examples, examples_at
from tmifpe import Threat
from tmifpe.attacks import ATTACKS, PGD, Loop, Problem, Queries, get_attack
from tmifpe.core.errors import InputError
from tmifpe.core.numerics import margin
from tmifpe.losses import LOSSES
from tmifpe.norms import NORMS, Ball, get_norm
from tmifpe.testing import check_attack

# At their full length they take longer and show no more.
SHORT = {
    "pgd": "pgd(steps=10)",
    "gama": "gama(steps=10)",
    "square": "square(queries=30)",
    "multi-targeted": "multi-targeted(steps=6,targets=2)",
    "apgd": "apgd(steps=12)",
    "ddn": "ddn(steps=20)",
    "fmn": "fmn(steps=20)",
}
# Tested elsewhere: test_autoattack.py, test_named.py, test_curve.py, test_full.py; `paper` and `quick` are pgd.
ELSEWHERE = {"autoattack", "bracket", "fab", "full", "near", "outside", "paper", "quick"}
STEPWISE = [SHORT.get(name, name) for name in ATTACKS if name not in ELSEWHERE]
LOSS_NAMES = [name for name in LOSSES if not name.startswith("dlr")]  # DLR needs three classes


def defined(name: str, norm: str) -> bool:
    """Whether the attack knows the norm; one that does not says so before it computes anything."""
    try:
        get_attack(name).check(Threat(norm, 0.1))
    except InputError:
        return False
    return True


@pytest.mark.parametrize(("name", "norm"), [pair for pair in itertools.product(STEPWISE, NORMS) if defined(*pair)])
@pytest.mark.numerical
class TestEveryAttack:
    def test_keeps_the_contract(self, name, norm):
        check_attack(name, norms=[norm])

    def test_same_seed_same_answer_whatever_the_batch(self, name, norm):
        model = Linear(3)
        x, y = examples(model, 11)
        attack, threat = get_attack(name), Threat(norm, 0.1)
        part = torch.tensor([7, 2, 9])
        whole = attack(model, x, y, threat, seed=3)  # that it repeats itself is part of the contract above
        split = attack(model, x, y, threat, seed=3, batch_size=4)
        alone = attack(model, x[part], y[part], threat, seed=3, indices=part)
        # After all steps the margins agree, not the points: products round differently in batches of another size,
        # and on a sphere a margin hardly changes around its maximum, so the last bit decides which of many points
        # is kept. A logit is a sum of 20 products, whose terms add up to less than 20: any order of adding them
        # errs by less than 20 * 2^-53 * 20 = 5e-14, and a margin is a difference of two.
        reached = margin(model(whole), y)
        torch.testing.assert_close(margin(model(split), y), reached, rtol=0, atol=1e-12)
        torch.testing.assert_close(margin(model(alone), y[part]), reached[part], rtol=0, atol=1e-12)
        # After a few small steps the points themselves agree, and those of another seed or row are far away.
        few = {"steps": 3, "step_size": 0.2, "queries": 3}
        short = replace(attack, **{option: value for option, value in few.items() if hasattr(attack, option)})
        whole = short(model, x, y, threat, seed=3)
        split = short(model, x, y, threat, seed=3, batch_size=4)
        alone = short(model, x[part], y[part], threat, seed=3, indices=part)
        # A start is drawn in float32, whose last bit is 6e-8 of eps = 0.1; three steps make it less than a hundred
        # times as large. Everything else is float64.
        torch.testing.assert_close(split, whole, rtol=0, atol=1e-6)
        torch.testing.assert_close(alone, whole[part], rtol=0, atol=1e-6)
        if getattr(attack, "random_start", name not in {SHORT[drawless] for drawless in ("ddn", "fmn")}):
            apart = (short(model, x, y, threat, seed=4) - whole).abs().flatten(1).amax(dim=1)
            assert (apart > 1e-3).all()

    def test_begins_where_it_is_told(self, name, norm):
        model, threat = Linear(3), Threat(norm, 0.1)
        x, y = examples(model, 9)
        problem = Problem(x, y, None, torch.arange(9), threat, clean=model(x), start=x.flip(0))
        begun = get_attack(name).init(problem).x
        assert torch.equal(begun, get_norm(norm).project(x.flip(0), Ball.of(x, threat)))
        turned = get_attack(name).init(problem.take(torch.arange(9).flip(0))).x.flip(0)
        # A length of 20 numbers rounds by at most 20 * 2^-53 of itself, in whatever order they are added.
        torch.testing.assert_close(turned, begun, rtol=0, atol=1e-14)


@pytest.mark.parametrize("norm", list(NORMS))
@pytest.mark.parametrize("loss", LOSS_NAMES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_two_classes_break_exactly_at_the_boundary(loss, norm, dtype):
    """Never at 0.99 times the distance, always at 1.01 times."""
    model = Linear(2, seed=1, dtype=dtype)
    x, y = examples_at(model, 256, norm, 0.01, seed=1)
    for share, wanted in ((0.99, 0), (1.01, 256)):
        adv = PGD(loss=loss, steps=10)(model, x, y, Threat(norm, share * 0.01))
        assert int((model(adv).argmax(dim=1) != y).sum()) == wanted


@pytest.mark.parametrize("norm", list(NORMS))
@pytest.mark.parametrize("loss", [*LOSS_NAMES, "dlr"])
def test_ten_classes_targeted_at_the_nearest(loss, norm, record_property):
    model = Linear(10, seed=2)
    x, y = examples_at(model, 256, norm, 0.01, seed=2)
    _, nearest = distance(model, x, y, norm)
    rates = {}
    for share in (0.99, 1.01):
        adv = PGD(loss=loss, steps=15)(model, x, y, Threat(norm, share * 0.01), targets=nearest)
        rates[share] = float((model(adv).argmax(dim=1) == nearest).double().mean())
    record_property("success towards the nearest class", str(rates))
    assert rates[0.99] == 0
    if loss in ("cw", "tmifpe", "tmifpe-naive"):
        assert rates[1.01] == 1
    # The other losses also push down classes that do not matter, and may stop short of 1.01 times.


@pytest.mark.parametrize("norm", list(NORMS))
def test_ten_classes_untargeted_tmifpe_breaks_nine_in_ten(norm, record_property):
    """Success rate at 1.05 times the distance; CE is reported beside it."""
    model = Linear(10, seed=3)
    x, y = examples_at(model, 512, norm, 0.01, seed=3)
    rates = {}
    for loss in ("ce", "tmifpe"):
        adv = PGD(loss=loss, steps=30)(model, x, y, Threat(norm, 1.05 * 0.01))
        rates[loss] = float((model(adv).argmax(dim=1) != y).double().mean())
    record_property("success at 1.05 times the distance", str(rates))
    assert rates["tmifpe"] >= 0.90
    assert rates["tmifpe"] >= rates["ce"]


def problem_of(model: Linear, n: int, threat: Threat) -> Problem:
    x, y = examples(model, n)
    return Problem(x, y, None, torch.arange(n), threat)


@pytest.mark.numerical
def test_verdict_and_strongest_agree():
    model, threat = Linear(5, seed=4), Threat("linf", 0.003)
    problem = problem_of(model, 60, threat)
    results = {mode: PGD(steps=20).run(problem, Queries(model), Loop(16, mode)) for mode in ("verdict", "strongest")}
    assert torch.equal(results["verdict"].fooled, results["strongest"].fooled)
    assert 5 < int(results["verdict"].fooled.sum()) < 55
    robust = ~results["verdict"].fooled
    assert torch.equal(results["verdict"].adv[robust], problem.x[robust])
    for name in ("margin", "gap"):  # a survivor's best point is known in both modes
        one, other = (getattr(result, name)[robust] for result in results.values())
        # The two modes batch differently: 20 steps of a linear model in float64 amplify an ulp by far less than 1e6.
        torch.testing.assert_close(one, other, rtol=0, atol=1e-9)
    assert (results["strongest"].margin >= results["verdict"].margin - 1e-9).all()


def test_strongest_keeps_the_best_point_not_the_last():
    """A bowl whose brim lies behind the first step: the last iterates are worse than the first."""

    class Bowl(nn.Module):
        def forward(self, x):
            height = -(x.flatten(1)[:, 0] - 0.55).abs()
            return torch.stack([-height, height], dim=1)

    x = torch.full((1, 1, 1, 1), 0.5)
    adv = PGD(loss="cw", steps=8, schedule="constant", step_size=0.9, momentum=0.0, random_start=False)(
        Bowl(), x, torch.tensor([0]), Threat("linf", 0.1)
    )
    assert abs(adv.item() - 0.55) < 0.045  # 0.59; the first and the last are 0.5


def test_queries_are_counted_and_few():
    model = Linear(3)
    queries = Queries(model)
    problem = problem_of(model, 40, Threat("linf", 1e-6))
    PGD(steps=10).run(problem, queries, Loop(16, "strongest"))
    assert (queries.tally.forwards, queries.tally.backwards) == (40 * 11, 40 * 10)


def test_broken_examples_leave_early():
    model = Linear(3)
    queries = Queries(model)
    verdicts = PGD(steps=50).run(problem_of(model, 40, Threat("linf", 0.4)), queries, Loop(8))
    assert verdicts.fooled.all()
    assert queries.tally.forwards < 40 * 10
    assert int(verdicts.steps.max()) < 10


def test_a_claim_that_fails_goes_back_for_its_remaining_steps():
    model, threat = Linear(3), Threat("linf", 0.3)
    problem = problem_of(model, 20, threat)
    seen: list[int] = []

    def doubt(adv, part):
        seen.extend(part.indices.tolist())
        # the first two claims of every example are refused
        return torch.tensor([seen.count(i) > 2 for i in part.indices.tolist()])

    verdicts = PGD(steps=30).run(problem, Queries(model), Loop(6, verify=doubt))
    assert verdicts.fooled.all()
    assert all(seen.count(i) == 3 for i in range(20))
    never = PGD(steps=5).run(problem, Queries(model), Loop(6, verify=lambda adv, part: torch.zeros(len(adv)).bool()))
    assert not never.fooled.any()
    assert torch.equal(never.adv, problem.x)


def test_restarts_start_anew_and_only_help():
    model, threat = Linear(10, seed=5), Threat("linf", 0.004)
    problem = problem_of(model, 80, threat)
    once = PGD(steps=3).run(problem, Queries(model), Loop(32, "strongest"))
    queries = Queries(model)
    thrice = PGD(steps=3, restarts=3).run(problem, queries, Loop(32, "strongest"))
    assert (thrice.margin >= once.margin - 1e-12).all()
    assert (thrice.margin > once.margin + 1e-9).any()
    assert queries.tally.forwards == 80 * 12


def test_models_without_gradient_are_survived():
    class Steps(nn.Module):
        def forward(self, x):
            with torch.no_grad():
                s = (x.flatten(1).sum(dim=1) * 8).round()
                return torch.stack([s, 80 - s], dim=1)

    x = torch.full((2, 1, 4, 4), 0.5)
    problem = Problem(x, torch.tensor([0, 0]), None, torch.arange(2), Threat("linf", 0.01))
    verdicts = PGD(steps=4).run(problem, Queries(Steps()), Loop())
    assert (verdicts.zero_grad == 4).all()


def test_unusable_logits_never_count_as_success():
    class Breaks(nn.Module):
        def forward(self, x):
            s = x.flatten(1).sum(dim=1)
            bad = torch.where(s > 8.2, torch.nan, s)
            return torch.stack([8.0 - s * 0, bad - 8], dim=1)

    x = torch.full((3, 1, 4, 4), 0.5)
    problem = Problem(x, torch.zeros(3, dtype=torch.long), None, torch.arange(3), Threat("linf", 0.3))
    verdicts = PGD(loss="cw", steps=10).run(problem, Queries(Breaks()), Loop())
    assert not verdicts.fooled.any()
    assert (verdicts.unusable > 0).all()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_every_dtype_of_image_is_handled(dtype):
    model = Linear(3, dtype=torch.float32)
    x, y = examples(model, 5)
    adv = PGD(steps=5)(model, x.to(dtype), y, Threat("linf", 0.3))
    assert adv.dtype == dtype
    assert (model(adv.float()).argmax(dim=1) != y).all()


@pytest.mark.parametrize(
    "options",
    [
        {"steps": 0},
        {"steps": 2.5},
        {"restarts": 0},
        {"momentum": 1.5},
        {"momentum": float("nan")},
        {"step_size": 0},
        {"schedule": "cosin"},
        {"loss": "tmipfe"},
        {"momentum_on": "x"},
    ],
)
def test_bad_options_are_one_sentence(options):
    with pytest.raises(InputError) as caught:
        PGD(**options)
    assert "\n" not in str(caught.value)


def test_bad_calls_are_one_sentence():
    model = Linear(3)
    x, y = examples(model, 4)
    threat = Threat("linf", 0.1)
    for bad in (
        lambda: PGD()(model, x + 2, y, threat),
        lambda: PGD()(model, x, y[:2], threat),
        lambda: PGD()(model, x, y.double(), threat),
        lambda: PGD()(lambda z: z, x, y, threat),
        lambda: PGD(loss="dlr")(Linear(2), x, y.clamp(max=1), threat),
        lambda: PGD()(model, x, y, Threat("l7", 0.1)),
    ):
        with pytest.raises(InputError):
            bad()


def test_attacks_have_gradients_in_inference_mode(robust_digits):
    model, x, y = robust_digits
    attack = PGD(steps=10)
    outside = attack(model, x, y, Threat("linf", 0.15))
    with torch.inference_mode():
        images = x.clone()
        inside = attack(model, images, y.clone(), Threat("linf", 0.15))
        result = tmifpe.evaluate(model, (images, y), Threat("linf", 0.15), attack, checks=False)
        tmifpe.audit(model, (images, y), limit=8)
    assert torch.equal(inside, outside)
    assert result.robust_accuracy < result.clean_accuracy


class NanOnce(nn.Module):
    """Its first gradient is NaN."""

    def __init__(self, inner):
        super().__init__()
        self.inner, self.seen = inner, 0

    def forward(self, x):
        logits = self.inner(x)
        if x.requires_grad:
            self.seen += 1
            if self.seen == 1:
                logits = logits + (0 * torch.sqrt(x * 0)).sum((1, 2, 3))[:, None]
        return logits


def test_one_lost_gradient_does_not_stay_in_the_momentum(robust_digits):
    model, x, y = robust_digits
    found = tmifpe.mim("tmifpe", steps=10)(NanOnce(model), x, y, Threat("linf", 0.15))
    assert ((found - x).abs().flatten(1).amax(dim=1) > 0.1).all()


def test_errors_are_on_one_line(robust_digits):
    model, x, y = robust_digits
    with pytest.raises(InputError) as caught:
        PGD(steps=1)(model, x, y.float(), Threat("linf", 0.15))
    assert "\n" not in str(caught.value)
