"""Attacks under published names are as strong as the originals: closed forms at few steps, shares that must fall.

docs/named.md compares them with the originals themselves.
"""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

import tmifpe
from tmifpe import Threat
from tmifpe.attacks import DDN, FAB, FMN, PGD, Budget, Loop, Problem, Queries, Square
from tmifpe.attacks.radius.fab import onto_plane
from tmifpe.attacks.radius.outside import Outside
from tmifpe.compat.autoattack import APGDSettings, AutoAttack
from tmifpe.core.errors import InputError
from tmifpe.norms import get_norm
from tmifpe.testing import check_attack

NORMS = ("linf", "l2", "l1")
CONJUGATE = {"linf": 1, "l2": 2, "l1": math.inf}
SEARCHES = [("fmn", norm) for norm in NORMS] + [("fab", norm) for norm in NORMS] + [("ddn", "l2")]


class Binary(nn.Module):
    """Two classes whose boundary is a plane, and a third that never wins, in float64."""

    def __init__(self, weight: Tensor, bias: Tensor) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(weight.double()), nn.Parameter(bias.double())

    def forward(self, x: Tensor) -> Tensor:
        lead = x.flatten(1) @ self.weight + self.bias
        return torch.stack([-lead, lead, torch.full_like(lead, -1e3)], dim=1)

    def distance(self, x: Tensor, norm: str) -> Tensor:
        lead = (x.flatten(1) @ self.weight + self.bias).detach()
        return lead.abs() / torch.linalg.vector_norm(self.weight.detach(), ord=CONJUGATE[norm])


def random_plane(n: int) -> tuple[Binary, Tensor, Tensor]:
    """A random plane through the middle of the box, and images near it on both sides."""
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(60, generator=generator)
    model = Binary(weight, -0.5 * weight.sum())
    x = (0.5 + 0.02 * torch.randn(n, 1, 6, 10, generator=generator)).double()
    return model, x, model(x).argmax(dim=1)


@pytest.mark.numerical
@pytest.mark.parametrize("steps", [10, 20])
@pytest.mark.parametrize(("attack", "norm"), SEARCHES)
class TestPlanes:
    def test_few_steps_find_the_exact_distance(self, attack, norm, steps):
        model, x, y = random_plane(20)
        exact = model.distance(x, norm)
        for smooth in (0.0, 3.0):
            found = tmifpe.minimal(model, x, y, norm, attack=attack, steps=steps, smooth=smooth)
            assert bool((found.size >= exact * (1 - 1e-9)).all())
            # DDN's radius changes by 5 % at a time.
            assert bool((found.size <= (1.05 if attack == "ddn" else 1.03) * exact).all())

    def test_a_boundary_a_quarter_of_the_box_away_in_every_pixel(self, attack, norm, steps):
        """adversarial-library's test of minimal attacks, farther out: at l1 the box allows no pixel to do it alone."""
        pixels = 24
        model = Binary(torch.ones(pixels) / pixels, torch.tensor(-0.5))
        noise = torch.randn(8, 1, 4, 6, generator=torch.Generator().manual_seed(1)).double()
        x = 0.75 + 0.01 * noise
        found = tmifpe.minimal(model, x, torch.ones(8, dtype=torch.long), norm, attack=attack, steps=steps)
        assert bool(found.found.all())
        assert bool((found.size <= 1.05 * model.distance(x, norm)).all())


def test_minimal_knows_its_attacks():
    model, x, y = random_plane(2)
    with pytest.raises(InputError, match="ddn, fab, fmn"):
        tmifpe.minimal(model, x, y, attack="deepfool")
    with pytest.raises(InputError, match="ddn knows l2"):
        tmifpe.minimal(model, x, y, "linf", attack="ddn")


@pytest.mark.numerical
@pytest.mark.parametrize("attack", [FMN(steps=15), DDN(steps=15), DDN(steps=15, smallest=True)])
def test_an_attack_that_leaves_with_the_first_example_gives_the_same_verdict(attack):
    model, x, y = random_plane(12)
    eps = float(model.distance(x, "l2").median())
    found = Problem(x, y, None, torch.arange(12), Threat("l2", eps))
    verdicts = attack.run(found, Queries(model), Loop(12))
    exact = model.distance(x, "l2")
    clear = (exact / eps - 1).abs() > 0.02
    assert torch.equal(verdicts.fooled[clear], (exact <= eps)[clear])
    assert verdicts.fooled.any()


class TestFAB:
    @pytest.mark.parametrize("towards", ["nearest", "each"])
    @pytest.mark.parametrize("norm", NORMS)
    @pytest.mark.numerical
    def test_keeps_the_contract(self, norm, towards):
        check_attack(FAB(steps=8, targets=2, towards=towards), norms=[norm])

    @pytest.mark.parametrize("norm", NORMS)
    def test_the_step_onto_a_plane_is_the_smallest_that_the_box_allows(self, norm):
        generator = torch.Generator().manual_seed(2)
        x = torch.rand(50, 1, 3, 4, generator=generator, dtype=torch.float64)
        w = torch.randn(50, 1, 3, 4, generator=generator, dtype=torch.float64)
        offset = -(w * x).flatten(1).sum(dim=1) + torch.randn(50, generator=generator, dtype=torch.float64)
        problem = Problem(x, torch.zeros(50, dtype=torch.long), None, torch.arange(50), Threat(norm, 0.1))
        step = onto_plane(x, w, offset, problem)
        there = x + step
        assert bool(((there >= -1e-12) & (there <= 1 + 1e-12)).all())
        reached = ((w * there).flatten(1).sum(dim=1) + offset).abs() < 1e-9
        assert reached.sum() > 30
        # By duality: no step in the box gains more for its size. A tenth less of it must not reach the plane.
        size = get_norm(norm)
        shorter = Problem(x, problem.labels, None, problem.indices, Threat(norm, 0.1)).at(0.9 * size.size(step))
        toward = -torch.sign((w * x).flatten(1).sum(dim=1) + offset)[:, None, None, None] * w
        best = PGD("cw", 200, smooth=0.0, random_start=False, momentum=0.0)
        point = x.clone()
        for _ in range(best.steps):
            point = size.project(point + 0.05 * toward, shorter.ball)
        left = ((w * point).flatten(1).sum(dim=1) + offset) * torch.sign((w * x).flatten(1).sum(dim=1) + offset)
        assert bool((left[reached] > 0).all())

    def test_towards_a_target(self):
        model = tmifpe.testing.linear.Linear(4)
        x, y = tmifpe.testing.linear.examples(model, 10)
        targets = (y + 1) % 4
        adv = FAB(steps=20)(model, x, y, Threat("l2", 2.0), targets=targets)
        assert torch.equal(model(adv).argmax(dim=1), targets)

    def test_restarts_and_targets_are_counted(self):
        assert FAB(steps=10, restarts=3, targets=4).budget == Budget(151, 120)
        assert FAB(steps=10, restarts=3, targets=4, towards="each").budget == Budget(241, 120)
        model, x, y = random_plane(6)
        for towards in ("nearest", "each"):
            queries, attack = Queries(model), FAB(steps=3, restarts=2, targets=2, towards=towards)
            attack.run(Problem(x, y, None, torch.arange(6), Threat("l2", 1e-6)), queries, Loop(4))
            assert Budget(queries.tally.forwards // 6, queries.tally.backwards // 6) == attack.budget

    @pytest.mark.parametrize(
        ("options", "said"),
        [
            ({"towards": "all"}, "nearest"),
            ({"smallest": 1}, "smallest"),
            ({"pull": 0}, "pull"),
            ({"steps": 0}, "steps"),
        ],
    )
    def test_options_that_cannot_work(self, options, said):
        with pytest.raises(InputError, match=said):
            FAB(**options)


@pytest.fixture(scope="module")
def digits() -> tuple[nn.Module, Tensor, Tensor]:
    model, data = tmifpe.load_model("digits-robust").module, tmifpe.load_data("digits", limit=100)
    x, y = data.fetch(range(100))
    return model, x, y


@pytest.mark.parametrize(("norm", "eps", "most"), [("l1", 2.0, 65), ("l2", 0.8, 67)])
def test_square_breaks_a_share(digits, norm, eps, most):
    """That of 0.2 left 89 and 81."""
    model, x, y = digits
    queries = Queries(model)
    found = Square(200).run(Problem(x, y, None, torch.arange(100), Threat(norm, eps)), queries, Loop(100))
    assert queries.tally.forwards <= 200 * 100
    assert queries.tally.backwards == 0
    assert int((~found.fooled).sum()) <= most


class TestAutoAttacksDoor:
    def test_larger_radii_are_heard(self, digits):
        model, x, y = digits
        left = {}
        for wide in (False, True):
            door = AutoAttack(model, "L1", 1.5, seed=0, verbose=False, version="custom", attacks_to_run=["apgd-ce"])
            door.apgd = APGDSettings(n_restarts=1, n_iter=20, use_largereps=wide)
            attack = door._attack("apgd-ce")
            assert isinstance(attack, Outside) == wide
            assert attack.budget.backwards == 20
            adv = door.run_standard_evaluation(x, y)
            left[wide] = int((model(adv).argmax(dim=1) == y).sum())
        assert left[True] <= left[False]

    def test_what_it_does_not_know_is_not_swallowed(self):
        door = AutoAttack(nn.Flatten(), "Linf", 0.1, verbose=False, version="custom", attacks_to_run=["apgd-ce"])
        with pytest.raises(AttributeError, match="topk"):
            door.apgd.topk = 3
        door.apgd.use_largereps = True
        with pytest.raises(InputError, match="L1"):
            door._attack("apgd-ce")

    def test_fab(self, digits):
        model, x, y = digits
        for name in ("fab", "fab-t"):
            door = AutoAttack(model, "Linf", 0.1, verbose=False, version="custom", attacks_to_run=[name])
            door.fab.n_iter, door.fab.n_restarts = 5, 1
            adv = door.run_standard_evaluation(x[:20], y[:20])
            assert (model(adv).argmax(dim=1) == y[:20]).sum() < (model(x[:20]).argmax(dim=1) == y[:20]).sum()
            assert (adv - x[:20]).abs().max() <= 0.1 + 1e-6


def test_outside_takes_its_steps_and_restarts():
    attack = Outside("apgd(loss=ce,steps=6)", last=8, restarts=2)
    assert attack.budget == Budget(2 * (7 + 7 + 9), 2 * (6 + 6 + 8))
    model, x, y = random_plane(5)
    queries = Queries(model)
    problem = Problem(x, y, None, torch.arange(5), Threat("l1", 1e-6))
    assert not attack.run(problem, queries, Loop(5)).fooled.any()
    assert queries.tally.forwards == 5 * attack.budget.forwards
