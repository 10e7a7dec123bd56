"""Several losses and seeds on the same examples: union, spread, and which differences are more than chance."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binomtest
from typer.testing import CliRunner

import tmifpe
from tests.cases import cases
from tests.linear import Linear, examples
from tests.pages import made_up
from tmifpe import PGD, InputError, Threat
from tmifpe.attacks import GAMA, bim, fgsm
from tmifpe.cli import app
from tmifpe.cli.compare import checks_held, comparison_table, flags_raised
from tmifpe.core.stats import PairedTest, holm, mcnemar
from tmifpe.evaluation.compare import Comparison, _flagged_alike
from tmifpe.report.comparison import significance, spread
from tmifpe.run.outcomes import Outcomes
from tmifpe.run.resolve import resolve_attack
from tmifpe.run.result import Flag

SEEDS = (0, 1, 2)


@pytest.fixture(scope="module")
def row() -> Comparison:
    model, data = tmifpe.load_model("digits-robust"), tmifpe.load_data("digits", limit=120)
    losses = ["ce", "tmifpe", "gama(momentum=0.75)"]
    return tmifpe.compare(model, data, Threat("linf", 0.15), losses, PGD(steps=2), seeds=SEEDS, checks=False)


@given(st.integers(0, 400), st.integers(0, 400))
@settings(deadline=None, max_examples=cases(60))
def test_mcnemar_is_the_exact_binomial_test(one, two):
    first = np.array([True] * one + [False] * two + [True, False], dtype=bool)
    second = np.array([False] * one + [True] * two + [True, False], dtype=bool)
    pair = mcnemar("a", "b", first, second)
    wanted = binomtest(one, one + two, 0.5).pvalue if one + two else 1.0
    assert (pair.only_first, pair.only_second) == (one, two)
    assert pair.p == pytest.approx(wanted, rel=1e-9)
    assert pair.differs == (wanted < 0.05)


def test_numbers_agree_with_their_verbs():
    losses = {name: {"mean": mean} for name, mean in (("a", 0.1), ("b", 0.5), ("c", 0.505))}
    assert "1 of the 3 differences between two means is not larger" in spread({"spread": 0.01, "losses": losses})
    assert "0 of the 3 differences between two means are not larger" in spread({"spread": 0.001, "losses": losses})


def test_a_flag_for_survivors_is_raised_wherever_they_survive():
    """The check looks at a few survivors with the run's own loss; what it finds of them holds under every other."""
    weak = made_up(40, flags=(Flag("randomised", "Of this run.", "Average."),))

    def broken(fooled):
        return Outcomes(**{**weak.outcomes.arrays, "fooled": fooled})

    fewer = weak.outcomes.fooled | (np.arange(40) % 5 == 0) & weak.outcomes.correct
    flag = Flag("found-from-outside", "Led in, it broke 3 of 16.", "Do more.")
    strong = replace(weak, outcomes=broken(fewer), flags=(flag,))
    other = replace(weak, outcomes=broken(weak.outcomes.correct), flags=())  # none survives
    found = _flagged_alike({"ce": (weak,), "cw": (strong,), "dlr": (other,)})
    assert [each.name for each in found["ce"][0].flags] == ["randomised", "found-from-outside"]
    assert found["ce"][0].flags[1].seen == "Seen with cw, whose survivors stand here too: Led in, it broke 3 of 16."
    assert found["cw"][0].flags == (flag,)
    assert found["dlr"][0].flags == ()


@given(st.lists(st.floats(0, 1), max_size=12))
@settings(deadline=None, max_examples=cases(60))
def test_holm_rejects_what_holms_procedure_rejects(ps):
    """Step down from the smallest p, comparing the k-th with 5 %/(m - k), and stop at the first that fails."""
    found = holm([PairedTest("a", "b", 0, 0, p, p) for p in ps])
    order, rejected = np.argsort(ps, kind="stable"), set()
    for rank, k in enumerate(order):
        if ps[k] * (len(ps) - rank) >= 0.05:
            break
        rejected.add(k)
    assert {k for k, pair in enumerate(found) if pair.differs} == rejected
    assert all(p <= pair.adjusted <= 1 and pair.p == p for p, pair in zip(ps, found, strict=True))


def test_mcnemar_survives_thousands_of_pairs():
    first = np.arange(6000) < 3100
    assert mcnemar("a", "b", first, ~first).p == pytest.approx(binomtest(2900, 6000, 0.5).pvalue, rel=1e-6)


def test_seeds_give_mean_spread_and_union(row):
    plain = row.to_json()
    for loss, runs in row.results.items():
        values = [run.robust_accuracy for run in runs]
        found = plain["losses"][loss]
        assert [run.spec.seed for run in runs] == list(SEEDS)
        assert found["robust_accuracies"] == values
        assert found["mean"] == pytest.approx(sum(values) / 3)
        low, high = row.interval(loss)
        assert found["mean_interval"] == [low, high]
        below, above = int(np.floor(120 * found["mean"])), int(np.ceil(120 * found["mean"]))
        ends = [binomtest(k, 120).proportion_ci(method="wilson") for k in (below, above)]
        assert ends[0].low - 1e-12 <= low <= ends[1].low + 1e-12
        assert ends[0].high - 1e-12 <= high <= ends[1].high + 1e-12
        assert (found["min"], found["max"]) == (min(values), max(values))
        assert found["std"] == pytest.approx(np.std(values, ddof=1))
        union = np.any([run.outcomes.fooled for run in runs], axis=0)
        assert found["worst_case"] == pytest.approx((runs[0].outcomes.correct & ~union).mean())
        assert found["worst_case"] <= min(values)
    assert plain["spread"] == max(max(a) - min(a) for a in map(row.accuracies, row.results))
    assert len({tuple(run.outcomes.fooled) for run in row.results["ce"]}) > 1, "the seed changes nothing"
    assert any(row.worst_case(loss) < min(row.accuracies(loss)) for loss in row.results)


def test_pairs_are_tested_on_the_same_examples(row):
    a, b = (row.results[loss][0].outcomes for loss in ("ce", "tmifpe"))
    assert (a.index == b.index).all()
    pair = next(p for p in row.pairs() if (p.first, p.second) == ("ce", "tmifpe"))
    assert pair.only_first == (a.fooled & ~b.fooled).sum()
    assert pair.only_second == (b.fooled & ~a.fooled).sum()
    assert len(row.pairs()) == 3


def test_words_follow_the_numbers(row):
    plain = row.to_json()
    assert "McNemar" in significance(plain["pairs"], plain["seeds"])
    assert f"up to {100 * row.spread:.2f} points" in spread(plain)
    single = Comparison({loss: runs[:1] for loss, runs in row.results.items()}, (0,))
    assert single.spread is None


def test_columns_are_losses_or_attacks():
    base = PGD(steps=7, restarts=2, momentum=0.5)
    assert resolve_attack("mifpe(T=10)", base) == PGD(loss="mifpe(T=10)", steps=7, restarts=2, momentum=0.5)
    assert resolve_attack("gama(momentum=0.75)", base) == GAMA(momentum=0.75, steps=7, restarts=2)
    assert resolve_attack("gama(steps=9)", base) == GAMA(steps=9, restarts=2)
    assert resolve_attack("gama") == GAMA()
    assert resolve_attack("fgsm", base) == fgsm()
    assert resolve_attack("bim", base) == bim(steps=7)
    assert resolve_attack("tmifpe") == PGD()


@pytest.mark.parametrize("text", ["gamma", "gama(momentun=1)", "tmifpe(x=1)", "pgd(loss=cee)", "gama("])
def test_unknown_columns_are_one_sentence(text):
    with pytest.raises(InputError) as caught:
        tmifpe.compare(Linear(3), examples(Linear(3), 4), Threat("linf", 0.1), ["ce", text])
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("options", [{"losses": []}, {"losses": ["ce", "ce"]}, {"seeds": []}, {"seeds": [1, 1]}])
def test_nothing_or_twice_the_same_is_refused(options):
    with pytest.raises(InputError, match="different"):
        tmifpe.compare(Linear(3), examples(Linear(3), 4), Threat("linf", 0.1), **options)


def test_command_line_prints_one_json_object_with_its_command():
    words = "compare digits-robust --eps 0.15 --limit 30 --steps 3 --seeds 0,1 --losses ce,gama,tmifpe --no-store"
    words += " --no-checks"
    result = CliRunner().invoke(app, [*words.split(), "--json"])
    assert result.exit_code == 0, result.output
    plain = json.loads(result.stdout)
    assert list(plain["losses"]) == ["ce", "gama", "tmifpe"]
    assert plain["seeds"] == [0, 1]
    assert {"command", "version", "machine"} <= set(plain)
    shown = CliRunner().invoke(app, words.split())
    assert "The seed alone moves a loss by up to" in shown.stdout.replace("\n", " ")


@pytest.mark.usefixtures("not_led_in")
def test_flags_of_each_column_are_named(row):
    assert flags_raised(row) == ""
    words = "compare digits-distilled --eps 0.15 --limit 60 --steps 5 --losses ce,tmifpe --no-store"
    said = " ".join(CliRunner().invoke(app, words.split()).stdout.split())
    flags = said.partition("Flags (tmifpe list flags): ")[2]
    ce, _, ours = flags.partition("; tmifpe: ")
    assert "gradient-lost" in ce
    assert "gradient-lost" not in ours


def test_given_examples_and_cut_checks_are_shown(row):
    assert checks_held(row) == ""
    model, data = tmifpe.load_model("digits-robust"), tmifpe.load_data("digits", limit=12)
    x, y = data.fetch(range(12))
    given = PGD(steps=5)(model, x, y, Threat("linf", 0.15), seed=0)
    tiny = PGD(steps=1, step_size=0.01, random_start=False)  # leaves what the given ones break
    weak = tmifpe.compare(model, data, Threat("linf", 0.15), ["ce"], tiny, transfer_adv=given, checks=False)
    (run,) = weak.results["ce"]
    assert run.transferred is not None
    assert run.transferred.united_robust_accuracy < run.robust_accuracy
    table = comparison_table("m", weak)
    shown = [str(cell) for cell in table.columns[-1].cells]
    assert table.columns[-1].header == "with the given"
    assert shown == [f"{100 * run.transferred.united_robust_accuracy:.2f}"]
    cut = replace(weak, results={"ce": (replace(run, checks_cut=("transfer left out",)),)})
    assert checks_held(cut) == "Checks held to 5 % of the cost: ce: transfer left out."


def test_random_targets_of_several_seeds_are_refused(robust_digits):
    model, x, y = robust_digits
    with pytest.raises(InputError, match="one seed"):
        tmifpe.compare(model, (x, y), Threat("linf", 0.15), ["ce"], PGD(steps=1), seeds=(0, 1), targets="random")


def test_targets_of_numpy_and_a_seed_are_understood_by_compare(robust_digits):
    model, x, y = robust_digits
    targets = ((y + 1) % 10).numpy()
    row = tmifpe.compare(
        model, (x, y), Threat("linf", 0.15), ["ce"], PGD(steps=1), seeds=(0, 1), targets=targets, checks=False
    )
    assert row.results["ce"][0].outcomes.target.tolist() == targets.tolist()
    with pytest.raises(InputError, match="seeds="):
        tmifpe.compare(model, (x, y), Threat("linf", 0.15), ["ce"], PGD(steps=1), seed=3)
