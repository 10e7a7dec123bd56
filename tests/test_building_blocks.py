"""Square, APGD, multi-targeted, DDN, the l1 norm and the probability margin, each against a plain form of itself.
The contracts of every attack, loss and norm are tested in the test_*_contract.py files."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from tests.linear import Linear, distance, examples, examples_at
from tests.masked import Wrapped, images, quantise
from tmifpe import Threat
from tmifpe.attacks import APGD, DDN, PGD, Budget, Loop, MultiTargeted, Problem, Queries, Square, get_attack
from tmifpe.core.errors import InputError
from tmifpe.core.numerics import margin
from tmifpe.losses import get_loss
from tmifpe.norms import Ball, get_norm

pytestmark = pytest.mark.numerical


def problem_of(model: nn.Module, x: Tensor, threat: Threat) -> Problem:
    clean = model(x).detach()
    return Problem(x, clean.argmax(dim=1), None, torch.arange(len(x)), threat, clean=clean)


class TestL1:
    def test_projection_minds_the_box(self):
        x = torch.tensor([[[[0.9, 0.5]]]], dtype=torch.float64)
        wild = torch.tensor([[[[2.9, 1.5]]]], dtype=torch.float64)
        point = get_norm("l1").project(wild, Ball.of(x, Threat("l1", 0.4)))
        # The first pixel takes the 0.1 that the box leaves, the second the rest of eps; onto the ball first and into
        # the box after would give the second nothing.
        torch.testing.assert_close(point.flatten(), torch.tensor([1.0, 0.8], dtype=torch.float64))

    @pytest.mark.parametrize("far", [0.01, 1.0, 30.0])
    def test_projection_is_that_of_plain_bisection(self, far):
        random = torch.Generator().manual_seed(0)
        x = torch.rand(40, 60, generator=random, dtype=torch.float64)
        wild = x + far * torch.randn(40, 60, generator=random, dtype=torch.float64)
        eps = torch.logspace(-3, 1, 40, dtype=torch.float64)
        way = wild - x
        room = torch.where(way >= 0, 1 - x, x)
        low, high = torch.zeros(40, 1, dtype=torch.float64), way.abs().amax(dim=1, keepdim=True)
        for _ in range(100):  # halves the bracket to the last bit
            middle = (low + high) / 2
            more = torch.minimum((way.abs() - middle).clamp(min=0), room).sum(dim=1) > eps
            low, high = torch.where(more[:, None], middle, low), torch.where(more[:, None], high, middle)
        wanted = x + torch.sign(way) * torch.minimum((way.abs() - high).clamp(min=0), room)
        point = get_norm("l1").project(wild, Ball(x, eps, 0.0, 1.0))
        # The cut is found to 16 ulp of eps, or to an ulp of itself, and itself is below 200.
        torch.testing.assert_close(point, wanted, rtol=0, atol=1e-12)

    def test_steps_are_spread_over_the_pixels_with_the_largest_gradients(self):
        grad = torch.tensor([[0.0, -3.0, 2.0, 1.0], [5.0, 4.0, torch.nan, -1.0], [0.0, 0.0, 0.0, 0.0]])
        way = get_norm("l1").spread(grad, torch.tensor([0.5, 0.01, 1.0]))
        assert way.tolist() == [[0.0, -0.5, 0.5, 0.0], [1.0, 0.0, 0.0, 0.0], [0.0] * 4]

    def test_start_is_uniform_in_the_ball(self):
        x = torch.full((4000, 4), 0.5, dtype=torch.float64)
        size = get_norm("l1").size(get_norm("l1").start(Ball.of(x, Threat("l1", 0.2)), 0, torch.arange(4000), 0, 0) - x)
        # The power 4 of the size is uniform; the mean of 4000 such draws lies within 5 deviations, 5 / sqrt(12 * 4000).
        assert abs(float((size / 0.2).pow(4).mean()) - 0.5) < 5 / (12 * 4000) ** 0.5


class TestSquare:
    @pytest.mark.parametrize("norm", ["linf", "l2", "l1"])
    def test_pays_for_its_queries_and_for_no_backward_pass(self, norm):
        model = Linear(3)
        queries = Queries(model)
        attack = Square(queries=20, restarts=2)
        problem = problem_of(model, examples(model, 6)[0], Threat(norm, 1e-6))
        assert not attack.run(problem, queries, Loop(4)).fooled.any()
        assert attack.budget == Budget(40, 0)
        assert (queries.tally.forwards, queries.tally.backwards) == (6 * 40, 0)

    def test_breaks_what_has_no_gradient(self):
        model = Wrapped(before=quantise)
        problem = problem_of(model, images(24), Threat("linf", 0.2))
        broken = {
            attack.name: int(attack.run(problem, Queries(model), Loop()).fooled.sum())
            for attack in (PGD(steps=20), Square(queries=200))
        }
        assert broken["square"] > 18
        assert broken["square"] > broken["pgd"]

    def test_linf_stays_at_the_ends(self):
        model = Linear(3)
        x, y = examples(model, 5)
        adv = Square(queries=30)(model, x, y, Threat("linf", 0.05))
        torch.testing.assert_close((adv - x).abs(), torch.full_like(x, 0.05), rtol=0, atol=1e-12)

    @pytest.mark.parametrize("shape", [(12,), (3, 4), (2, 3, 5), (3, 9, 4)])
    @pytest.mark.parametrize("norm", ["linf", "l2", "l1"])
    def test_takes_images_of_any_shape(self, shape, norm):
        x = torch.rand(3, *shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
        weight = torch.randn(x[0].numel(), 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64)

        def model(z: Tensor) -> Tensor:
            return z.flatten(1) @ weight

        labels = model(x).argmax(dim=1)
        begun, adv = (Square(queries=n)(model, x, labels, Threat(norm, 0.3)) for n in (1, 40))
        assert (get_norm(norm).size(adv - x) <= 0.3 * (1 + 1e-9)).all()
        assert (margin(model(adv), labels) > margin(model(begun), labels)).all()


class Net(nn.Module):
    """Two layers with a kink, so that progress stalls now and then."""

    def __init__(self) -> None:
        super().__init__()
        random = torch.Generator().manual_seed(5)
        self.first = torch.randn(20, 16, generator=random, dtype=torch.float64)
        self.second = torch.randn(16, 4, generator=random, dtype=torch.float64)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu((x.flatten(1) - 0.5) @ self.first) @ self.second


class TestAPGD:
    def test_is_the_plain_algorithm(self):
        """Written out for one image at linf, with cross-entropy and progress by the margin."""
        model, eps, steps = Net(), 0.2, 50
        x = torch.rand(1, 20, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
        y = model(x).argmin(dim=1)  # wrong already: the attack goes on climbing all its steps
        low, high = (x - eps).clamp(min=0), (x + eps).clamp(max=1)

        def look(point: Tensor) -> tuple[Tensor, float]:
            leaf = point.clone().requires_grad_()
            z = model(leaf)
            grad = torch.autograd.grad(nn.functional.cross_entropy(z, y), leaf)[0]
            return grad, float(margin(z.detach(), y))

        point = before = best = x
        grad, value = look(point)
        best_grad, best_value, checked, size, rises, halved, last = grad, value, value, 2 * eps, 0, True, 0
        halvings = 0
        for i in range(steps):
            if i > 0:
                grad, now = look(point)
                rises += now > value
                value = now
                if now > best_value:
                    best, best_grad, best_value = point, grad, now
            again = False
            if i in (11, 21, 29, 35, 40, 44, 47, 50):  # shares 0.22, 0.41, 0.57, 0.7, 0.8, 0.87, 0.93, 0.99 of 50
                again = rises < 0.75 * (i - last) or (not halved and best_value <= checked)
                size, halved, checked, rises, last = size / 2 if again else size, again, best_value, 0, i
                halvings += again
                if again:
                    point, grad = best, best_grad
            moved = torch.clamp(point + size * grad.sign(), low, high)
            if i > 0 and not again:
                moved = torch.clamp(point + 0.75 * (moved - point) + 0.25 * (point - before), low, high)
            before, point = point, moved
        assert halvings >= 2
        best_value = max(best_value, look(point)[1])
        attack = APGD(loss="ce", steps=steps, random_start=False)
        reached = attack.run(
            Problem(x, y, None, torch.tensor([0]), Threat("linf", eps)), Queries(model), Loop(1, "strongest")
        )
        # Both compute in float64, and signs are the same unless a gradient is within rounding of 0.
        assert float(reached.margin) == pytest.approx(best_value, abs=1e-9)

    def test_every_step_counts_at_l1(self):
        model, queries = Net(), Queries(Net())
        x = torch.rand(8, 20, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
        found = APGD(steps=50).run(problem_of(model, x, Threat("l1", 0.3)), queries, Loop(3, "strongest"))
        assert (queries.tally.forwards, queries.tally.backwards) == (8 * 51, 8 * 50)
        assert (get_norm("l1").size(found.best - x) <= 0.3 * (1 + 1e-9)).all()


class TestMultiTargeted:
    @pytest.mark.parametrize("norm", ["linf", "l2", "l1"])
    def test_breaks_every_example_at_its_exact_distance(self, norm):
        """Towards the nearest of nine classes, which an untargeted loss misses in some examples."""
        model = Linear(10, seed=3)
        x, y = examples_at(model, 40, norm, 0.01, seed=3)
        attack = MultiTargeted(loss="cw", targets=1, steps=20)
        for share, wanted in ((0.99, 0), (1.01, 40)):
            problem = Problem(x, y, None, torch.arange(40), Threat(norm, share * 0.01))
            assert int(attack.run(problem, Queries(model), Loop(16)).fooled.sum()) == wanted

    def test_the_nearest_class_comes_first(self):
        model = Linear(10, seed=3)
        x, y = examples(model, 60)
        problem = Problem(x, y, None, torch.arange(60), Threat("l2", 0.1), clean=model(x).detach())
        _, nearest = distance(model, x, y, "l2")
        malt = MultiTargeted(targets=2)._order(problem, Queries(model))
        plain = MultiTargeted(targets=2, candidates=0)._order(problem, Queries(model))
        assert malt.shape == plain.shape == (60, 2)
        assert torch.equal(malt[:, 0], nearest)
        assert not torch.equal(plain[:, 0], nearest)

    def test_has_no_targeted_form(self):
        model = Linear(3)
        x, y = examples(model, 2)
        with pytest.raises(InputError, match="one class after another"):
            MultiTargeted()(model, x, y, Threat("linf", 0.1), targets=y)


class TestDDN:
    def test_points_outside_the_ball_are_passed_and_never_count(self):
        model = Linear(2, seed=1)
        x, y = examples_at(model, 8, "l2", 0.01, seed=1)
        seen: list[float] = []

        class Watched(DDN):
            def step(self, problem, state, evaluated):
                seen.extend((state.radius / problem.eps).tolist())
                return super().step(problem, state, evaluated)

        problem = Problem(x, y, None, torch.arange(8), Threat("l2", 0.009))
        found = Watched(steps=30).run(problem, Queries(model), Loop(8))
        assert not found.fooled.any()
        assert 1.05 < max(seen) < 1.3  # the boundary is at 1.11 eps
        assert (get_norm("l2").size(found.best - x) <= 0.009 * (1 + 1e-9)).all()

    def test_other_norms_are_one_sentence(self):
        for norm in ("linf", "l1"):
            with pytest.raises(InputError, match="ddn knows l2"):
                DDN().check(Threat(norm, 0.1))


class TestProbabilityMargin:
    def test_is_the_margin_of_the_softmax(self):
        z = 3 * torch.randn(50, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
        labels = torch.arange(50) % 6
        for targets in (None, (labels + 2) % 6):
            leaf, plain = z.clone().requires_grad_(), z.clone().requires_grad_()
            value, wanted = get_loss("pm")(leaf, labels, targets), margin(plain.softmax(dim=1), labels, targets)
            torch.testing.assert_close(value, wanted, rtol=0, atol=1e-12)
            grad = torch.autograd.grad(value.sum(), leaf)[0]
            true = torch.autograd.grad(wanted.sum(), plain)[0]
            # The same direction: what is left out is a positive factor of the row.
            torch.testing.assert_close(nn.functional.cosine_similarity(grad, true), torch.ones_like(value))

    def test_keeps_its_direction_where_the_softmax_saturates(self):
        z = torch.tensor([[60.0, 1.0, 0.0]])
        leaf, plain = z.clone().requires_grad_(), z.clone().requires_grad_()
        grad = torch.autograd.grad(get_loss("pm")(leaf, torch.tensor([0])).sum(), leaf)[0]
        lost = torch.autograd.grad(margin(plain.softmax(dim=1), torch.tensor([0])).sum(), plain)[0]
        assert float(lost[0, 0]) == 0.0
        # -(2 + e^-1), 2 and e^-1 up to e^-59.
        torch.testing.assert_close(grad, torch.tensor([[-2.36788, 2.0, 0.36788]]), rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    "text",
    [
        "square(queries=0)",
        "square(p_init=0)",
        "apgd(steps=0)",
        "apgd(loss=none)",
        "ddn(gamma=1)",
        "multi-targeted(targets=0)",
    ],
)
def test_bad_options_are_one_sentence(text):
    with pytest.raises(InputError) as caught:
        get_attack(text)
    assert "\n" not in str(caught.value)
