"""Around the attack: checks change nothing, draws can be repeated, and a second precision is asked."""

from __future__ import annotations

import inspect
import json
import random
import re

import numpy as np
import pytest
import torch
import typer
from torch import Tensor, nn
from typer.testing import CliRunner

import tmifpe
from tests.masked import Honest, Normed, Wrapped, cancelling, drop, images, noise, quantise
from tmifpe import PGD, InputError, Threat, evaluate
from tmifpe.checks.flags import FLAGS
from tmifpe.checks.sample import LARGEST
from tmifpe.checks.watcher import ForwardWatcher
from tmifpe.cli import app
from tmifpe.core.stats import student
from tmifpe.run.outcomes import Mark, Outcomes
from tmifpe.run.result import Flag

pytestmark = pytest.mark.usefixtures("unchecked")

THREAT = Threat("linf", 0.05)
ATTACK = PGD(steps=8)


def labelled(n: int = 40) -> tuple[Tensor, Tensor]:
    x = images(n)
    return x, Honest()(x).argmax(dim=1)


def same(one: Outcomes, other: Outcomes) -> bool:
    return all(np.array_equal(getattr(one, c), getattr(other, c), equal_nan=True) for c in Outcomes.columns())


class Unsteady(nn.Module):
    """Draws from torch, numpy and Python."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = Honest()

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(noise(x)) + random.random() * np.random.rand()


MODELS = [Honest, lambda: Wrapped(noise), lambda: Wrapped(drop), lambda: Normed(train=True), lambda: Wrapped(quantise)]


@pytest.mark.checked
@pytest.mark.parametrize("make", MODELS)
def test_checks_change_no_outcome(make):
    with_checks = evaluate(make(), labelled(), THREAT, ATTACK)
    without = evaluate(make(), labelled(), THREAT, ATTACK, checks=False)
    assert same(with_checks.outcomes, without.outcomes)
    assert with_checks.tally == without.tally
    assert with_checks.check_forwards > 0 == without.check_forwards
    assert without.flags == ()


@pytest.mark.checked
def test_checks_ask_about_few_examples_and_count_them():
    seen: list[Tensor] = []
    inner = Wrapped(quantise)  # nothing breaks: every check has survivors to look at

    def model(x: Tensor) -> Tensor:
        seen.append(x.detach().clone())
        return inner(x)

    x, y = labelled(300)
    result = evaluate(model, (x, y), THREAT, ATTACK, batch_size=100, shard_size=300)
    asked = sum(len(batch) for batch in seen)
    assert result.check_forwards == asked - result.tally.forwards  # shard_size is given: nothing is timed
    assert result.check_forwards <= 140 * LARGEST  # 100 of them in the whole box, of what withstood 20 steps there


@pytest.mark.checked
def test_a_model_and_the_callers_generators_are_left_alone():
    states = [random.getstate(), np.random.get_state(), torch.get_rng_state()]
    model = Normed(train=True).train()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    evaluate(Unsteady(), labelled(), THREAT, ATTACK, repeats=3)
    from tmifpe.attacks.loop.frozen import preserved_state

    with preserved_state(model, torch.device("cpu")), torch.no_grad():
        model(images())
        model.norm.running_mean += 1
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert random.getstate() == states[0]
    assert all(np.array_equal(a, b) for a, b in zip(np.random.get_state(), states[1], strict=True))
    assert torch.equal(torch.get_rng_state(), states[2])


def test_a_randomised_model_gives_the_same_answer_again():
    first = evaluate(Unsteady(), labelled(), THREAT, ATTACK, shard_size=16, repeats=4)
    torch.rand(5), random.random(), np.random.rand()
    again = evaluate(Unsteady(), labelled(), THREAT, ATTACK, shard_size=16, repeats=4)
    assert same(first.outcomes, again.outcomes)
    assert first.repeated == again.repeated
    other = evaluate(Unsteady(), labelled(), THREAT, ATTACK, shard_size=16, seed=1, repeats=4)
    assert not same(first.outcomes, other.outcomes)


@pytest.mark.checked
def test_repeats_report_a_mean_and_an_interval():
    result = evaluate(Wrapped(noise), labelled(), THREAT, ATTACK, eot=4, repeats=6)
    assert len(result.repeated) == 6
    assert len(set(result.repeated)) > 1
    plain = result.to_json()
    assert plain["repeated_mean"] == pytest.approx(np.mean(result.repeated))
    low, high = plain["repeated_interval"]
    assert 0 <= low < plain["repeated_mean"] < high <= 1
    assert not [flag for flag in result.flags if flag.name == "randomised"]
    json.dumps(plain)


@pytest.mark.parametrize("mode", ["verdict", "strongest"])
@pytest.mark.parametrize("targets", [None, "least-likely"])
def test_repeats_of_a_steady_model_agree(mode, targets):
    options = {"mode": mode, "targets": targets, "shard_size": 16}
    threat = Threat("linf", 0.05 if targets is None else 0.15)
    result = evaluate(Honest(), labelled(), threat, ATTACK, repeats=3, **options)
    assert 0 < result.broken < result.n
    assert result.repeated == (result.robust_accuracy,) * 3
    assert evaluate(Honest(), labelled(), threat, ATTACK, **options).repeated == ()


def test_repeats_need_no_second_attack_when_resumed(tmp_path):
    first = evaluate(Wrapped(noise), labelled(), THREAT, ATTACK, store=tmp_path, repeats=4)
    again = evaluate(Wrapped(noise), labelled(), THREAT, ATTACK, store=tmp_path, repeats=4)
    assert again.resumed == again.n
    assert again.repeated == first.repeated


def test_students_interval():
    quantiles = {2: 12.706205, 3: 4.302653, 4: 3.182446, 11: 2.228139, 12: 2.200985, 31: 2.042272}
    for n, t in quantiles.items():
        values = np.linspace(0.499, 0.501, n)
        half = t * np.std(values, ddof=1) / np.sqrt(n)
        assert student(values.tolist()) == pytest.approx((0.5 - half, 0.5 + half), rel=1e-6)
    assert student([0.3]) == (0.0, 1.0)
    assert student([0.0, 1.0]) == (0.0, 1.0)


@pytest.mark.parametrize("mode", ["verdict", "strongest"])
def test_the_second_opinion_is_what_float64_says(mode):
    x, y = labelled()
    model = Wrapped(after=cancelling, inner=Honest(scale=5))
    result = evaluate(model, (x, y), THREAT, ATTACK, verify="float64", mode=mode, keep_adv=True)
    plain = evaluate(model, (x, y), THREAT, ATTACK, mode=mode)
    assert result.robust_accuracy == plain.robust_accuracy
    wide = Wrapped(after=cancelling, inner=Honest(scale=5)).double()
    broken = (wide(result.adv.double()).argmax(dim=1) != y).numpy()
    rows = result.outcomes.fooled if mode == "verdict" else result.outcomes.correct
    expected = rows & (broken != result.outcomes.fooled)
    assert expected.any()
    assert result.fragile.tolist() == result.outcomes.index[expected].tolist()
    robust = result.outcomes.correct & ~np.where(rows, broken, False)
    assert result.second_robust_accuracy == pytest.approx(robust.mean())
    report = result.to_json()
    assert report["fragile"] == len(report["fragile_indices"]) == expected.sum()
    assert report["second_robust_accuracy"] != report["robust_accuracy"]
    assert "fragile" not in plain.to_json()
    assert result.spec.key() != plain.spec.key()


def test_fragile_counts_in_both_directions():
    result = evaluate(Honest(), labelled(), THREAT, ATTACK)
    rows = [np.flatnonzero(result.outcomes.robust)[0], *np.flatnonzero(result.outcomes.fooled)[:2]]
    result.outcomes.marks[rows] |= Mark.FRAGILE
    assert result.second_robust_accuracy == pytest.approx((result.robust - 1 + 2) / result.n)


def test_a_second_opinion_that_cannot_be_had_is_one_sentence():
    inner = Honest()
    with pytest.raises(InputError, match="cannot be read in fp64"):
        evaluate(lambda x: inner(x), labelled(), THREAT, ATTACK, verify="float64")
    with pytest.raises(InputError, match="already"):
        evaluate(Honest().double(), labelled(), THREAT, ATTACK, verify="float64")
    with pytest.raises(InputError, match="unknown precision 'float46'"):
        evaluate(Honest(), labelled(), THREAT, ATTACK, verify="float46")
    with pytest.raises(InputError, match="repeats"):
        evaluate(Honest(), labelled(), THREAT, ATTACK, repeats=0)
    with pytest.raises(InputError, match="transfer_adv must be of shape"):
        evaluate(Honest(), labelled(), THREAT, ATTACK, transfer_adv=images(3))


def test_a_later_attack_that_sees_clears_the_mark_of_a_blind_one():
    model = Honest(scale=1e4)
    blind = evaluate(model, labelled(), THREAT, PGD(loss="ce", steps=5))
    assert ((blind.outcomes.marks & Mark.ZERO_GRADIENT) != 0).sum() > 20
    for attacks in ([PGD(loss="ce", steps=5), ATTACK], [ATTACK, PGD(loss="ce", steps=5)]):
        both = evaluate(model, labelled(), THREAT, attacks)
        assert not ((both.outcomes.marks & Mark.ZERO_GRADIENT) != 0).any()
        assert ((both.outcomes.marks & Mark.SOME_ZERO_GRADIENTS) != 0)[both.outcomes.robust].all()


def test_watching_sees_only_its_own():
    x = torch.rand(2, 1, 4, 4)
    torch.nn.functional.dropout(x, 0.5)
    with ForwardWatcher() as quiet:
        torch.nn.functional.dropout(x, 0.5, training=False)
        torch.dropout(x, 0.0, True)
        torch.nn.functional.scaled_dot_product_attention(x, x, x)
        torch.nn.functional.batch_norm(x, torch.zeros(1), torch.ones(1))
    assert (quiet.dropout, quiet.batch_statistics, quiet.gradient) == (False, False, False)
    with ForwardWatcher() as loud:
        torch.dropout(x, 0.5, True)
        torch.batch_norm(x, None, None, None, None, True, 0.1, 1e-5, False)
        leaf = x.clone().requires_grad_()
        leaf.square().sum().backward()
    assert (loud.dropout, loud.batch_statistics, loud.gradient) == (True, True, True)


def run(*words: str) -> tuple[int, str, str]:
    common = ["--limit", "40", "--eps", "0.1", "--steps", "4", "--device", "cpu"]
    result = CliRunner().invoke(app, ["evaluate", *words, *common])
    return result.exit_code, result.stdout, result.stderr


@pytest.fixture(autouse=True)
def _own_store(tmp_path, monkeypatch):
    monkeypatch.setenv("TMIFPE_STORE", str(tmp_path / "runs"))


@pytest.mark.checked
def test_strict_turns_flags_into_exit_3():
    code, out, err = run("digits-distilled", "--attack", "paper", "--loss", "ce", "--strict", "--json")
    assert code == 3
    flags = json.loads(out)["flags"]
    assert {"gradient-lost", "saturated-logits"} <= {flag["name"] for flag in flags}
    assert all(flag["seen"] and flag["advice"] for flag in flags)
    assert "gradient-lost" in err
    assert run("digits-distilled", "--attack", "paper", "--loss", "ce", "--json")[0] == 0
    assert run("digits-robust", "--strict")[0] == 0


@pytest.mark.checked
@pytest.mark.usefixtures("not_led_in")
def test_no_checks_no_flags():
    code, out, _ = run("digits-distilled", "--attack", "paper", "--loss", "ce", "--no-checks", "--json")
    assert code == 0
    assert json.loads(out)["flags"] == []
    assert json.loads(out)["check_forwards"] == 0
    assert run("digits-robust", "--strict", "--no-checks")[0] == 2


@pytest.mark.checked
@pytest.mark.usefixtures("not_led_in")
def test_the_table_shows_draws_the_second_opinion_and_flags():
    code, out, _ = run("digits-distilled", "--attack", "paper", "--loss", "ce", "--repeats", "3", "--verify", "float64")
    assert code == 0
    assert "over 3 draws" in out
    assert "in fp64" in out
    assert "flag: gradient-lost" in out


@pytest.mark.checked
@pytest.mark.usefixtures("not_led_in")
def test_transferred_examples_from_a_file(tmp_path):
    file = str(tmp_path / "adv.safetensors")
    assert run("digits-distilled", "--save-adv", file)[0] == 0
    code, out, _ = run("digits-distilled", "--attack", "paper", "--loss", "ce", "--transfer-adv", file, "--json")
    assert code == 0
    assert "transfer-failure" in {flag["name"] for flag in json.loads(out)["flags"]}
    (tmp_path / "bad").write_bytes(b"no such thing")
    code, _, err = run("digits-distilled", "--transfer-adv", str(tmp_path / "bad"))
    assert (code, "cannot read adversarial examples" in err) == (2, True)


@pytest.mark.checked
@pytest.mark.usefixtures("not_led_in")
def test_compare_has_the_trust_options():
    words = ["digits-distilled", "--losses", "ce,tmifpe", "--limit", "40", "--steps", "5", "--eps", "0.1", "--strict"]
    result = CliRunner().invoke(app, ["compare", *words, "--verify", "float64", "--repeats", "2", "--json"])
    assert result.exit_code == 3, result.output
    found = json.loads(result.stdout)["losses"]["ce"]
    assert found["verify"] == "fp64"
    assert len(found["repeated"]) == 2
    assert "gradient-lost" in {flag["name"] for flag in found["flags"]}
    assert "gradient-lost" in result.stderr
    shown = CliRunner(env={"COLUMNS": "200"}).invoke(app, ["compare", *words, "--verify", "fp64", "--repeats", "2"])
    assert "in fp64" in shown.stdout
    assert "over 2 draws" in shown.stdout
    assert CliRunner().invoke(app, ["compare", *words, "--no-checks"]).exit_code == 2
    honest = ["digits-robust", "--losses", "tmifpe", "--limit", "40", "--steps", "4", "--eps", "0.1", "--strict"]
    assert CliRunner().invoke(app, ["compare", *honest]).exit_code == 0


@pytest.mark.checked
@pytest.mark.usefixtures("not_led_in")
def test_advice_names_options_as_the_reader_types_them():
    _, out, _ = run("digits-distilled", "--attack", "paper", "--loss", "ce", "--json")
    told = " ".join(flag["advice"] for flag in json.loads(out)["flags"])
    assert "--attack full" in told
    assert "--verify fp64" in told
    assert "`" not in told
    model, data = tmifpe.load_model("digits-distilled"), tmifpe.load_data("digits", limit=40)
    result = evaluate(model, data, THREAT, PGD(loss="ce", steps=5))
    told = " ".join(flag.advice for flag in result.flags)
    assert '`attack="full"`' in told
    assert '`verify="fp64"`' in told
    assert "--" not in told


@pytest.mark.parametrize("name", list(FLAGS))
def test_every_option_that_a_flag_names_exists(name):
    """In Python, since advice is written that way, and on the command line."""
    kind = FLAGS.get(name)
    python = {
        *inspect.signature(Threat).parameters,
        "attack",
        "tmifpe",
        "eot",
        "precision",
        "repeats",
        "verify",
        "mean",
        "std",
        "straight_through",
    }
    named = re.findall(r"`(\w+)[^`]*`", kind.advice)
    assert set(named) <= python
    words = re.findall(r"--([a-z-]+)", Flag(name, "", kind.advice).on_command_line().advice)
    verb = typer.main.get_command(app).commands["evaluate"]
    assert {f"--{word}" for word in words} <= {option for parameter in verb.params for option in parameter.opts}


@pytest.mark.checked
@pytest.mark.usefixtures("not_led_in")
def test_results_are_shown_in_one_line():
    model, data = tmifpe.load_model("digits-distilled"), tmifpe.load_data("digits", limit=40)
    compared = tmifpe.compare(model, data, THREAT, ["ce", "tmifpe"], PGD(steps=5))
    audited = tmifpe.audit(model, data, ["ce"], ["fp32"])
    for value in (compared, compared.results["ce"][0], audited):
        assert 40 < len(repr(value)) < 600
        assert "\n" not in repr(value)
    assert "gradient-lost" in repr(compared.results["ce"][0])
    assert "ce" in repr(compared)
    assert "digits-distilled" in repr(audited)
