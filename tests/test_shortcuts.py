"""Shortcuts as they ship: a wrong factor, share or sign fails here, whatever the networks of other tests do."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import tmifpe
from tmifpe import PGD, Threat
from tmifpe.attacks import Loop, Problem, Queries
from tmifpe.attacks.hooks.smooth import SmoothBackward
from tmifpe.attacks.loop.early_exit import EarlyExit, Exit
from tmifpe.attacks.near import Near


class Ramp(nn.Module):
    """Two classes; the second rises by 1 over eps = 0.1 in every pixel, times `steep`."""

    def __init__(self, steep: float) -> None:
        super().__init__()
        self.steep = steep

    def forward(self, x: Tensor) -> Tensor:
        way = 10 * self.steep * (x - 0.5).flatten(1).mean(dim=1, keepdim=True)
        return torch.cat([torch.ones_like(way), way], dim=1)


def on_a_ramp(steep: float, n: int = 12) -> tuple[Ramp, tuple[Tensor, Tensor]]:
    return Ramp(steep), (torch.full((n, 1, 2, 2), 0.5), torch.zeros(n, dtype=torch.long))


SLOW = PGD(steps=100, step_size=0.01, schedule="constant", momentum=0.0, random_start=False)
"""A hundredth of eps a step: at query 20 four fifths of the way are left."""


@pytest.mark.parametrize(("steep", "steps"), [(0.22, {20, 100}), (0.26, {40, 100}), (0.99, {100})])
def test_the_shipped_rule_stops_at_five_times_the_gain(steep: float, steps: set[int]):
    """At query 20 the margin is 0.2 steep - 1 and the gain 0.8 steep: five times that reach 0 at steep 0.238."""
    model, (x, y) = on_a_ramp(steep)
    problem = Problem(x, y, None, torch.arange(len(x)), Threat("linf", 0.1))
    found = SLOW.run(problem, Queries(model), Loop(early_exit=EarlyExit()))
    assert set(found.steps.tolist()) == steps
    assert set(found.exit.tolist()) == ({Exit.NONE} if steps == {100} else {Exit.STOPPED, Exit.CHECKED})


@pytest.mark.parametrize("units", [1, 2, 3])
@pytest.mark.parametrize("unit", [torch.relu, torch.tanh, nn.functional.gelu, nn.functional.silu])
def test_the_units_of_a_network_share_the_smoothing(unit: nn.Module, units: int):
    """Each unit is smoothed by its share: the mean slope over twice share / units of the row's own deviation."""
    torch.manual_seed(0)
    z = torch.randn(4, 6, dtype=torch.float64)
    share = torch.tensor([0.0, 0.5, 1.0, 3.0], dtype=torch.float64)
    leaf = z.clone().requires_grad_()
    with SmoothBackward(share):
        outs = [unit(leaf + k) for k in range(units)]
    (found,) = torch.autograd.grad(torch.stack(outs).sum(), leaf)
    expected = torch.zeros_like(z)
    for k in range(units):
        width = (2 * share / units * (z + k).std(dim=1, correction=0)).clamp(min=1e-7)[:, None]
        expected += (unit(z + k + width) - unit(z + k - width)) / (2 * width)
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-6)


def test_what_the_stages_cost_adds_up_to_the_run(robust_digits: tuple[nn.Module, Tensor, Tensor]):
    """Every pass is a stage's or the clean one; three shards, so that costs are added, too."""
    model, x, y = robust_digits
    threat = Threat("linf", 0.1)
    for options in ({}, {"tune": "off"}, {"radii": [0.05]}):
        found = tmifpe.evaluate(model, (x, y), threat, checks=False, shard_size=20, **options)
        assert len(found.stages) == len(found.spec.attacks)
        assert sum(stage.forwards for stage in found.stages) == found.tally.forwards - len(x)
        assert sum(stage.backwards for stage in found.stages) == found.tally.backwards
        assert sum(stage.broken for stage in found.stages) == found.broken


def test_more_starts_only_for_what_is_near_and_still_moves():
    """Near the boundary and different from the stage before: both, or the row is left alone."""
    model, (x, y) = on_a_ramp(0.5, 4)
    problem = Problem(x, y, None, torch.arange(4), Threat("linf", 0.1), clean=model(x))
    problem.reached = torch.tensor([-0.05, -0.05, -0.9, -0.9])
    problem.spread = torch.tensor([0.1, 0.001, 0.9, 0.001], dtype=torch.float64)
    found = Near(PGD(steps=2, momentum=0.0), share=0.1, spread=3.0).run(problem, Queries(model), Loop())
    assert (found.margin > -torch.inf).tolist() == [True, False, False, False]


@pytest.mark.parametrize(("steps", "last"), [(100, 10), (20, 2)])
def test_what_the_last_tenth_of_the_steps_gained(steps: int, last: int):
    model, (x, y) = on_a_ramp(0.9)
    problem = Problem(x, y, None, torch.arange(len(x)), Threat("linf", 0.1))
    slow = PGD(steps=steps, step_size=1 / steps, schedule="constant", momentum=0.0, random_start=False)
    found = slow.run(problem, Queries(model), Loop())
    each = 0.9 / steps
    torch.testing.assert_close(found.rise, torch.full_like(found.rise, each * (last + 1)), rtol=1e-3, atol=1e-5)
