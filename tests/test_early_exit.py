"""Early exit: who stops, who is checked, and what a wrong exit does to the run."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console
from torch import Tensor, nn

import tmifpe
from tests.linear import Linear, distance, examples_at
from tests.test_smooth import Asleep, asleep
from tmifpe import Threat
from tmifpe.attacks import PGD, Loop, Problem, Queries, Sequence, get_attack
from tmifpe.attacks.loop.early_exit import EarlyExit, Exit, linear_gain
from tmifpe.cli.console import result_table
from tmifpe.losses import register_loss
from tmifpe.norms import NORMS, Ball, get_norm
from tmifpe.run.prepared_model import PreparedModel
from tmifpe.run.shard import Job

every_second = partial(EarlyExit, at=tuple(range(2, 100, 2)), checked=0.0)
"""Asks early and often, and checks nobody."""


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
def test_on_a_linear_model_who_is_far_away_stops_at_the_first_query_that_asks(norm: str, loss: str):
    """At 0.01 of the distance five times the whole gain is 5 % of it; at 0.9 and 0.5 it is more than all."""
    model, problem, share = at_shares(norm)
    attack = PGD(loss=loss, steps=20, random_start=False)
    kept = attack.run(problem, Queries(model), Loop(16))
    found = attack.run(problem, Queries(model), Loop(16, early_exit=every_second()))
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
    found = slow.run(problem, Queries(model), Loop(early_exit=every_second(times=3.0)))
    assert torch.equal(found.fooled, kept.fooled)
    assert (found.fooled & (found.steps > 10)).sum() > 30


@pytest.mark.parametrize("size", [1, 7, 64])
def test_the_decision_is_the_rows_own(size: int):
    model, problem, _ = at_shares("linf")
    attack, rule = PGD(steps=20), EarlyExit(at=(3, 6, 9))
    one = attack.run(problem, Queries(model), Loop(60, early_exit=rule))
    other = attack.run(problem, Queries(model), Loop(size, early_exit=rule))
    assert torch.equal(one.steps, other.steps)
    assert torch.equal(one.fooled, other.fooled)
    assert torch.equal(one.exit, other.exit)
    assert {Exit.STOPPED, Exit.CHECKED} <= set(one.exit.tolist())


def test_restarts_and_strongest_points_take_all_their_steps():
    model, problem, share = at_shares("linf")
    twice = PGD(steps=10, restarts=2).run(problem, Queries(model), Loop(early_exit=every_second()))
    assert (twice.steps[share < 0.1] == 21).all()
    loop = Loop(mode="strongest", early_exit=every_second())
    assert (PGD(steps=10).run(problem, Queries(model), loop).steps == 10).all()
    apgd = get_attack("apgd(steps=10)").run(problem, Queries(model), Loop(early_exit=every_second()))
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
        found = PGD(loss=loss, steps=8).run(problem, Queries(model), Loop(early_exit=every_second()))
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
        found = PGD(loss=loss, steps=8).run(problem, Queries(model), Loop(early_exit=every_second()))
        assert (found.steps == steps).all(), loss


def test_targeted_rows_leave_as_others_do():
    model, problem, share = at_shares("linf")
    second = model(problem.x).argsort(dim=1, descending=True)[:, 1]
    found = PGD(steps=8).run(replace(problem, targets=second), Queries(model), Loop(early_exit=every_second()))
    assert (found.steps[share < 0.1] == 2).all()


def test_a_dead_gradient_is_no_reason_to_leave():
    """The unit that turns the answer is off at first, and wakes where the smoothed gradient leads."""
    problem = asleep()
    attack = PGD(steps=20, random_start=False, smooth=1.0)
    assert attack.run(problem, Queries(Asleep()), Loop(early_exit=every_second())).fooled.all()


class Steep(nn.Module):
    """The true slope is 1; a unit that is off makes the smoothed one a thousand times larger, the other way."""

    def forward(self, x: Tensor) -> Tensor:
        mean = x.flatten(1).mean(dim=1, keepdim=True)
        units = torch.relu(torch.cat([0.1 - mean, mean], dim=1))
        return torch.cat([torch.ones_like(mean), units[:, 1:] + 1000 * units[:, :1]], dim=1)


def test_both_slopes_are_asked():
    """By the true slope, the boundary is out of reach; by the smoothed one, a unit that is off may wake."""
    x = torch.full((6, 1, 2, 2), 0.5)
    problem = Problem(x, torch.zeros(6, dtype=torch.long), None, torch.arange(6), Threat("linf", 0.05))
    attack = PGD(steps=20)
    assert (attack.run(problem, Queries(Steep()), Loop(early_exit=every_second())).steps == 20).all()
    queries = Queries(Steep())
    found = attack.run(problem, queries, Loop(early_exit=every_second(smooth=0.0)))
    assert (found.steps == 2).all()
    assert (queries.tally.forwards, queries.tally.backwards) == (
        4 * 6,
        4 * 6,
    )  # three queries, and one for the question


def test_nobody_stops_where_the_model_does_not_say_its_slope_itself():
    model, problem, _ = at_shares("linf")
    assert Queries(model).look(problem.x, lambda z: z[:, 0]).slope is not None
    assert Queries(model, eot=2).look(problem.x, lambda z: z[:, 0]).slope is None
    prepared = PreparedModel(model, torch.float32, torch.device("cpu"))
    job = Job(prepared, None, problem.threat, PGD())  # pyright: ignore[reportArgumentType]
    assert job.early_exit == EarlyExit()
    half = replace(prepared, dtype=torch.float16)
    through = replace(prepared, straight_through=("relu",))
    for other in (
        replace(job, stops_early=False),
        replace(job, eot=2),
        replace(job, keeps_batches=True),
        replace(job, prepared=half),
        replace(job, prepared=through),
        replace(job, threat=Threat("l1", 0.5)),
    ):
        assert other.early_exit is None


def test_half_of_the_examples_are_checked_whatever_the_batch():
    problem = Problem(torch.rand(2000, 1), torch.zeros(2000).long(), None, torch.arange(2000), Threat("linf", 0.1), 3)
    drawn = EarlyExit().checks(problem)
    assert 0.45 < float(drawn.double().mean()) < 0.55
    rows = torch.arange(1999, -1, -7)
    assert torch.equal(EarlyExit().checks(problem.take(rows)), drawn[rows])
    assert not torch.equal(EarlyExit().checks(replace(problem, seed=4)), drawn)


def test_a_row_that_later_stages_would_attack_may_come_near():
    """At half of the way: too far to break, near enough for the stage after that."""
    model = Linear(3)
    x, y = examples_at(model, 20, "linf", 0.01)
    far, _ = distance(model, x, y, "linf")
    problem = Problem(x, y, None, torch.arange(20), Threat("linf", 0.5), clean=model(x)).at(0.1 * far)
    steps = PGD(steps=10, random_start=False)
    rule = every_second(times=2.0)
    for share, stays in ((0.95, True), (0.2, False)):
        sequence = Sequence((steps, get_attack(f"near(attack=pgd(steps=4),share={share})")))
        queries = Queries(model)
        sequence.run(problem, queries, Loop(early_exit=rule))
        first, second = queries.stages
        assert (first.forwards > 4 * 20) == stays
        assert second.examples == (20 if stays else 0)


def far_away() -> tuple[nn.Module, Tensor, Tensor]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(16, 5))
    x = torch.rand(40, 1, 4, 4)
    with torch.no_grad():
        return model, x, model(x).argmax(dim=1)


def test_evaluate_stops_early_unless_told_not_to():
    model, x, y = far_away()
    threat, attack = Threat("linf", 1e-5), PGD(steps=30)
    kept = tmifpe.evaluate(model, (x, y), threat, attack, early_exit=False)
    found = tmifpe.evaluate(model, (x, y), threat, attack)
    assert kept.early_exits is None
    assert kept.outcomes.steps_used.tolist() == [30] * 40
    assert found.early_exits is not None
    stopped, checked = found.early_exits.stopped, found.early_exits.checked
    assert sorted(found.outcomes.steps_used.tolist()) == [20] * stopped + [30] * checked
    assert (stopped + checked, found.early_exits.wrong) == (40, 0)
    assert 10 < stopped < 30
    assert found.to_json()["early_exit"] == {"n": 40, "stopped": stopped, "checked": checked, "wrong": 0}
    assert "stopped early (predicted robust)" in found.to_markdown()
    printed = Console(width=400)
    with printed.capture() as shown:
        printed.print(result_table(found))
    assert f"{stopped} of 40 stopped early (predicted robust)" in shown.get()


class Cliff(nn.Module):
    """A plateau with a cliff: from 30 steps on every example breaks, and no slope says so before."""

    def forward(self, x: Tensor) -> Tensor:
        way = (x - 0.5).flatten(1).mean(dim=1, keepdim=True)
        return torch.cat([torch.ones_like(way), way + 1e4 * torch.relu(way - 0.075).square()], dim=1)


SLOW = PGD(steps=60, step_size=0.03, schedule="constant", momentum=0.0, random_start=False)
"""Small steps, so that early exit asks before the cliff."""


def on_the_cliff(n: int = 40) -> tuple[nn.Module, tuple[Tensor, Tensor], Threat]:
    return Cliff(), (torch.full((n, 1, 2, 2), 0.5), torch.zeros(n, dtype=torch.long)), Threat("linf", 0.09)


@pytest.mark.parametrize("options", [{}, {"shard_size": 7}, {"workers": 2, "shard_size": 7}, {"batch_size": 3}])
def test_a_wrong_exit_switches_early_exit_off_for_the_run(options: dict[str, Any]):
    model, data, threat = on_the_cliff()
    kept = tmifpe.evaluate(model, data, threat, SLOW, early_exit=False)
    found = tmifpe.evaluate(model, data, threat, SLOW, **options)
    assert kept.robust == found.robust == 0
    assert found.outcomes.steps_used.tolist() == kept.outcomes.steps_used.tolist()
    exits = found.early_exits
    assert exits is not None
    assert exits.stopped == 0
    assert exits.wrong == exits.checked == found.plan.failed_exits.checked > 0
    assert "early-exit-wrong" in {flag.name for flag in found.flags}
    # The shards that were computed twice are counted twice, wherever that was.
    alone = {name: value for name, value in options.items() if name != "workers"}
    assert found.tally == tmifpe.evaluate(model, data, threat, SLOW, **alone).tally
    assert found.tally.forwards > 1.5 * kept.tally.forwards


def test_a_run_that_is_killed_while_it_takes_up_wrong_exits_goes_on(tmp_path: Path):
    model, data, threat = on_the_cliff()
    whole = tmifpe.evaluate(model, data, threat, SLOW, shard_size=7)
    most = 0

    class Killed(Exception):
        pass

    def progress(step: Any) -> None:
        nonlocal most
        most = max(most, step.done)
        if most == 40 and 10 < step.done < 40:  # shards were thrown away, and one of them is there again
            raise Killed

    options: dict[str, Any] = {"shard_size": 7, "store": tmp_path, "name": "cliff"}
    with pytest.raises(Killed):
        tmifpe.evaluate(model, data, threat, SLOW, **options, progress=progress)
    found = tmifpe.evaluate(model, data, threat, SLOW, **options)
    again = tmifpe.evaluate(model, data, threat, SLOW, **options)
    for one in (found, again):
        assert one.outcomes.fooled.all()
        assert one.early_exits == whole.early_exits
        assert one.tally == whole.tally


def test_array_jobs_that_find_a_wrong_exit_leave_the_rest_to_the_merged_run(tmp_path: Path):
    """Each job sees its own part alone; the merged run lacks the shards in which examples stopped early."""
    from tmifpe.store.merge import merge

    model, data, threat = on_the_cliff()
    options: dict[str, Any] = {"shard_size": 7, "store": tmp_path, "name": "cliff"}
    for part in ("1/2", "2/2"):
        tmifpe.evaluate(model, data, threat, SLOW, **options, shard=part)
    (merged,) = merge([tmp_path / "shard-1-of-2", tmp_path / "shard-2-of-2"], tmp_path)
    assert merged.result.missing > 0
    found = tmifpe.evaluate(model, data, threat, SLOW, **options)
    whole = tmifpe.evaluate(model, data, threat, SLOW, shard_size=7)
    assert found.outcomes.fooled.all()
    assert (found.early_exits, found.tally) == (whole.early_exits, whole.tally)


def test_whether_examples_stop_early_is_part_of_the_key(tmp_path: Path):
    model, x, y = far_away()
    options: dict[str, Any] = {"store": tmp_path, "name": "far"}
    runs = [
        tmifpe.evaluate(model, (x, y), Threat("linf", 1e-5), PGD(steps=30), **options, **more)
        for more in ({}, {"early_exit": False}, {"tune": "off"}, {})
    ]
    assert len({run.key for run in runs}) == 3
    assert [run.resumed for run in runs] == [0, 0, 0, 40]


@pytest.mark.parametrize("key", ["tmifpe", "ce"])
def test_real_weights_keep_their_verdicts(shared: Path, key: str):
    """resnet2b at 2/255: the same verdicts for four fifths of the passes at most."""
    normal: dict[str, Any] = {"mean": (0.4914, 0.4822, 0.4465), "std": (0.2471, 0.2435, 0.2616)}
    model = tmifpe.load_model(str(shared / "models/cifar10_resnet2b.onnx"), **normal)
    data = tmifpe.load_data(f"npz:{shared / 'data/cifar10/test_first_846.npz'}", limit=48)
    threat, attack = Threat("linf", 2 / 255), PGD(loss=key)
    kept, found = (tmifpe.evaluate(model, data, threat, attack, early_exit=early) for early in (False, True))
    assert found.outcomes.robust.tolist() == kept.outcomes.robust.tolist()
    assert found.tally.backwards <= 0.8 * kept.tally.backwards
