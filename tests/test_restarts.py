"""Restarts side by side find what they find one after the other."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from tmifpe import PGD, Threat
from tmifpe.attacks import GAMA, Loop, Problem, Queries
from tmifpe.attacks.apgd import APGD
from tmifpe.attacks.attack import Attack
from tmifpe.attacks.multi_targeted import MultiTargeted
from tmifpe.attacks.restarts import side_by_side
from tmifpe.core.numerics import margin

STARTS = 4


def few(n: int = 24) -> tuple[nn.Module, Problem]:
    """Rows that some starts break and others do not: small steps, on a network with many dead units."""
    torch.manual_seed(3)
    model = nn.Sequential(nn.Flatten(), nn.Linear(12, 30), nn.ReLU(), nn.Linear(30, 4)).eval().requires_grad_(False)
    x = torch.rand(n, 3, 2, 2)
    return model, Problem(x, model(x).argmax(dim=1), None, torch.arange(n), Threat("linf", 0.12), clean=model(x))


def attacks() -> list[Attack]:
    plain = PGD(steps=3, restarts=STARTS, schedule="constant", step_size=0.2)
    return [
        plain,
        replace(plain, momentum_on="gradient"),
        APGD(steps=3, restarts=STARTS),
        GAMA(steps=3, restarts=STARTS),
    ]


@pytest.mark.numerical
@pytest.mark.parametrize("attack", attacks(), ids=lambda attack: attack.name)
def test_the_same_rows_break(attack: Attack):
    model, problem = few()
    one = attack.run(problem, Queries(model), Loop())
    both = side_by_side(attack, problem, Queries(model), Loop())
    assert torch.equal(both.fooled, one.fooled)
    assert 0 < int(one.fooled.sum()) < len(problem), "or nothing would be shown"
    assert torch.equal(both.prediction, one.prediction)
    # Each row in another batch, after a hundred operations in float32.
    torch.testing.assert_close(both.margin, one.margin, rtol=0, atol=1e-5)
    torch.testing.assert_close(both.best, one.best, rtol=0, atol=1e-5)


def test_the_first_start_that_succeeds_counts():
    model, problem = few()
    attack = attacks()[0]
    assert isinstance(attack, PGD)
    found = side_by_side(attack, problem, Queries(model), Loop())
    alone = [replace(attack, restarts=1).run(replace(problem, start=attack.start(problem, k)), Queries(model), Loop())
             for k in range(STARTS)]  # fmt: skip
    for row in range(len(problem)):
        first = next((k for k in range(STARTS) if alone[k].fooled[row]), None)
        assert bool(found.fooled[row]) == (first is not None)
        spent = sum(int(alone[k].steps[row]) for k in range(STARTS if first is None else first + 1))
        assert int(found.steps[row]) == spent


def test_looks_are_shared():
    """Four starts take as many looks as one, with four times the rows."""
    model, problem = few()
    sizes: list[int] = []

    def counted(x: Tensor) -> Tensor:
        sizes.append(len(x))
        return model(x)

    attack = replace(attacks()[0], steps=5)
    problem = problem.at(0.0)  # nobody breaks
    side_by_side(attack, problem, Queries(counted), Loop())
    assert sizes == [STARTS * len(problem)] * 6


def test_a_given_start_is_that_of_the_first():
    model, problem = few()
    attack = replace(attacks()[0], steps=1, step_size=1e-6, momentum=0.0)
    best = problem.norm.project(problem.x + 0.12, problem.ball)
    there = side_by_side(attack, replace(problem, start=best), Queries(model), Loop())
    own = side_by_side(attack, problem, Queries(model), Loop())
    assert not torch.equal(there.margin, own.margin)
    assert (there.margin >= margin(model(best), problem.labels) - 1e-5).all()


def test_what_has_no_starts_of_its_own_runs_as_it_is():
    model, problem = few(6)
    for attack, mode in ((PGD(steps=2), "verdict"), (attacks()[0], "strongest"), (MultiTargeted(steps=2), "verdict")):
        queries, again = Queries(model), Queries(model)
        found = side_by_side(attack, problem, queries, Loop(mode=mode))
        assert torch.equal(found.margin, attack.run(problem, again, Loop(mode=mode)).margin)
        assert queries.tally == again.tally
