"""What a user of Python meets first: bars, tables, words and examples of others."""

from __future__ import annotations

import ast
import re
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import tmifpe
from tests.masked import Honest, Wrapped, images, noise, quantise
from tmifpe import PGD, InputError, MissingExtra, Threat, evaluate
from tmifpe.attacks import is_full
from tmifpe.checks.advice import Ran, advised
from tmifpe.checks.flags import FLAGS
from tmifpe.cli import app
from tmifpe.cli.attack import attack_from
from tmifpe.cli.options import AttackOptions
from tmifpe.run.resolve import resolve_attack
from tmifpe.run.result import Flag
from tmifpe.run.shard import Job
from tmifpe.testing import assert_robust

pytestmark = pytest.mark.usefixtures("unchecked")

THREAT, ATTACK = Threat("linf", 0.05), PGD(steps=5)
SRC = Path(tmifpe.__file__).parent


def labelled(n: int = 24) -> tuple[torch.Tensor, torch.Tensor]:
    x = images(n)
    return x, Honest()(x).argmax(dim=1)


# Progress.


def test_progress_true_shows_a_bar(capsys):
    shown = []
    for verb in (
        lambda: evaluate(Honest(), labelled(), THREAT, ATTACK, progress=True),
        lambda: tmifpe.compare(Honest(), labelled(), THREAT, ["ce"], ATTACK, progress=True),
        lambda: tmifpe.audit(Honest(), labelled(), ["ce"], ["fp32"], progress=True),
    ):
        verb()
        shown.append(capsys.readouterr())
    assert all(one.out == "" for one in shown)


def test_progress_is_true_false_or_a_function():
    seen = []
    evaluate(Honest(), labelled(), THREAT, ATTACK, progress=seen.append)
    assert seen[-1].done == 24
    for nothing in (False, None):
        evaluate(Honest(), labelled(), THREAT, ATTACK, progress=nothing)
    with pytest.raises(InputError, match="progress must be True"):
        evaluate(Honest(), labelled(), THREAT, ATTACK, progress="yes")  # pyright: ignore[reportArgumentType]


# Words.


def test_a_class_in_place_of_a_model_is_told_to_be_called():
    with pytest.raises(InputError, match=r"not the class Honest; call it: Honest\(\.\.\.\)"):
        evaluate(Honest, labelled(), THREAT, ATTACK)


def test_errors_name_arguments_in_python_and_options_on_the_command_line():
    x, y = labelled()
    with pytest.raises(InputError, match=r"`tmifpe.Normalize\(model, mean, std\)`"):
        evaluate(Honest(), (3 * x - 1, y), THREAT)
    with pytest.raises(InputError, match="`weights=FILE`"):
        tmifpe.load_model("mnist-fast")
    said = CliRunner().invoke(app, ["evaluate", "mnist-fast", "--data", "digits"]).stderr
    assert "--weights FILE" in said
    assert "`" not in said


def test_outside_the_command_line_no_text_names_its_options():
    found = {}
    # report/page/command.py writes the command that asks for a run again.
    for path in (p for p in SRC.rglob("*.py") if "cli" not in p.parts and p.parts[-2:] != ("page", "command.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        constants = [node for node in ast.walk(tree) if isinstance(node, ast.Constant)]
        documents = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
        texts = [node.value for node in constants if isinstance(node.value, str) and id(node) not in documents]
        # A whole command, `tmifpe runs repair --store DIR`, may be typed by anybody.
        named = [text for text in texts if re.search(r"(?<![\w-])--[a-z]", text) and "tmifpe " not in text]
        found |= {path.name: named} if named else {}
    assert not found


# Tables.


def test_rows_are_sliced_like_a_list():
    rows = evaluate(Honest(), labelled(), THREAT, ATTACK).outcomes
    assert [repr(row) for row in rows[-2:]] == [repr(rows[22]), repr(rows[23])]
    assert [row.index for row in rows[:6:2]] == [0, 2, 4]


def test_a_table_has_correct_and_robust():
    pytest.importorskip("pandas")
    x, y = labelled()
    y[:5] = (y[:5] + 1) % 4  # misclassified
    result = evaluate(Honest(), (x, y), THREAT, ATTACK)
    table = result.to_pandas()
    assert table["robust"].mean() == result.robust_accuracy
    assert table["correct"].mean() == result.clean_accuracy
    assert table["fooled"].sum() == result.broken
    assert 1 - table["fooled"].mean() > result.robust_accuracy  # what people computed without these columns
    assert set(table["attack"]) == {"pgd", ""}
    assert all(f"{name}" in tmifpe.Result.to_pandas.__doc__ for name in table.columns)
    aimed = evaluate(Honest(), (x, y), THREAT, ATTACK, targets=0)
    assert aimed.n < len(aimed.outcomes)
    assert aimed.to_pandas()["robust"].mean() == pytest.approx(aimed.robust_accuracy)


def test_without_pandas_it_says_what_to_install(monkeypatch):
    result = evaluate(Honest(), labelled(), THREAT, ATTACK)
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(MissingExtra, match=r"tmifpe\[pandas\]"):
        result.to_pandas()


# Examples of others.


def given() -> torch.Tensor:
    x, y = labelled(80)
    return PGD(steps=10)(Honest(), x, y, THREAT)


@pytest.mark.checked
@pytest.mark.usefixtures("not_led_in")
def test_given_examples_are_all_tried_and_united_with_the_run():
    x, y = labelled(80)
    model, adv = Wrapped(quantise), given()
    result = evaluate(model, (x, y), THREAT, ATTACK, transfer_adv=adv)
    breaks = (model(adv).argmax(dim=1) != y).numpy() & result.outcomes.correct
    found = result.transferred
    assert found.broken.tolist() == np.flatnonzero(breaks).tolist()
    assert found.new.tolist() == np.flatnonzero(breaks & result.outcomes.robust).tolist()
    assert result.robust > 64 - 10  # more survivors than a sample would look at, up to those that are misclassified
    assert found.robust_accuracy == pytest.approx((result.outcomes.correct & ~breaks).mean())
    assert found.united_robust_accuracy == pytest.approx((result.outcomes.robust & ~breaks).mean())
    (flag,) = (flag for flag in result.flags if flag.name == "transfer-failure")
    assert f"{len(found.new)} examples" in flag.seen
    assert f"{found.united_robust_accuracy:.2%}" in flag.seen
    assert result.to_json()["transfer"]["new"] == found.new.tolist()
    assert result.notes == ()
    quiet = evaluate(model, (x, y), THREAT, ATTACK, transfer_adv=adv, checks=False)
    assert quiet.transferred.united_robust_accuracy == found.united_robust_accuracy
    assert quiet.flags == ()


def test_given_examples_that_are_not_allowed_are_counted():
    x, y = labelled(80)
    adv = given()
    adv[:30] = (x + 2 * (adv - x))[:30].clamp(0, 1)
    adv[30:34] = -0.01
    adv[34] = torch.nan
    result = evaluate(Wrapped(quantise), (x, y), THREAT, ATTACK, transfer_adv=adv)
    assert result.transferred.outside_ball.tolist() == list(range(30))
    assert result.transferred.outside_box.tolist() == list(range(30, 35))
    (note,) = result.notes
    assert "of 80 examples in `transfer_adv`, 30 lie outside the ball (up to 0.1 from the image, eps is 0.05)" in note
    assert "5 lie outside the box" in note
    assert not set(result.transferred.broken) & set(range(35))


# What an audit says of a model without a gradient, and of one that draws.


def test_an_audit_does_not_contradict_itself():
    quantised = tmifpe.audit(Wrapped(quantise), labelled(), ["ce", "tmifpe"], ["fp16", "fp32"])
    assert "no gradient in float64 either" in str(quantised)
    assert "keeps" not in str(quantised)
    torch.manual_seed(0)
    noisy = tmifpe.audit(Wrapped(noise), labelled(), ["ce", "cw", "dlr", "tmifpe"], ["fp16", "fp32"])
    assert noisy.randomised
    assert noisy.to_json()["randomised"]
    assert "other logits each time" in noisy.advice[0]
    assert "rounding inside the network" not in str(noisy)
    assert "wrong sign" not in str(noisy)
    half = tmifpe.audit(Wrapped(lambda x: torch.where(x.mean((1, 2, 3), True) > 0.5, quantise(x), x)), labelled())
    assert "that have one" in str(half)


# Calls that are nearly right.


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda m, x, y: evaluate(m, x, y, THREAT), r"a pair: evaluate\(model, \(x, y\), Threat\("),
        (lambda m, x, y: evaluate(m, (x, y), "linf", 0.3), r"as in evaluate\(model, \(x, y\), Threat\("),
        (lambda m, x, y: tmifpe.compare(m, x, y), r"a pair: compare\(model, \(x, y\), Threat\("),
        (lambda m, x, y: evaluate(m, (x, y), THREAT, atack="quick"), "did you mean 'attack'"),
        (
            lambda m, x, y: assert_robust(m, (x, y), THREAT, atleast=0.4),
            "assert_robust 'atleast'; did you mean 'at_least'",
        ),
        (lambda m, x, y: evaluate(m, (x, y[:, None]), THREAT), r"from a column take `labels.squeeze\(1\)`"),
        (lambda m, x, y: evaluate(m, (x, torch.eye(4)[y]), THREAT), r"from one-hot rows take `labels.argmax\(1\)`"),
        (
            lambda m, x, y: evaluate(m, (x, y), THREAT, "standard"),
            "default here is 'full', and AutoAttack is 'autoattack'",
        ),
        (lambda m, x, y: tmifpe.load_model(m), r"got Honest; pass the model itself to evaluate"),
        (
            lambda m, x, y: evaluate(lambda z: m(z).detach().numpy(), (x, y), THREAT),
            "NumPy array, which has no gradient",
        ),
        (lambda m, x, y: evaluate(m, (x, y), THREAT, mean=(0.5,)), r"tmifpe.Normalize\(model, mean, std\)"),
        (lambda m, x, y: tmifpe.minimal(m, (x, y), THREAT), r'minimal\(model, x, y, "linf"\)'),
        (lambda m, x, y: tmifpe.minimal(m, x, y, THREAT), r'minimal\(model, x, y, "linf"\)'),
    ],
)
def test_a_call_that_is_nearly_right_is_answered_with_the_right_one(call, said):
    with pytest.raises(InputError, match=said):
        call(Honest(), *labelled(2))


def test_attacks_and_losses_are_named_in_any_case():
    x, y = labelled(4)
    small, large = (
        evaluate(Honest(), (x, y), THREAT, name) for name in ("pgd(loss=ce,steps=2)", "PGD(loss=CE,steps=2)")
    )
    assert small.spec == large.spec
    assert PGD(loss="CW") == PGD(loss="cw")


def test_compare_reads_names_with_commas_between_them():
    found = tmifpe.compare(Honest(), labelled(4), THREAT, "ce, mifpe(T=2),fgsm", PGD(steps=1), checks=False)
    assert list(found.results) == ["ce", "mifpe(T=2)", "fgsm"]


def test_minimal_takes_arrays_and_outcomes_are_shown_in_a_line():
    x, y = labelled(4)
    sizes = [tmifpe.minimal(Honest(), a, b, "linf", steps=3).size for a, b in ((x, y), (x.numpy(), y.numpy()))]
    assert torch.equal(*sizes)
    result = evaluate(Honest(), (x, y), THREAT, PGD(steps=1))
    assert re.fullmatch(r"<Outcomes of 4 examples: \d robust, \d broken, 0 wrong to begin with>", repr(result.outcomes))


# Advice.


@pytest.mark.checked
@pytest.mark.usefixtures("not_led_in")
def test_nobody_is_told_to_try_what_the_run_has_tried():
    flags = {flag.name: flag.advice for flag in evaluate(Wrapped(quantise), labelled(), THREAT, ATTACK).flags}
    assert "no other loss helps" in flags["zero-gradients"]
    assert flags["zero-gradients"].count("`attack") == 1  # that of `full`, for its repairs
    blind = evaluate(Honest(scale=1e4), labelled(), THREAT, PGD(loss="ce", steps=5))
    assert '`attack="full"`' in next(flag.advice for flag in blind.flags if flag.name == "zero-gradients")
    drawn = evaluate(Wrapped(noise), labelled(), THREAT, ATTACK, eot=2)
    told = next(flag.advice for flag in drawn.flags if flag.name == "randomised")
    assert "eot" not in told
    assert "`repeats=10`" in told


RANS = [
    Ran(),
    Ran(losses=frozenset({"tmifpe"}), steps=20, attacks=frozenset({"pgd"})),
    Ran(losses=frozenset({"ce", "tmifpe"}), blind=True, restarts=3, steps=20, attacks=frozenset({"pgd", "autoattack"})),
    Ran(eot=4, repeats=2, precision="fp64", losses=frozenset({"cw"})),
    Ran(second="fp64", losses=frozenset({"cw"})),
    Ran(losses=frozenset({"tmifpe", "dlr"}), steps=100, full=True),
]


@pytest.mark.parametrize("ran", RANS)
@pytest.mark.parametrize("name", list(FLAGS))
def test_advice_for_every_run_is_a_sentence_without_what_was_tried(name, ran):
    text = advised(Flag(name, "", FLAGS.get(name).advice), ran).advice
    assert text.endswith(".")
    assert text[0].isupper() or text.startswith(("eps", "step_size"))
    if ran.full:
        assert '`attack="full"`' not in text or name == "saturated-logits"
    if ran.second or ran.precision == "fp64":
        assert "`verify=" not in text
        assert ran.precision != "fp64" or '`precision="fp64"`' not in text
    if ran.eot > 1:
        assert "`eot" not in text or name in ("randomised",)
    if ran.blind:
        assert "add a gradient-free" not in text


@pytest.mark.parametrize("attack", ["full", "quick", "paper", "pgd(loss=ce,steps=5)", "gama", "ce,gama", "square"])
def test_advised_options_are_accepted(attack):
    """`evaluate` takes no option of an attack's: advice spells attacks out."""
    prepared = SimpleNamespace(precision="fp32")
    ran = Ran.of(cast("Job", SimpleNamespace(attack=resolve_attack(attack), eot=1, prepared=prepared, second=None)))
    assert ran.full == (attack == "full")
    chosen = re.compile(r"--attack (\w+)((?: --\w+ \w+)*)")
    for name in FLAGS:
        flag = advised(Flag(name, "", FLAGS.get(name).advice), ran)
        for spelled in re.findall(r"`attack=([^`]+)`", flag.advice):
            chosen_attack = resolve_attack(spelled.strip('"')) if spelled[0] == '"' else eval(spelled, {"PGD": PGD})
            assert is_full(chosen_attack) or chosen_attack.steps >= 50
        assert not {"loss", "steps", "restarts"} & set(re.findall(r"`(\w+)", flag.advice))
        told = flag.on_command_line().advice
        for one, options in chosen.findall(told):
            given = dict(re.findall(r"--(\w+) (\w+)", options))
            values = {option: int(given[option]) for option in ("steps", "restarts") if option in given}
            assert attack_from(AttackOptions(**values), one, given.get("loss"))
        assert not re.search("--(loss|steps|restarts)", chosen.sub("", told))
        if name in ("found-from-outside", "incomplete-optimisation", "spot-check"):
            assert "--attack full" in told
