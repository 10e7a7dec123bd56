"""`full` and its parts: stages that look at each row alone, and costs that add up."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
from torch import nn

import tmifpe
from tmifpe import PGD, Threat
from tmifpe.attacks import Loop, Problem, Queries, Sequence, attack_spelling, full, get_attack, is_full, quick
from tmifpe.attacks.near import Near
from tmifpe.attacks.radius.outside import Outside
from tmifpe.core.errors import InputError
from tmifpe.core.types import Data
from tmifpe.run.resolve import resolve_attack
from tmifpe.run.spec import RunSpec

THREAT = Threat("linf", 0.15)
FEW = [0, 1, 6, 8, 28, 29]
"""Digits that are broken at once, late and not at all, after one stage and after several."""


class Counting(nn.Module):
    """A linear model of two classes that counts the images it is shown."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 2, bias=False)
        with torch.no_grad():
            self.layer.weight[0], self.layer.weight[1] = 1.0, -1.0
        self.seen = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.seen += len(x)
        return self.layer(x.flatten(1) - 0.5)


def problem(distances: list[float], model: nn.Module, eps: float = 0.1) -> Problem:
    """Rows of class 0 whose margin is -12 d at the image and -12 (d - eps) at the worst point of the ball."""
    x = torch.full((len(distances), 6), 0.5) + torch.tensor(distances)[:, None]
    labels = torch.zeros(len(x), dtype=torch.long)
    with torch.no_grad():
        clean = model(x)
    return Problem(x, labels, None, torch.arange(len(x)), Threat("linf", eps), clean=clean)


class Far(nn.Module):
    """One number. From 0.5 the margin of class 1 rises to the right, but never above zero, and falls beyond 0.65; below
    0.45 it rises steeply to the left, and is positive at 0.4."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        z = x.flatten(1)[:, :1]
        right = torch.where(z > 0.65, -0.35 - (z - 0.65), -0.55 + (z - 0.45))
        return torch.cat([torch.zeros_like(z), torch.where(z < 0.45, -0.55 + 20 * (0.45 - z), right)], dim=1)


class TestOutside:
    def test_only_the_last_ball_counts(self):
        model = Counting()
        given = problem([0.05, 0.15, 0.25, 0.4], model)  # eps 0.1: the second and third fall in larger balls only
        found = get_attack("outside(attack=pgd(steps=5),widest=3)").run(given, Queries(model), Loop())
        assert found.fooled.tolist() == [True, False, False, False]
        size = (found.best - given.x).abs().flatten(1).amax(dim=1)
        assert (size <= 0.1 + 1e-6).all()

    def test_pays_for_every_ball_and_says_so(self):
        model = Counting()
        given, attack = problem([0.4, 0.4], model), get_attack("outside(attack=pgd(steps=5),widest=3)")
        queries = Queries(model)
        found = attack.run(given, queries, Loop())
        assert (queries.tally.forwards, queries.tally.backwards) == (2 * 18, 2 * 15)
        assert (attack.budget.forwards, attack.budget.backwards) == (18, 15)
        assert found.steps.tolist() == [15, 15]

    def test_goes_on_from_the_larger_ball(self):
        """Within 0.1 of 0.5 every step leads to the right; a step of three times the size comes back from there."""
        model = Far()
        x, y = torch.full((1, 1), 0.5), torch.zeros(1, dtype=torch.long)
        inner = "pgd(steps=20,random_start=false)"
        for spelled, broken in ((inner, False), (f"outside(attack={inner},widest=3)", True)):
            given = Problem(x, y, None, torch.arange(1), Threat("linf", 0.1))
            assert get_attack(spelled).run(given, Queries(model), Loop()).fooled.tolist() == [broken], spelled

    def test_is_spelled_like_any_other(self):
        attack = get_attack("near(attack=outside(attack=apgd(steps=7),widest=2),share=0.4,norm=l1)")
        assert get_attack(attack_spelling(attack)) == attack
        for bad in ("outside(widest=0)", "outside(attack=square)", "outside(attack=pgd+gama)", "outside(attack=near)"):
            with pytest.raises(InputError):
                get_attack(bad)


class TestNear:
    @pytest.mark.numerical
    def test_takes_the_rows_whose_margin_has_come_within_its_share(self):
        model = Counting()
        # The margins that remain are 0 (broken), 1/11, 1/3 and 3/4 of the clean ones.
        given = problem([0.05, 0.11, 0.15, 0.4], model)
        queries = Queries(model)
        # A probe that cannot succeed, since it does not move: all it does is count.
        probe = "pgd(steps=1,step_size=0.000001,random_start=false)"
        for share, rows in ((0.05, 0), (0.2, 1), (0.5, 2), (1.0, 3)):
            queries.stages.clear()
            found = Sequence((PGD(steps=10), Near(probe, share=share))).run(given, queries, Loop())
            assert found.fooled.tolist() == [True, False, False, False]
            assert [stage.examples for stage in queries.stages] == [4, rows]
            assert [stage.broken for stage in queries.stages] == [1, 0]

    @pytest.mark.numerical
    def test_what_it_leaves_out_keeps_the_margin_of_the_stage_before(self):
        model = Counting()
        given = problem([0.11, 0.4], model)
        alone = PGD(steps=10).run(given, Queries(model), Loop())
        both = Sequence((PGD(steps=10), Near("pgd(steps=1)", share=1e-9))).run(given, Queries(model), Loop())
        assert torch.equal(both.margin, alone.margin)
        assert torch.equal(both.best, alone.best)

    def test_goes_on_from_the_best_point(self):
        model = Counting()
        given = problem([0.11, 0.11], model)
        still = "pgd(steps=1,step_size=0.000001,random_start=false)"
        for go_on, reached in ((True, True), (False, False)):
            stages = Sequence((PGD(steps=10), Near(still, share=1.0, go_on=go_on)))
            queries = Queries(model)
            stages.run(given, queries, Loop())
            # Alone, from where it starts: at the image the probe sees the clean margin.
            part = dataclasses.replace(given, reached=torch.tensor([-0.1, -0.1]), best=given.x - 0.1)
            seen = stages.stages[1].run(part, Queries(model), Loop())
            assert bool((seen.margin > -0.5).all()) == reached

    def test_without_a_stage_before_it_attacks_all(self):
        model = Counting()
        given = problem([0.05, 0.4], model)
        assert Near("pgd(steps=10)", share=0.01).run(given, Queries(model), Loop()).fooled.tolist() == [True, False]

    def test_of_another_norm_it_attacks_nothing(self):
        model = Counting()
        given = problem([0.05, 0.4], model)  # at Linf
        for norm, rows in (("linf", 2), ("l2", 0)):
            queries = Queries(model)
            found = Sequence((Near("pgd(steps=2)", share=1.0, norm=norm),)).run(given, queries, Loop())
            assert [stage.examples for stage in queries.stages] == [rows]
            assert found.fooled.tolist() == [norm == "linf", False]
        Near("ddn", norm="l2").check(THREAT)  # which knows L2 alone
        with pytest.raises(InputError, match="l2"):
            Near("ddn").check(THREAT)

    def test_is_spelled_like_any_other(self):
        attack = Near(PGD(steps=7, smooth=1), share=0.2)
        assert get_attack(attack_spelling(attack)) == attack
        assert attack.budget == PGD(steps=7).budget
        for bad in (
            {"share": 0},
            {"share": "x"},
            {"go_on": 1},
            {"norm": "l3"},
            {"attack": "near"},
            {"attack": "pgd+gama"},
        ):
            with pytest.raises(InputError):
                Near(**bad)

    def test_a_key_leaves_out_the_frozen_defaults_of_the_attack_inside(self):
        spec = tmifpe.evaluate(
            tmifpe.load_model("digits-robust"),
            tmifpe.load_data("digits", limit=2),
            THREAT,
            "pgd(steps=1)",
            checks=False,
        ).spec

        def key(*attacks: str) -> str:
            return dataclasses.replace(spec, attacks=attacks).key()

        assert key("near(attack=pgd(steps=3,smooth=0.0),share=0.1)") == key("near(attack=pgd(steps=3),share=0.1)")
        assert key("near(attack=pgd(steps=3,smooth=1.0),share=0.1)") != key("near(attack=pgd(steps=3),share=0.1)")
        assert isinstance(spec, RunSpec)


MORE: list[dict[str, Any]] = [
    {"restarts": 2},
    {"steps": 200},
    {"schedule": "constant"},
    {"loss": "ce"},
    {"loss": "dlr", "restarts": 2},
]


def shortened(by: int) -> Sequence:
    """`full` with a fraction of the steps of every stage, of which the later ones then break more."""

    def short(stage: Any) -> Any:
        if isinstance(stage, Near | Outside):
            return dataclasses.replace(stage, attack=short(stage.inner))
        return dataclasses.replace(stage, steps=max(4, stage.steps // by))

    return Sequence(tuple(short(stage) for stage in full().stages))


class TestFull:
    def digits(self, limit: int = 24) -> tuple[tmifpe.Classifier, Data]:
        return tmifpe.load_model("digits-robust"), tmifpe.load_data("digits", limit=limit)

    def check_cuts(self, attack: Sequence, rows: list[int], cuts: list[tuple[int, int]]) -> tmifpe.Result:
        """The same outcomes of these rows, which ascend, in one batch, reversed, and in every cut (batch, shard)."""
        model, data = self.digits(max(rows) + 1)
        asked = {"precision": "fp64", "checks": False}
        result = tmifpe.evaluate(model, data, THREAT, attack, indices=rows, **asked)
        whole = result.outcomes
        assert 0 < whole.fooled.sum() < len(whole)
        assert sum(stage.examples > 0 for stage in result.stages) >= 4
        others: list[dict[str, Any]] = [{"batch_size": batch, "shard_size": shard} for batch, shard in cuts]
        for cut in [{"indices": rows[::-1]}, *others]:
            part = tmifpe.evaluate(model, data, THREAT, attack, **({"indices": rows} | cut), **asked).outcomes
            order = part.index.argsort()
            for name in ("index", "fooled", "stage", "steps_used"):
                assert (getattr(part, name)[order] == getattr(whole, name)).all(), (cut, name)
        return result

    def test_outcomes_do_not_depend_on_batch_shard_or_order(self):
        self.check_cuts(full(), FEW, [(4, 3)])

    @pytest.mark.numerical
    @pytest.mark.convolutional
    def test_nor_do_those_of_its_stages_with_a_fifth_of_the_steps(self):
        self.check_cuts(shortened(5), FEW, [(1, 6), (4, 3)])

    @pytest.mark.numerical
    @pytest.mark.convolutional
    def test_nor_in_batches_of_7_and_of_64_where_later_stages_break_some(self):
        found = self.check_cuts(shortened(20), [*range(63), 104, 214, 391], [(7, 20), (64, 66)])
        assert {0, 1, 2} < set(found.outcomes.stage.tolist())

    def test_costs_add_up_and_no_broken_example_is_attacked_again(self):
        model, data = self.digits(60)
        result = tmifpe.evaluate(model, data, THREAT, full(), checks=False)
        stages = result.stages
        assert len(stages) == len(full().stages)
        assert sum(stage.broken for stage in stages) == result.broken
        assert sum(stage.forwards for stage in stages) + len(data) == result.tally.forwards  # the clean pass on top
        assert sum(stage.backwards for stage in stages) == result.tally.backwards
        left = result.broken + result.robust
        for stage in stages:
            assert stage.examples <= left
            left -= stage.broken
        told = result.to_json()["stages"]
        assert [each["examples"] for each in told] == [stage.examples for stage in stages]
        assert told[0]["attack"].startswith("pgd(")

    def test_is_the_default_and_stored_with_its_stages(self, tmp_path):
        model, data = self.digits(4)
        found = tmifpe.evaluate(model, data, THREAT, store=tmp_path, checks=False)
        assert found.spec.attacks == tuple(attack_spelling(stage) for stage in full().stages)
        again = tmifpe.evaluate(model, data, THREAT, "full", store=tmp_path, checks=False)
        assert again.resumed == len(data)
        assert again.stages == found.stages
        assert "full" in repr(found)

    def test_targeted_runs_skip_what_cannot_be_targeted_and_say_so(self):
        model, data = self.digits(4)
        found = tmifpe.evaluate(model, data, THREAT, targets="second", checks=False)
        assert any("multi-targeted was skipped" in note for note in found.notes)
        assert len(found.spec.attacks) == len(full().stages) - 1
        with pytest.raises(InputError, match="one class after another"):
            tmifpe.evaluate(model, data, THREAT, "multi-targeted", targets="second")

    def test_strongest_points_are_at_least_those_of_its_first_stage(self):
        model, data = self.digits(4)
        asked = {"mode": "strongest", "checks": False}
        first = tmifpe.evaluate(model, data, THREAT, full().stages[0], **asked).outcomes
        whole = tmifpe.evaluate(model, data, THREAT, **asked).outcomes
        assert (whole.margin >= first.margin).all()

    @pytest.mark.numerical
    @pytest.mark.convolutional
    def test_whatever_is_asked_for_breaks_what_it_breaks_alone(self):
        (model, data), threat, rows = self.digits(67), Threat("l1", 1.0), [0, 1, 19, 44, 49, 66]
        usual = tmifpe.evaluate(model, data, threat, indices=rows, checks=False)
        assert usual.robust
        assert usual.outcomes.stage.max() > 0, "some need a later stage, which plain PGD does not have"
        for more in MORE:
            found = tmifpe.evaluate(model, data, threat, full(**more), indices=rows, checks=False)
            assert not (usual.outcomes.fooled & ~found.outcomes.fooled).any(), more
            assert found.tally.forwards > usual.tally.forwards

    def test_the_default_comes_first_whatever_is_asked_for(self):
        for more in MORE:
            asked = full(**more)
            assert asked.stages[: len(full().stages)] == full().stages
            assert asked.budget.backwards > full().budget.backwards
            assert is_full(asked)
            climbed = [stage for stage in asked.stages if isinstance(stage, PGD)]
            assert climbed[1] == PGD(**({"smooth": 3.0} | more | {"restarts": climbed[1].restarts}))
        assert full(restarts=3).stages[9] == PGD(smooth=3.0, restarts=2)
        short = full(steps=10).stages
        assert len(short) == len(full().stages)
        assert all(
            one.budget.backwards < usual.budget.backwards for one, usual in zip(short, full().stages, strict=True)
        )

    def test_in_a_table_it_takes_the_steps_of_the_table_and_quick_does_not(self):
        base = PGD(steps=7, restarts=2)
        assert resolve_attack("full", base) == full(steps=7, restarts=2)
        assert resolve_attack("full", PGD()) == full()
        assert resolve_attack("quick", base) == quick()

    def test_knows_itself(self):
        targeted = Sequence(tuple(stage for stage in full(restarts=2).stages if stage.title != "multi-targeted"))
        assert is_full(targeted)
        others = [quick(), PGD(), Sequence(full().stages[:2]), Sequence((*full().stages, PGD(steps=3)))]
        assert not any(map(is_full, others))

    def test_quick_is_20_smooth_steps(self):
        assert quick() == PGD(steps=20, smooth=3.0)
        assert get_attack("quick") == quick()


@pytest.mark.numerical
def test_the_smoothing_is_shared_by_the_rectifiers():
    """Two rectifiers in a row get half of it each: a deeper network is smoothed no more than a flat one."""
    from tmifpe.attacks.hooks.smooth import SmoothBackward

    z = torch.linspace(-1, 1, 8, dtype=torch.float64)[None].requires_grad_()
    with SmoothBackward(torch.tensor([1.0])) as seen:
        out = torch.relu(torch.relu(z) * 1.0)
    (found,) = torch.autograd.grad(out.sum(), z)
    assert seen.smoothed == 2

    def slope(u: torch.Tensor) -> torch.Tensor:
        return (u / (4 * 0.5 * u.std(correction=0)) + 0.5).clamp(0, 1)

    inner = z.detach().relu()
    torch.testing.assert_close(found, slope(z.detach()) * slope(inner), rtol=0, atol=1e-12)
