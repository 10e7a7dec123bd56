"""--attack and --loss, what --help shows, and hints for what people type."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

import tmifpe
from tmifpe.attacks import GAMA, PGD, attack_spelling, full, get_attack, paper, quick
from tmifpe.attacks.catalogue import attack_title
from tmifpe.cli import app
from tmifpe.run.resolve import resolve_attack

QUICK = ["evaluate", "digits-robust", "--eps", "0.15", "--limit", "2", "--no-checks", "--json"]


@pytest.fixture(autouse=True)
def _own_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMIFPE_STORE", str(tmp_path / "store"))
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.chdir(tmp_path)


def call(*words: str, code: int = 0) -> Any:
    result = CliRunner().invoke(app, list(words))
    assert result.exit_code == code, (result.output, result.stderr, result.exception)
    return result


def refused(*words: str) -> str:
    result = call(*words, code=2)
    assert result.stdout == ""
    assert result.stderr.startswith("error: ")
    return " ".join(result.stderr.split())


# What `tmifpe evaluate digits-robust --eps 0.15 --limit 2` was stored under by 0.1.0 (commit 17f169b).
PAPER_WITH_VALUES = "--attack paper --loss cw --steps 5 --restarts 2 --schedule linear --momentum 0.5"
OLD_KEYS = [
    (["--attack", "paper"], "73b7f19c716b526b"),
    (PAPER_WITH_VALUES.split(), "8b5a2451d946a108"),
    (["--attack", "paper(loss=cw,momentum=0.5)", "--steps", "5", "--restarts", "2", "--schedule", "linear"],
     "8b5a2451d946a108"),
    (["--attack", "gama", "--steps", "5"], "9a61e1f251ec0074"),
    (["--attack", "bim", "--steps", "100"], "55fa801f566184d5"),
]  # fmt: skip


@pytest.mark.parametrize(("words", "key"), OLD_KEYS, ids=lambda value: " ".join(value) if value else "default")
def test_keys_are_those_of_the_first_version(words: list[str], key: str) -> None:
    as_then = ("--no-early-exit", "--tune", "off")
    assert json.loads(call(*QUICK, *words, *as_then).stdout)["key"] == key


def test_a_sequence_is_written_with_commas_or_plus_signs() -> None:
    for text in ("ce,gama(steps=3)", "ce+gama(steps=3)", "pgd(loss=ce), gama(steps=3)"):
        found = json.loads(call(*QUICK, "--attack", text).stdout)["attacks"]
        assert found == [attack_spelling(PGD("ce")), attack_spelling(GAMA(steps=3))]
    assert get_attack("paper,gama") == get_attack("pgd+gama")
    with pytest.raises(tmifpe.InputError, match="cannot read"):
        get_attack(",")


def test_python_takes_the_same_names() -> None:
    model, data, threat = (
        tmifpe.load_model("digits-robust"),
        tmifpe.load_data("digits", limit=2),
        tmifpe.Threat("linf", 0.1),
    )
    found = tmifpe.evaluate(model, data, threat, "paper(steps=2),gama(steps=2)", checks=False).spec.attacks
    assert found == (attack_spelling(PGD(steps=2)), attack_spelling(GAMA(steps=2)))
    row = tmifpe.compare(model, data, threat, ["paper", "ce+gama"], PGD(steps=2), checks=False)
    assert row.results["paper"][0].spec.attacks == (attack_spelling(PGD(steps=2)),)
    assert len(row.results["ce+gama"][0].spec.attacks) == 2


def test_paper_is_what_it_was_whatever_defaults_become() -> None:
    spelled = "pgd(loss=tmifpe,momentum=0.75,momentum_on=iterate,random_start=True,restarts=1,schedule=cosine,"
    assert attack_spelling(paper()) == spelled + "smooth=0.0,step_size=2.0,steps=100)"
    assert resolve_attack("paper") == paper()


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        (["--attack", "gama", "--loss", "ce"], "'gama' takes no --loss"),
        (["--attack", "autoattack", "--steps", "5", "--restarts", "2"], "takes no --steps, --restarts"),
        (["--attack", "ce,fgsm", "--steps", "100"], "'fgsm' takes no --steps"),
        (["--attack", "ce", "--loss", "cw"], "'ce' takes no --loss"),
        (["--attack", "gama(steps=5)", "--steps", "5"], "given twice"),
        (["--attack", "pappr"], "did you mean 'paper'"),
        (["--attack", "paper", "--loss", "gama"], "unknown loss 'gama'"),
        (["--loss", "gama", "--steps", "5"], "gama is an attack: write --attack 'gama'"),
        (["--loss", "ce,cw"], "ce, cw are several: write --attack 'ce,cw'"),
        (["--momentum", "0.5"], "breaks less: --attack paper --momentum 0.5"),
        (["--attack", "full", "--momentum", "0.5"], "'full' takes no --momentum"),
    ],
)  # fmt: skip
def test_options_beside_an_attack_that_does_not_take_them_are_refused(words: list[str], wanted: str) -> None:
    assert wanted in refused(*QUICK, *words)


def test_an_attack_takes_the_options_that_it_declares() -> None:
    found = json.loads(call(*QUICK, "--attack", "gama", "--momentum", "0.5", "--steps", "3").stdout)["attacks"]
    assert found == [attack_spelling(GAMA(momentum=0.5, steps=3))]


FULL: list[dict[str, Any]] = [
    {"restarts": 2},
    {"steps": 7},
    {"loss": "ce"},
    {"loss": "mifpe(T=10)", "steps": 3, "restarts": 2, "schedule": "linear"},
]


@pytest.mark.parametrize("options", FULL, ids=str)
def test_options_without_an_attack_are_those_of_full(options: dict[str, Any]) -> None:
    words = [word for name, value in options.items() for word in (f"--{name}", str(value))]
    told = call(*QUICK, *words)
    assert "notice" not in told.stderr
    found, stages = json.loads(told.stdout), [attack_spelling(stage) for stage in full(**options).stages]
    assert found["attacks"] == stages
    assert (found["loss"], found["steps"]) == (options.get("loss", "tmifpe"), options.get("steps", 100))
    assert json.loads(call(*QUICK, *words, "--attack", "full").stdout)["attacks"] == stages
    Path("plan.toml").write_text(
        "[[run]]\nmodel = 'digits-robust'\neps = 0.15\nlimit = 2\nchecks = false\n"
        + "".join(f"{name} = {value!r}\n" for name, value in options.items())
    )
    (run,) = json.loads(call("run", "plan.toml", "--json").stdout)["runs"]
    assert run["attacks"] == stages
    assert [attack_spelling(stage) for stage in get_attack(attack_title(stages)).stages] == stages


def test_tables_call_it_full_with_its_options(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    for words in ([], ["--targets", "second"]):
        told = call(*QUICK[:-1], "--restarts", "2", "--steps", "3", *words)
        assert "full(restarts=2, steps=3)" in told.stdout
        assert call("runs", "list").stdout.count("full(restarts=2,steps=3)") == 1 + bool(words)
    assert "--attack 'full(restarts=2,steps=3)'" in call("runs", "show", "latest").stdout.replace("\n", " ")


def test_options_of_an_attack_that_breaks_less_say_so_before_it_starts() -> None:
    for attack in ("quick", "paper"):
        told = call(*QUICK, "--attack", attack, "--loss", "ce", "--steps", "2")
        assert f"notice: --steps, --loss with --attack {attack} is one PGD, which breaks less" in told.stderr
        assert "notice" not in call(*QUICK, "--attack", attack, "--fresh").stderr
    assert json.loads(call(*QUICK, "--attack", "quick", "--restarts", "2").stdout)["attacks"] == [
        attack_spelling(quick(restarts=2))
    ]
    Path("plan.toml").write_text(
        "[[run]]\nmodel = 'digits-robust'\neps = 0.15\nlimit = 2\nchecks = false\nattack = 'quick'\nsteps = [2, 3]\n"
    )
    assert call("run", "plan.toml").stderr.count("is one PGD, which breaks less") == 1


def test_a_decimal_comma_is_remarked_on() -> None:
    plain = ["evaluate", "digits-robust", "--limit", "2", "--no-checks", "--attack", "fgsm", "--eps"]
    told = call(*plain, "0,03").stderr
    assert "notice: --eps 0,03 names the radii 0 and 3; a fraction has a point: --eps 0.03" in told
    for eps in ("0,0.3", "0.1,0.3", "0,1/255"):
        assert "notice" not in call(*plain, eps).stderr


def verbs() -> dict[str, Any]:
    group: Any = typer.main.get_command(app)
    return group.commands


@pytest.mark.parametrize("word", ["-h", "--help"])
def test_help_lists_daily_verbs_first_and_cuts_nothing(word: str) -> None:
    lines = call(word).stdout.splitlines()
    text = " ".join(" ".join(lines).split())
    assert max(map(len, lines)) <= 80
    assert "..." not in text.partition("Options:")[2]
    assert "Exit codes: 0 " in text
    daily, _, ours = text.partition("From the paper:")
    for name, verb in verbs().items():
        assert f"{name} {' '.join(verb.help.split())}" in (ours if verb.rich_help_panel else daily)
    assert {name for name, verb in verbs().items() if verb.rich_help_panel} == {
        "table1",
        "table-targeted",
        "theory",
        "figure1",
    }


@pytest.mark.parametrize("verb", ["evaluate", "compare"])
def test_options_stand_under_titles(verb: str) -> None:
    text = call(verb, "-h").stdout
    assert max(map(len, text.splitlines())) <= 80
    titles = ["Arguments:", "What to attack:", "With what:", "Trust:", "Output:", "Options:", "Exit codes:"]
    places = [text.index(f"{title}") for title in titles]
    assert places == sorted(places)
    what, how, trust, output, rest = (text[a:b] for a, b in itertools.pairwise(places[1:]))
    assert what.index("--data") < what.index("--limit") < what.index("--weights")
    assert how.index("--attack" if verb == "evaluate" else "--losses") < how.index("--eps") < how.index("--eot")
    assert "--strict" in trust
    assert "--json" in output
    assert rest.count("--") == 1, "only --help has no title"


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        (["compare", "digits-robust", "--attack", "gama"], "--losses takes attacks too"),
        (["evaluate", "digits-robust", "--config", "a.toml"], "tmifpe evaluate has no --config"),
        (["evaluate", "digits-robust", "--epsilon", "0.1"], "--eps"),
        (["evaluate", "--model", "digits-robust"], "tmifpe evaluate MODEL"),
        (["evaluate", "digits-robust", "--losses", "ce,cw"], "tmifpe compare"),
        (["evaluate", "digits-robust", "--latex"], "tmifpe report latest --format latex"),
        (["evaluate", "digits-robust", "--markdown"], "--summary FILE"),
        (["run", "plan.toml", "--junit", "x.xml"], '[outputs] junit = "robust.xml"'),
        (["curve", "digits-robust", "--eps", "0.1"], "the largest radius is --to"),
    ],
)
def test_what_people_type_gets_a_hint(words: list[str], wanted: str) -> None:
    assert wanted in refused(*words)
