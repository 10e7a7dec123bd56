"""GAMA-PGD: its formula, its start, its steps, and what it asks of the model. The contracts of every attack are
tested in test_attacks_contract.py."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import tmifpe
from tests.linear import Linear, examples
from tmifpe import Threat
from tmifpe.attacks import GAMA, PGD, Loop, Problem, Queries, get_attack
from tmifpe.attacks.schedules import get_schedule
from tmifpe.core.errors import InputError

pytestmark = [pytest.mark.numerical, pytest.mark.usefixtures("unchecked")]


def problem_of(model: Linear, n: int, threat: Threat, targets: Tensor | None = None) -> Problem:
    x, y = examples(model, n)
    return Problem(x, y, targets, torch.arange(n), threat, clean=model(x).detach())


class Watched(nn.Module):
    """A model that remembers where it was asked."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner, self.seen = inner, []

    def forward(self, x):
        self.seen.append(x.detach().clone())
        return self.inner(x)


@pytest.mark.parametrize("targeted", [False, True])
def test_objective_is_the_formula_at_every_step(targeted):
    model = Linear(5)
    targets = torch.arange(7) % 5 if targeted else None
    problem = problem_of(model, 7, Threat("linf", 0.1), targets)
    attack = GAMA()
    state = attack.init(problem)
    state.looks = torch.tensor([0, 1, 12, 24, 25, 26, 99])  # every row at its own step
    weights = [50.0, 48.0, 26.0, 2.0, 0.0, 0.0, 0.0]
    logits = model(state.x).detach()
    value = attack.objective(problem, state)(logits)
    for k, weight in enumerate(weights):
        p, clean = logits[k].softmax(dim=0), problem.clean[k].softmax(dim=0)
        aim = int(targets[k]) if targeted else int(problem.labels[k])
        rival = max(float(p[i]) for i in range(5) if i != aim)
        margin = float(p[aim]) - rival if targeted else rival - float(p[aim])
        wanted = margin + weight * float(((p - clean) ** 2).sum())
        assert float(value[k]) == pytest.approx(wanted, abs=1e-12)


@pytest.mark.parametrize("momentum", [0.0, 0.75])
def test_every_iterate_is_that_of_the_plain_algorithm(momentum):
    """Written out for one image: sign steps of 2 eps, divided by 10 at 60 % and 85 %; momentum on the iterate."""
    inner, steps, eps = Linear(4, seed=7), 20, 0.05
    model = Watched(inner)
    x, y = examples(inner, 1)
    GAMA(steps=steps, momentum=momentum)(model, x, y, Threat("linf", eps), seed=5)
    clean_look, *looks = model.seen
    assert torch.equal(clean_look, x)
    assert len(looks) == steps + 1
    low, high = (x - eps).clamp(min=0), (x + eps).clamp(max=1)
    clean = inner(x).detach().softmax(dim=1)
    point = before = looks[0]
    for i in range(steps):
        leaf = point.clone().requires_grad_()
        p = inner(leaf).softmax(dim=1)
        rival = p.masked_fill(torch.eye(4, dtype=torch.bool)[y], -1).max()
        weight = max(0.0, 50 * (1 - i / 5))
        (rival - p[0, y[0]] + weight * ((p - clean) ** 2).sum()).backward()
        size = 2 * eps * (1 if i < 12 else 0.1 if i < 17 else 0.01)
        moved = torch.clamp(point + size * leaf.grad.sign(), low, high)
        if momentum and i > 0:
            moved = torch.clamp(point + momentum * (moved - point) + (1 - momentum) * (point - before), low, high)
        before, point = point, moved
        torch.testing.assert_close(looks[i + 1], point, rtol=0, atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("steps", [20, 100, 140])
def test_step_is_divided_by_ten_twice(steps, dtype):
    share = get_schedule("drops")(torch.arange(steps, dtype=dtype) / steps)
    assert share.dtype == dtype
    changes = (share.diff() != 0).nonzero()[:, 0] + 1
    assert changes.tolist() == [steps * 60 // 100, steps * 85 // 100]
    torch.testing.assert_close(share[[0, -1]], torch.tensor([1.0, 0.01], dtype=dtype))


def test_start_is_a_fair_coin_per_pixel_and_a_point_of_the_sphere():
    x = torch.full((40, 3, 8, 8), 0.5)
    indices = torch.arange(100, 140)
    problems = {norm: Problem(x, indices, None, indices, Threat(norm, 0.25), seed=3) for norm in ("linf", "l2")}
    coin = GAMA().start(problems["linf"], 0) - x
    assert torch.equal(coin.abs(), torch.full_like(coin, 0.25))
    assert abs(float((coin > 0).float().mean()) - 0.5) < 5 * 0.5 / coin.numel() ** 0.5
    ball = GAMA().start(problems["l2"], 0) - x
    torch.testing.assert_close(ball.flatten(1).norm(dim=1), torch.full((40,), 0.25))
    rows = torch.tensor([7, 30])
    assert torch.equal(GAMA().start(problems["linf"].take(rows), 0), (coin + x)[rows])
    assert not torch.equal(GAMA().start(problems["linf"], 1), coin + x)


def test_clean_softmax_costs_one_forward_where_it_is_not_known_and_none_where_it_is():
    model, threat = Linear(3), Threat("linf", 1e-6)
    known = problem_of(model, 40, threat)
    unknown = Problem(known.x, known.labels, None, known.indices, threat)
    tallies, verdicts = [], []
    for problem in (known, unknown):
        queries = Queries(model)
        verdicts.append(GAMA(steps=10).run(problem, queries, Loop(16, "strongest")))
        tallies.append((queries.tally.forwards, queries.tally.backwards))
    assert tallies == [(40 * 11, 400), (40 * 12, 400)]
    torch.testing.assert_close(verdicts[0].adv, verdicts[1].adv, rtol=0, atol=1e-12)
    x, y = known.x, known.labels
    result = tmifpe.evaluate(model, (x, y), threat, GAMA(steps=10), batch_size=16)
    plain = tmifpe.evaluate(model, (x, y), threat, PGD(steps=10), batch_size=16)
    assert result.tally.forwards == plain.tally.forwards


def test_saturated_softmax_gives_no_gradient_and_is_seen():
    """The weakness that T-MIFPE is about: p is 0 and 1 in floating point, and the attack stands still."""
    model = Linear(3, dtype=torch.float32, scale=1e4)
    x, y = examples(model, 10)
    result = tmifpe.evaluate(model, (x, y), Threat("linf", 0.02), GAMA(steps=5))
    assert result.broken < tmifpe.evaluate(model, (x, y), Threat("linf", 0.02), PGD(steps=5)).broken
    assert (result.outcomes.marks != 0).any()


def test_targeted_reaches_its_target():
    model, threat = Linear(4, seed=3), Threat("linf", 0.3)
    x, y = examples(model, 12)
    result = tmifpe.evaluate(model, (x, y), threat, GAMA(steps=20), targets="least-likely")
    assert result.success_rate == 1.0
    assert (result.outcomes.adv_pred == result.outcomes.target).all()


@pytest.mark.parametrize("precision", ["fp16", "bf16", "fp32", "fp64"])
def test_every_precision(precision):
    model = Linear(3)
    x, y = examples(model, 8, spread=0.1)
    result = tmifpe.evaluate(model, (x, y), Threat("linf", 0.4), GAMA(steps=10), precision=precision)
    assert result.robust_accuracy == 0.0


def test_unusable_logits_are_survived():
    class Breaks(nn.Module):
        def forward(self, x):
            s = x.flatten(1).sum(dim=1)
            return torch.stack([8.0 - s * 0, torch.where(s > 8.2, torch.nan, s) - 8], dim=1)

    x = torch.full((3, 1, 4, 4), 0.5)
    problem = Problem(x, torch.zeros(3, dtype=torch.long), None, torch.arange(3), Threat("linf", 0.3))
    verdicts = GAMA(steps=10).run(problem, Queries(Breaks()), Loop())
    assert not verdicts.fooled.any()
    assert torch.isfinite(verdicts.adv).all()


@pytest.mark.parametrize(
    "text", ["gama(weight=-1)", "gama(decay=0)", "gama(decay=2)", "gama(momentum=2)", "gama(steps=0)", "gama(loss=ce)"]
)
def test_bad_options_are_one_sentence(text):
    with pytest.raises(InputError) as caught:
        get_attack(text)
    assert "\n" not in str(caught.value)


def test_gama_shortens_its_steps_on_time_however_a_share_is_rounded():
    from tmifpe.attacks.schedules import get_schedule

    by_reciprocal = torch.arange(100, dtype=torch.float32) * torch.tensor(1 / 100, dtype=torch.float32)
    sizes = get_schedule("drops")(by_reciprocal)
    assert (sizes > 0.5).sum() == 60
    assert (sizes > 0.05).sum() == 85
