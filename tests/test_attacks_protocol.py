"""What every attack promises beside its steps: a radius per row, budgets, sequences, best points of survivors."""

from __future__ import annotations

import pytest
import torch

from tests.linear import Linear, distance, examples, examples_at
from tests.masked import Corners
from tmifpe import Threat
from tmifpe.attacks import GAMA, PGD, Budget, Loop, Problem, Queries, Sequence, attack_spelling, get_attack
from tmifpe.attacks.attack import Attack
from tmifpe.core import numerics
from tmifpe.core.errors import InputError
from tmifpe.norms import NORMS, Ball, get_norm
from tmifpe.run.resolve import resolve_attack


def problem_of(model: Linear, n: int, threat: Threat, seed: int = 0) -> Problem:
    x, y = examples(model, n, seed)
    return Problem(x, y, None, torch.arange(n), threat, clean=model(x).detach())


@pytest.mark.parametrize("norm", list(NORMS))
@pytest.mark.parametrize("attack", [PGD(steps=10, loss="cw"), GAMA(steps=10)], ids=lambda attack: attack.name)
def test_every_row_has_its_own_radius(norm, attack):
    model = Linear(3)
    radii = torch.tensor([0.0, 0.002, 0.01, 0.05])
    problem = problem_of(model, 24, Threat(norm, 1.0))
    mixed = problem.at(radii.repeat(6))
    together = attack.run(mixed, Queries(model), Loop(5, "strongest"))
    size = get_norm(norm).size(together.adv - problem.x)
    assert (size <= mixed.eps * (1 + 1e-9)).all()
    for k, eps in enumerate(radii.tolist()):
        rows = torch.arange(k, 24, 4)
        alone = attack.run(problem.take(rows).at(eps), Queries(model), Loop(5, "strongest"))
        assert torch.equal(alone.fooled, together.fooled[rows])
        # Ten steps in float64: rounding in another batch moves a point by a few ulp per step, far below 1e-9.
        torch.testing.assert_close(alone.adv, together.adv[rows], rtol=0, atol=1e-9)


@pytest.mark.parametrize("norm", list(NORMS))
def test_radii_decide_exactly_at_the_boundary(norm):
    """Half the rows at 0.99 of their distance, half at 1.01, in one problem."""
    model = Linear(2, seed=1)
    x, y = examples_at(model, 64, norm, 0.01, seed=1)
    far, _ = distance(model, x, y, norm)
    share = torch.where(torch.arange(64) % 2 == 0, 0.99, 1.01)
    problem = Problem(x, y, None, torch.arange(64), Threat(norm, 0.5)).at(far * share)
    fooled = PGD(loss="cw", steps=20).run(problem, Queries(model), Loop(16)).fooled
    assert torch.equal(fooled, share > 1)


def test_a_problem_at_another_radius_keeps_the_rest():
    problem = problem_of(Linear(3), 4, Threat("linf", 0.1))
    assert torch.equal(problem.eps, torch.full((4,), 0.1, dtype=torch.float64))
    other = problem.at(0.2)
    assert other.eps.tolist() == [0.2] * 4
    assert problem.eps.tolist() == [0.1] * 4
    assert other.take(torch.tensor([1, 2])).eps.tolist() == [0.2] * 2
    assert isinstance(other.ball, Ball)


def test_an_attack_without_gradients_pays_for_no_backward_pass():
    model = Linear(3)
    queries = Queries(model)
    attack = Corners(steps=9)
    assert attack.budget == Budget(10, 0)
    verdicts = attack.run(problem_of(model, 12, Threat("linf", 1e-6)), queries, Loop(5, "strongest"))
    assert (queries.tally.forwards, queries.tally.backwards) == (120, 0)
    assert not verdicts.zero_grad.any()


@pytest.mark.parametrize("attack", [PGD(steps=7, restarts=2), GAMA(steps=5), Corners(steps=6)], ids=attack_spelling)
def test_budgets_are_what_a_survivor_costs(attack):
    model, queries = Linear(3), Queries(Linear(3))
    problem = problem_of(model, 10, Threat("linf", 1e-6))
    problem.clean = None  # GAMA reads it
    verdicts = attack.run(problem, queries, Loop(4))
    assert not verdicts.fooled.any()
    assert (queries.tally.forwards, queries.tally.backwards) == tuple(10 * part for part in attack.budget)


class TestSequence:
    def test_is_an_attack_like_any_other(self):
        attack = get_attack("pgd(loss=ce,steps=3)+gama(steps=4)")
        assert isinstance(attack, Sequence)
        assert [stage.name for stage in attack.stages] == ["pgd", "gama"]
        assert attack == Sequence((PGD(loss="ce", steps=3), GAMA(steps=4)))
        assert get_attack(attack_spelling(attack)) == attack
        assert hash(attack) == hash(get_attack(attack_spelling(attack)))
        assert resolve_attack("ce+gama", PGD(steps=7)) == Sequence((PGD(loss="ce", steps=7), GAMA(steps=7)))
        assert Sequence((attack, PGD())).stages == (*attack.stages, PGD())
        assert attack.needs_gradient
        assert not Sequence((Corners(),)).needs_gradient

    def test_what_is_broken_is_never_attacked_again(self):
        model, threat = Linear(5, seed=4), Threat("linf", 0.003)
        problem = problem_of(model, 60, threat)
        seen: list[set[int]] = []

        class Noted(Attack):
            name = "noted"

            def __init__(self, inner):
                self.inner = inner

            budget = Budget(0, 0)

            def run(self, problem, queries, loop):
                seen.append(set(problem.indices.tolist()))
                return self.inner.run(problem, queries, loop)

        first, second = PGD(loss="ce", steps=2), PGD(loss="cw", steps=20)
        verdicts = Sequence((Noted(first), Noted(second))).run(problem, Queries(model), Loop(16))
        once = first.run(problem, Queries(model), Loop(16)).fooled
        assert 0 < once.sum() < verdicts.fooled.sum() < 60
        assert seen == [set(range(60)), set((~once).nonzero()[:, 0].tolist())]
        assert torch.equal(verdicts.stage == 0, once)
        assert torch.equal(verdicts.stage >= 0, verdicts.fooled)

    def test_keeps_the_strongest_point_of_all_stages(self):
        model, threat = Linear(5, seed=4), Threat("linf", 0.001)
        problem = problem_of(model, 30, threat)
        strong, weak = PGD(loss="cw", steps=20), PGD(loss="cw", steps=1, random_start=False, step_size=0.1)
        both = Sequence((strong, weak)).run(problem, Queries(model), Loop(16))
        alone = strong.run(problem, Queries(model), Loop(16))
        assert torch.equal(both.best, alone.best)
        assert torch.equal(both.margin, alone.margin)
        assert torch.equal(both.steps, alone.steps + torch.where(alone.fooled, 0, 1))

    def test_progress_never_goes_back(self):
        model, told = Linear(5, seed=4), []
        problem = problem_of(model, 40, Threat("linf", 0.003))
        loop = Loop(8, tick=lambda done, broken: told.append((done, broken)))
        verdicts = get_attack("fgsm+pgd(steps=10)").run(problem, Queries(model), loop)
        assert told == sorted(told)
        assert told[-1] == (40, int(verdicts.fooled.sum()))

    def test_can_be_called(self):
        model = Linear(3)
        x, y = examples(model, 9)
        adv = get_attack("fgsm+pgd(steps=10)")(model, x, y, Threat("linf", 0.4))
        assert (model(adv).argmax(dim=1) != y).all()

    def test_without_stages_is_one_sentence(self):
        with pytest.raises(InputError, match="at least one attack"):
            Sequence(())


def test_the_best_point_of_a_survivor_has_the_margin_that_is_told():
    model = Linear(5, seed=4)
    problem = problem_of(model, 60, Threat("linf", 0.002))
    verdicts = PGD(steps=20).run(problem, Queries(model), Loop(7))
    assert 5 < verdicts.fooled.sum() < 55
    logits = model(verdicts.best).detach()
    # In float64, read again in a different batch: a few ulp of logits of order one.
    torch.testing.assert_close(numerics.margin(logits, problem.labels), verdicts.margin, rtol=0, atol=1e-12)
    torch.testing.assert_close(numerics.top_gap(logits), verdicts.gap, rtol=0, atol=1e-12)


def test_the_best_point_survives_refused_claims_and_refilled_batches():
    """Rows leave, join, move within the batch and come back; each must keep its own best point."""
    model = Linear(5, seed=4)
    problem = problem_of(model, 50, Threat("linf", 0.004))

    def coin(adv, part):
        return part.indices % 3 != 0

    verdicts = PGD(steps=15).run(problem, Queries(model), Loop(6, verify=coin))
    assert not verdicts.fooled[problem.indices % 3 == 0].any()
    assert verdicts.fooled.any()
    sizes = get_norm("linf").size(verdicts.best - problem.x)
    assert (sizes <= 0.004 * (1 + 1e-9)).all()
    survivors = ~verdicts.fooled & (verdicts.margin < 0)
    logits = model(verdicts.best).detach()
    torch.testing.assert_close(
        numerics.margin(logits, problem.labels)[survivors], verdicts.margin[survivors], rtol=0, atol=1e-12
    )
