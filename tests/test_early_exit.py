"""Rows that cannot get to the boundary leave early, and nobody else does."""

from __future__ import annotations

import dataclasses
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

import tmifpe
from tests.linear import Linear, distance, examples_at
from tests.test_smooth import Asleep, asleep
from tmifpe import Threat
from tmifpe.attacks import PGD, Loop, Problem, Queries, Sequence, get_attack
from tmifpe.attacks.loop.reach import Reach, linear_gain
from tmifpe.losses import register_loss
from tmifpe.norms import NORMS, Ball, get_norm
from tmifpe.run.prepared_model import PreparedModel
from tmifpe.run.shard import Job
from tmifpe.run.tune.tuning import Tuning


def at_shares(norm: str, n: int = 60) -> tuple[Linear, Problem, Tensor]:
    """Rows of a linear model, every third at 0.9, at 0.5 and at 0.01 times its distance to the boundary; the shares."""
    model = Linear(3)
    x, y = examples_at(model, n, norm, 0.01)
    far, _ = distance(model, x, y, norm)
    share = torch.tensor([0.9, 0.5, 0.01], dtype=torch.float64).repeat(n // 3)
    return model, Problem(x, y, None, torch.arange(n), Threat(norm, 0.5)).at(far * share), share


@given(st.integers(0, 10**6), st.sampled_from(list(NORMS)), st.sampled_from([torch.float32, torch.float64]))
def test_no_point_of_the_ball_gains_more(seed: int, name: str, dtype: torch.dtype):
    """Corners, random points and, where the norm knows of the box, the point that gains exactly that."""
    draw = torch.Generator().manual_seed(seed)
    x, grad = torch.rand(4, 2, 3, generator=draw, dtype=dtype), torch.randn(4, 2, 3, generator=draw, dtype=dtype)
    ball, norm = Ball(x, torch.rand(4, generator=draw).double(), 0.0, 1.0), get_norm(name)
    here = norm.project(torch.rand(4, 2, 3, generator=draw, dtype=dtype), ball)
    gain = linear_gain(norm, grad, here, ball, norm.region(ball))
    far = [x + scale * torch.sign(grad) for scale in (0.1, 10.0)] + [x + 10 * norm.direction(grad)]
    far += [torch.rand(4, 2, 3, generator=draw, dtype=dtype) for _ in range(5)]
    for point in far:
        found = (grad * (norm.project(point, ball) - here)).flatten(1).sum(dim=1)
        # Six products of numbers around 1: a few hundred roundings at most.
        assert (found <= gain + 300 * torch.finfo(dtype).eps).all()
    if name == "linf":
        best = (grad * (norm.project(x + 10 * torch.sign(grad), ball) - here)).flatten(1).sum(dim=1)
        torch.testing.assert_close(best, gain)
        torch.testing.assert_close(gain, linear_gain(norm, grad, here, ball, None))


@pytest.mark.parametrize("norm", list(NORMS))
@pytest.mark.parametrize("loss", ["tmifpe", "ce", "cw"])
def test_on_a_linear_model_who_is_far_away_leaves_at_the_first_look_that_asks(norm: str, loss: str):
    """At 0.01 of the distance five times the whole gain is 5 % of it; at 0.9 and 0.5 it is more than all."""
    model, problem, share = at_shares(norm)
    attack = PGD(loss=loss, steps=20, random_start=False)
    kept = attack.run(problem, Queries(model), Loop(16))
    found = attack.run(problem, Queries(model), Loop(16, reach=Reach(every=2)))
    assert torch.equal(found.fooled, kept.fooled)
    assert (found.steps[share < 0.1] == 2).all()
    assert (kept.steps[share < 0.1] == 20).all()
    assert ((found.margin < 0) == ~found.fooled).all()
    assert found.rise[share < 0.1].eq(0).all()


def test_who_can_be_broken_stays_whatever_the_look():
    """Steps so small that it takes dozens of them; three times the gain makes up for the rival that changes."""
    model = Linear(3)
    x, y = examples_at(model, 60, "linf", 0.01)
    far, _ = distance(model, x, y, "linf")
    problem = Problem(x, y, None, torch.arange(60), Threat("linf", 0.5)).at(far * 1.05)
    slow = PGD(loss="cw", steps=40, step_size=0.05, schedule="constant", momentum=0.0, random_start=False)
    kept = slow.run(problem, Queries(model), Loop())
    found = slow.run(problem, Queries(model), Loop(reach=Reach(times=3.0, every=1)))
    assert torch.equal(found.fooled, kept.fooled)
    assert (found.fooled & (found.steps > 10)).sum() > 30


@pytest.mark.parametrize("size", [1, 7, 64])
def test_the_decision_is_the_rows_own(size: int):
    model, problem, _ = at_shares("linf")
    attack, reach = PGD(steps=20), Reach(every=3)
    one = attack.run(problem, Queries(model), Loop(60, reach=reach))
    other = attack.run(problem, Queries(model), Loop(size, reach=reach))
    assert torch.equal(one.steps, other.steps)
    assert torch.equal(one.fooled, other.fooled)


def test_restarts_and_strongest_points_take_all_their_steps():
    model, problem, share = at_shares("linf")
    twice = PGD(steps=10, restarts=2).run(problem, Queries(model), Loop(reach=Reach(every=2)))
    assert (twice.steps[share < 0.1] == 21).all()
    loop = Loop(mode="strongest", reach=Reach(every=2))
    assert (PGD(steps=10).run(problem, Queries(model), loop).steps == 10).all()
    apgd = get_attack("apgd(steps=10)").run(problem, Queries(model), Loop(reach=Reach(every=2)))
    assert (apgd.steps[share < 0.1] == 10).all()


def _against(logits: Tensor, labels: Tensor, targets: Tensor | None) -> Tensor:
    """A loss with the wrong sign: the slope at the label is positive."""
    return logits.gather(1, labels[:, None])[:, 0] - logits.mean(dim=1)


def _sum(logits: Tensor, labels: Tensor, targets: Tensor | None) -> Tensor:
    """No difference of logits: what it gains says nothing of the margin."""
    return logits.sum(dim=1) - 2 * len(logits[0]) * logits.gather(1, labels[:, None])[:, 0] - 3 * logits[:, 0]


def test_nobody_leaves_for_a_loss_that_is_no_margin():
    register_loss("reach-against")(_against)
    register_loss("reach-sum")(_sum)
    model, problem, share = at_shares("linf")
    for loss in ("dlr", "reach-against", "reach-sum"):
        found = PGD(loss=loss, steps=8).run(problem, Queries(model), Loop(reach=Reach(every=2)))
        stayed = found.steps[share < 0.1] == 8
        # A row whose label is class 0 has a slope of that form even for the sum.
        assert stayed.all() if loss != "reach-sum" else stayed.any(), loss


def test_nobody_leaves_for_a_slope_that_has_rounded_to_zero():
    """Cross-entropy of logits 1e4 apart is 0 in float32, and so is its slope."""
    weights = torch.tensor([[1e4, 0.0], [0.0, 1e4]])
    model = nn.Linear(2, 2, bias=False)
    model.weight = nn.Parameter(weights)
    x = torch.tensor([[0.9, 0.1]] * 3)
    problem = Problem(x, torch.zeros(3, dtype=torch.long), None, torch.arange(3), Threat("linf", 1e-3))
    for loss, steps in (("ce", 8), ("tmifpe", 2)):
        found = PGD(loss=loss, steps=8).run(problem, Queries(model), Loop(reach=Reach(every=2)))
        assert (found.steps == steps).all(), loss


def test_targeted_rows_leave_as_others_do():
    model, problem, share = at_shares("linf")
    second = model(problem.x).argsort(dim=1, descending=True)[:, 1]
    found = PGD(steps=8).run(replace(problem, targets=second), Queries(model), Loop(reach=Reach(every=2)))
    assert (found.steps[share < 0.1] == 2).all()


def test_a_dead_gradient_is_no_reason_to_leave():
    """The unit that turns the answer is off at first, and wakes where the smoothed gradient leads."""
    problem = asleep()
    attack = PGD(steps=20, random_start=False, smooth=1.0)
    assert attack.run(problem, Queries(Asleep()), Loop(reach=Reach(every=1))).fooled.all()


def test_a_smoothed_attack_asks_for_the_true_gradient():
    class Steep(nn.Module):
        """The true slope is 1; a dead unit beside it makes the smoothed one a thousand times larger."""

        def forward(self, x: Tensor) -> Tensor:
            mean = x.flatten(1).mean(dim=1)
            return torch.stack([torch.ones_like(mean), mean + 1000 * torch.relu(mean - 0.9)], dim=1)

    x = torch.full((6, 1, 2, 2), 0.5)
    problem = Problem(x, torch.zeros(6, dtype=torch.long), None, torch.arange(6), Threat("linf", 0.05))
    queries = Queries(Steep())
    found = PGD(steps=20, smooth=3.0).run(problem, queries, Loop(reach=Reach(every=2)))
    assert (found.steps == 2).all()
    assert (queries.tally.forwards, queries.tally.backwards) == (4 * 6, 4 * 6)  # three looks, and one for the question


def test_what_the_model_does_not_say_itself_turns_nobody_away():
    model, problem, _ = at_shares("linf")
    assert Queries(model).look(problem.x, lambda z: z[:, 0]).slope is not None
    assert Queries(model, eot=2).look(problem.x, lambda z: z[:, 0]).slope is None
    prepared = PreparedModel(model, torch.float32, torch.device("cpu"))
    job = Job(prepared, None, problem.threat, PGD(), tuning=Tuning(reach=5.0))  # pyright: ignore[reportArgumentType]
    assert job.reach == Reach(5.0)
    half = replace(prepared, dtype=torch.float16)
    through = replace(prepared, straight_through=("relu",))
    for other in (
        replace(job, tuning=None),
        replace(job, tuning=Tuning()),
        replace(job, eot=2),
        replace(job, keeps_batches=True),
        replace(job, prepared=half),
        replace(job, prepared=through),
    ):
        assert other.reach is None


def test_a_row_that_later_stages_would_attack_may_come_near():
    """At half of the way: too far to break, near enough for the stage after that."""
    model = Linear(3)
    x, y = examples_at(model, 20, "linf", 0.01)
    far, _ = distance(model, x, y, "linf")
    problem = Problem(x, y, None, torch.arange(20), Threat("linf", 0.5), clean=model(x)).at(0.1 * far)
    steps = PGD(steps=10, random_start=False)
    reach = Reach(times=2.0, every=2)
    for share, stays in ((0.95, True), (0.2, False)):
        sequence = Sequence((steps, get_attack(f"near(attack=pgd(steps=4),share={share})")))
        queries = Queries(model)
        sequence.run(problem, queries, Loop(reach=reach))
        first, second = queries.stages
        assert (first.forwards > 3 * 20) == stays
        assert second.examples == (20 if stays else 0)


def test_evaluate_lets_rows_go_unless_tuning_is_off(tmp_path: Path):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(16, 5))
    x = torch.rand(12, 1, 4, 4)
    with torch.no_grad():
        y = model(x).argmax(dim=1)
    threat, attack = Threat("linf", 1e-5), PGD(steps=30)
    kept = tmifpe.evaluate(model, (x, y), threat, attack, tune="off", checks=False)
    found = tmifpe.evaluate(model, (x, y), threat, attack, tune="auto", checks=False)
    assert (kept.outcomes.steps_used.tolist(), found.outcomes.steps_used.tolist()) == ([30] * 12, [10] * 12)
    assert (kept.plan.tuning, found.plan.tuning) == (None, Tuning(reach=Reach().times))
    assert found.to_json()["tuning"] == dataclasses.asdict(Tuning(reach=5.0))
    part = tmifpe.evaluate(model, (x, y), threat, attack, tune="auto", shard="1/2", shard_size=4, store=tmp_path)
    assert set(part.outcomes.steps_used.tolist()) == {10}


@pytest.mark.parametrize("key", ["tmifpe", "ce"])
def test_real_weights_keep_their_verdicts(shared: Path, key: str):
    """resnet2b at 2/255: the same verdicts for a third of the passes at most."""
    normal: dict[str, Any] = {"mean": (0.4914, 0.4822, 0.4465), "std": (0.2471, 0.2435, 0.2616)}
    model = tmifpe.load_model(str(shared / "models/cifar10_resnet2b.onnx"), **normal)
    data = tmifpe.load_data(f"npz:{shared / 'data/cifar10/test_first_846.npz'}", limit=48)
    threat, attack = Threat("linf", 2 / 255), PGD(loss=key)
    kept, found = (tmifpe.evaluate(model, data, threat, attack, tune=tune, checks=False) for tune in ("off", "auto"))
    assert found.outcomes.robust.tolist() == kept.outcomes.robust.tolist()
    assert 3 * found.tally.backwards <= kept.tally.backwards
