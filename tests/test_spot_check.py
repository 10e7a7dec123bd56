"""Second attacks on the survivors: bounds that hold, samples that can be repeated, alarms that are raised."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from torch import nn
from typer.testing import CliRunner

import tmifpe
from tests.masked import Honest, Wrapped, images, killed, quantise
from tmifpe import PGD, InputError, Threat
from tmifpe.cli import app
from tmifpe.core.stats import hypergeometric_bounds
from tmifpe.run.evidence.spot_check import SpotCheck

LINF = Threat("linf", 0.05)
X = images(48)
Y = Honest()(X).argmax(dim=1)
CW = "pgd(loss=cw,steps=10)"
WEAK = PGD(steps=1, step_size=1e-3, random_start=False)


CASES = [(839, 0), (839, 25), (839, 41), (2000, 60), (150, 140), (120, 4)]


@pytest.mark.parametrize(("total", "marked"), CASES)
def test_each_bound_holds_in_95_percent_of_1000_draws(total: int, marked: int) -> None:
    found = np.random.default_rng(total + marked).hypergeometric(marked, total - marked, 100, 1000)
    bounds = {int(k): hypergeometric_bounds(int(k), 100, total) for k in np.unique(found)}
    # Of these draws, which are always the same ones; of all draws below.
    assert np.mean([bounds[int(k)][0] <= marked for k in found]) >= 0.95
    assert np.mean([marked <= bounds[int(k)][1] for k in found]) >= 0.95


def test_the_bounds_are_exact() -> None:
    """Against scipy's distribution: they cover 95 % of all draws, and one further would be less likely than 5 %."""
    from scipy.stats import hypergeom

    for total, marked in CASES:
        chances = {k: float(hypergeom.pmf(k, total, marked, 100)) for k in range(min(marked, 100) + 1)}
        bounds = {k: hypergeometric_bounds(k, 100, total) for k, chance in chances.items() if chance > 1e-9}
        assert sum(chances[k] for k, (low, _) in bounds.items() if low <= marked) >= 0.95
        assert sum(chances[k] for k, (_, high) in bounds.items() if marked <= high) >= 0.95
    for found, sampled, total in (0, 100, 839), (3, 40, 200), (40, 40, 50), (1, 2, 3), (0, 1, 1000):
        low, high = hypergeometric_bounds(found, sampled, total)
        assert hypergeom.cdf(found, total, high, sampled) > 0.05
        assert hypergeom.sf(found - 1, total, low, sampled) > 0.05
        if high < total - (sampled - found):
            assert hypergeom.cdf(found, total, high + 1, sampled) <= 0.05
        if low > found:
            assert hypergeom.sf(found - 1, total, low - 1, sampled) <= 0.05


@pytest.mark.parametrize("m", [50, 100, 500])
def test_none_of_m_is_about_three_in_m(m: int) -> None:
    many = SpotCheck("a", m, survivors=10**6, sampled=m, broken=0, n=10**6)
    assert many.at_most / many.survivors == pytest.approx(3 / m, rel=0.05)
    few = SpotCheck("a", m, survivors=2 * m, sampled=m, broken=0, n=2 * m)
    assert few.at_most / few.survivors < 3 / m  # half of them have been seen
    assert "at most" in str(many)


def test_all_survivors_leave_no_doubt() -> None:
    spot = SpotCheck("a", 100, survivors=30, sampled=30, broken=4, n=60)
    assert (spot.at_least, spot.at_most, spot.robust_accuracy) == (4, 4, (26 / 60, 26 / 60))
    none = SpotCheck("a", 100, survivors=0, sampled=0, broken=0, n=60)
    assert (none.at_least, none.at_most) == (0, 0)


def ask(**options: object) -> tmifpe.Result:
    chosen = {"attack": WEAK, "checks": False} | options
    return tmifpe.evaluate(Honest(), (X, Y), LINF, **chosen)  # pyright: ignore[reportArgumentType]


def test_a_weak_attack_is_found_out_and_the_number_stays() -> None:
    result = ask(spot_check=f"16:{CW}")
    spot = result.spot_check
    assert spot is not None
    assert result.robust_accuracy == ask().robust_accuracy
    assert (spot.sampled, spot.survivors, spot.attack[:11]) == (16, result.robust, "pgd(loss=cw")
    truth = result.robust - tmifpe.evaluate(Honest(), (X, Y), LINF, CW, checks=False, seed=1).robust
    assert spot.at_least <= truth <= spot.at_most
    assert set(spot.indices) <= set(result.outcomes.index[result.outcomes.robust].tolist())
    assert len(spot.indices) == spot.broken > 0
    assert [flag.name for flag in result.flags] == ["spot-check"]
    assert ask(spot_check=f"100:{CW}").spot_check.sampled == result.robust  # pyright: ignore[reportOptionalMemberAccess]


@pytest.mark.numerical
def test_the_sample_and_its_verdicts_do_not_depend_on_the_batch() -> None:
    one, other = (ask(spot_check=f"16:{CW}", batch_size=size, shard_size=size, precision="fp64") for size in (5, 48))
    assert one.spot_check is not None
    assert other.spot_check is not None
    assert one.spot_check.indices == other.spot_check.indices
    seeds = {ask(spot_check=f"8:{CW}", seed=seed).spot_check.indices for seed in range(3)}  # pyright: ignore[reportOptionalMemberAccess]
    assert len(seeds) > 1


def test_the_store_keeps_what_was_stated(tmp_path: Path) -> None:
    first = ask(store=tmp_path, spot_check=f"16:{CW}", from_model=Honest(scale=2.0))
    again = ask(store=tmp_path, spot_check=f"16:{CW}", from_model=Honest(scale=2.0))
    assert (again.spot_check, again.from_model, again.flags) == (first.spot_check, first.from_model, first.flags)
    assert ask(store=tmp_path).flags == ()
    other = ask(store=tmp_path, spot_check=f"4:{CW}", from_model=Honest(scale=3.0))
    assert (other.spot_check.sampled, other.from_model.identity != first.from_model.identity) == (4, True)  # pyright: ignore[reportOptionalMemberAccess]
    (run,) = tmifpe.Store(tmp_path).runs()
    assert tmifpe.Store(tmp_path).result(run).spot_check == other.spot_check
    checked = ask(store=tmp_path, checks=True)
    assert checked.check_forwards > 0
    (run,) = tmifpe.Store(tmp_path).runs()
    assert tmifpe.Store(tmp_path).result(run).spot_check == other.spot_check


def test_gradients_of_another_model_break_what_one_s_own_do_not() -> None:
    model = killed("quantise")
    y = model(X).argmax(dim=1)
    options = {"attack": PGD(steps=20), "checks": False}
    result = tmifpe.evaluate(model, (X, y), LINF, **options, from_model=Honest(), keep_adv=True)
    led = result.from_model
    assert led is not None
    assert result.robust_accuracy == tmifpe.evaluate(model, (X, y), LINF, **options).robust_accuracy
    assert (led.survivors, led.n, led.model) == (result.robust, 48, "Honest")
    # Its gradients are those that the identity would give, and the starts are the same.
    through = tmifpe.evaluate(model, (X, y), LINF, **options, straight_through="before")
    assert led.broken == result.robust - through.robust > 0
    assert led.robust_accuracy == through.robust_accuracy
    assert led.backwards <= 20 * led.survivors
    assert "transfer-failure" in {flag.name for flag in result.flags}


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"spot_check": 0}, "`spot_check` must be a number of survivors"),
        ({"spot_check": "many"}, "got 'many'"),
        ({"spot_check": "5:nothing"}, "unknown loss or attack 'nothing'"),
        ({"spot_check": "5:autoattack", "eot": 2}, "the spot check cannot be done by autoattack"),
        ({"from_model": nn.Sequential(nn.Flatten(), nn.Linear(16, 3))}, "has 3 classes, and the model that it is to"),
        ({"from_model": nn.Conv2d(3, 4, 2)}, "from_model (Conv2d) does not take images of shape (1, 4, 4)"),
        ({"from_model": "digits-robust"}, "load 'digits-robust' with tmifpe.load_model first"),
        ({"from_model": tmifpe.load_model("digits-robust")}, "takes images of shape 1x8x8"),
        ({"from_model": Honest(), "attack": "autoattack"}, "follow a gradient step by step"),
    ],
)
def test_what_cannot_work_is_one_sentence(options, complaint) -> None:
    if "autoattack" in str(options):
        pytest.importorskip("pyautoattack")
    with pytest.raises(InputError) as caught:
        ask(**options)
    assert complaint in str(caught.value)


def test_the_command() -> None:
    words = ["evaluate", "digits-robust", "--limit", "12", "--steps", "1", "--eps", "0.1", "--no-store", "--no-checks"]
    words += ["--spot-check", "4:pgd(steps=3)", "--from-model", "digits-distilled"]
    told = json.loads(CliRunner().invoke(app, [*words, "--json"]).stdout)
    assert (told["spot_check"]["sampled"], told["from_model"]["model"]) == (4, "digits-distilled")
    said = " ".join(CliRunner().invoke(app, words).stdout.replace("│", " ").split())
    assert "spot check pgd tmifpe 3:" in said
    assert "from another model digits-distilled:" in said
    refused = CliRunner().invoke(app, [*words, "--from-model", "digits-robust"])
    assert refused.exit_code == 2


@pytest.mark.parametrize("targets", [None, "second"])
def test_the_attack_is_called_what_it_was_asked_for(targets: str | None) -> None:
    result = ask(spot_check="8:full", targets=targets)
    assert result.spot_check is not None
    assert result.spot_check.title == "full"
    assert result.flags[0].seen.startswith("full: ")
    assert "| spot check | full: " in result.to_markdown()
    assert ask(spot_check="2:quick").spot_check.title == "quick"  # pyright: ignore[reportOptionalMemberAccess]


@pytest.mark.slow
def test_on_fast_at_it_raises_the_alarm(shared: Path) -> None:
    """AutoAttack leaves 80.0 % of the first 1000 images, T-MIFPE 84.0: a smoother backward pass finds most of
    that, and the first 500 are enough to see it."""
    model = tmifpe.load_model("mnist-fast", weights=shared / "models/mnist_fast_at.pth")
    data = tmifpe.load_data(f"mnist:{shared / 'data/mnist'}", limit=500)
    result = tmifpe.evaluate(model, data, Threat("linf", 0.3), "paper", checks=False, spot_check="300:pgd(smooth=3)")
    assert "spot-check" in {flag.name for flag in result.flags}
    assert result.spot_check is not None
    assert result.spot_check.robust_accuracy[1] < result.robust_accuracy


def test_a_model_that_is_attacked_well_passes() -> None:
    result = tmifpe.evaluate(Wrapped(quantise), (X, Y), Threat("linf", 0.0), WEAK, checks=False, spot_check=f"9:{CW}")
    assert result.spot_check is not None
    assert (result.spot_check.sampled, result.spot_check.broken, result.flags) == (9, 0, ())
