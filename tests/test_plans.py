"""Plan files: many runs in one table; mistakes said with their line before anything runs; failures isolated."""

from __future__ import annotations

import json
import re
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
from typer.testing import CliRunner

from tests.sweep import FACTORY, PLAN
from tmifpe.attacks import full
from tmifpe.cli import app
from tmifpe.cli.attack import attack_from
from tmifpe.cli.plans.file import read_plan
from tmifpe.cli.plans.verbs import TEMPLATE
from tmifpe.core.errors import InputError
from tmifpe.run import shard as shards
from tmifpe.store import Store
from tmifpe.store.adversarial import read_adv


@pytest.fixture(autouse=True)
def _here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("TMIFPE_STORE", raising=False)
    Path("tiny.py").write_text(FACTORY)


def call(*words: str):
    return CliRunner().invoke(app, list(words))


def test_a_sweep_is_one_table_and_continues(monkeypatch):
    """3 models x 4 attacks x 2 radii; stopped half-way and continued, no finished shard is computed again."""
    Path("plan.toml").write_text(PLAN)
    honest, computed = shards._run_shard, []

    def counted(job, shard, *rest):
        computed.append((job.attack, job.threat, shard))
        if len(computed) == 20:
            raise KeyboardInterrupt
        return honest(job, shard, *rest)

    monkeypatch.setattr(shards, "_run_shard", counted)
    stopped = call("run", "plan.toml")
    assert stopped.exit_code == 130, stopped.stderr
    monkeypatch.setattr(shards, "_run_shard", lambda job, *rest: (computed.append(rest[0]), honest(job, *rest))[1])
    done = call("run", "plan.toml", "--json")
    assert done.exit_code == 0, done.stderr
    assert len(computed) == 3 * 4 * 2 * 2 + 1, "every shard once, and the one that was interrupted twice"
    rows = json.loads(done.stdout)["runs"]
    assert len({row["name"] for row in rows}) == 24
    assert {row["state"] for row in rows} == {"done"}
    assert json.loads(Path("out.json").read_text())["runs"] == rows
    assert ET.fromstring(Path("out.xml").read_text()).get("tests") == "24"
    assert len(Store("kept").runs()) == 24
    # As two array jobs, merged: the same table.
    some = ["run", "plan.toml", "--only", "all/tiny.py:up/*", "--store", "parts"]
    for part in ("1/2", "2/2"):
        assert call(*some, "--shard", part).exit_code == 0
    assert call("runs", "merge", *map(str, Path("parts").glob("shard-*")), "--into", "parts").exit_code == 0
    merged = json.loads(call(*some, "--json").stdout)["runs"]
    rows = [row for row in rows if row["name"].startswith("all/tiny.py:up/")]
    assert len(rows) == 8
    told = ("name", "robust_accuracy", "clean_accuracy", "broken", "key")
    assert [[row[key] for key in told] for row in merged] == [[row[key] for key in told] for row in rows]
    assert {row["resumed"] for row in merged} == {8}


def test_failures_stay_with_their_run():
    Path("plan.toml").write_text(
        "[defaults]\nlimit = 4\nsteps = 1\nchecks = false\neps = 0.1\n"
        '[[run]]\nname = "bad"\nmodel = "tiny.py:boom"\n'
        '[[run]]\nname = "good"\nmodel = "tiny.py:up"\nfail_below = 1.0\n'
    )
    done = call("run", "plan.toml", "--no-store", "--markdown")
    assert done.exit_code == 2  # as of tmifpe evaluate tiny.py:boom
    assert "| bad | tiny.py:boom | linf 0.1 |" in done.stdout
    assert "failed: tiny.py:boom failed: RuntimeError: out of cheese" in done.stdout
    assert re.search(r"below what is asked: robust accuracy .*; at least 100.00% is required", done.stdout)
    assert "1 of 2 runs failed or are incomplete: bad" in done.stderr
    assert done.stderr.count("out of cheese") == 1
    shown = call("run", "plan.toml", "--no-store")
    assert "cheese" not in shown.stdout  # in a narrow column it could not be read
    assert "error: tiny.py:boom failed: RuntimeError: out of cheese (tiny.py, line 11) (bad)" in " ".join(
        shown.stderr.split()
    )
    gate = call("run", "plan.toml", "--no-store", "--only", "good", "--latex")
    assert gate.exit_code == 1
    assert gate.stdout.startswith(r"\begin{tabular}")
    assert call("run", "plan.toml", "--only", "god").exit_code == 2


def test_junit_of_a_plan_names_the_gate_and_the_number():
    Path("plan.toml").write_text(
        "[defaults]\nlimit = 4\nsteps = 1\nchecks = false\neps = 0.1\n"
        '[[run]]\nname = "both"\nmodel = "tiny.py:up"\nfail_below = 1.0\nfail_below_clean = 1.0\n'
        '[[run]]\nname = "fine"\nmodel = "tiny.py:up"\nfail_below = 0\n'
        '[[run]]\nname = "bad"\nmodel = "tiny.py:boom"\n'
        '[outputs]\njunit = "out.xml"\n'
    )
    call("run", "plan.toml", "--no-store")
    both, fine, bad = ET.fromstring(Path("out.xml").read_text())
    (failure,) = both
    robust, clean = failure.get("message", "").split("; clean accuracy")
    assert re.fullmatch(r"robust accuracy [\d.]+% \(\d of 4\); at least 100.00% is required", robust)
    assert clean.endswith("; at least 100.00% is required")
    assert "tiny.py:up on digits, linf eps 0.1, full(steps=1)" in (failure.text or "")
    assert [part.tag for part in (*fine, *bad)] == ["system-out", "error"]
    assert bad[0].get("message") == "tiny.py:boom failed: RuntimeError: out of cheese (tiny.py, line 11)"


def test_gates_certificates_and_examples_of_a_run():
    Path("plan.toml").write_text(
        "[defaults]\nlimit = 4\nsteps = 1\nchecks = false\neps = 0.1\n"
        '[[run]]\nname = "proved"\nmodel = "digits-robust"\neps = 0.001\ncertify = true\nsave_adv = "adv.npz"\n'
        '[[run]]\nname = "lower"\nmodel = "digits-robust"\nfail_below_lower = 0.99\n'
        '[[run]]\nname = "clean"\nmodel = "tiny.py:up"\nfail_below_clean = 1.0\nfail_below = 0.0\n'
    )
    done = call("run", "plan.toml", "--no-store", "--json")
    assert done.exit_code == 1, done.stderr
    proved, lower, clean = json.loads(done.stdout)["runs"]
    assert 0 < proved["certified_accuracy"] <= proved["robust_accuracy"]
    assert not proved["missed"]
    assert read_adv("adv.npz")["adv"].shape == (4, 1, 8, 8)
    assert "wrote adv.npz" in done.stderr
    assert lower["missed"]
    assert lower["fail_below_lower"] == 0.99
    assert "lower (lower end of the 95 % interval" in " ".join(done.stderr.split())
    assert clean["missed"] == (clean["clean_accuracy"] < 1)
    quiet = call("run", "plan.toml", "--no-store", "--only", "lower", "--quiet")
    assert "below what the plan asks for" in quiet.stderr, "why it failed is said all the same"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            '[[run]]\nmodel = "digits-robust"\n\nstpes = 3\n',
            r"line 4: unknown option of a run 'stpes'; did you mean 'steps'",
        ),
        ('[defaults]\nlimit = "few"\n', "line 2: limit must be a whole number, got 'few'"),
        ("[defaults]\nchecks = 1\n", "line 2: checks must be true or false, got 1"),
        ("[defaults]\nlimit = [1, 2]\n", "line 2: limit must be one value"),
        ('[[run]]\nname = "a"\nmodel = "x"\n[[run]]\nname = "a"\nmodel = "x"\n', r"line 4: a run called 'a' .*line 1"),
        ('[[run]]\nmodel = "digits-robust"\nweights = "none.pt"\n', "line 1: no such file: none.pt"),
        ('[[run]]\nmodel = "none.py:make"\n', "line 1: no such file: none.py"),
        (
            '[[run]]\nmodel = "digits-robust"\nloss = "tmipfe"\n',
            "line 1: .* did you mean 'tmifpe'",
        ),
        (
            '[[run]]\nmodel = "digits-robust"\nfail_below = 40\n',
            r"line 3: fail_below is a fraction .*, got 40; 40 % is 0.4",
        ),
        (
            '[[run]]\nmodel = "digits-robust"\nfail_below_clean = -1\n',
            r"line 3: fail_below_clean is a fraction .*, got -1$",
        ),
        ("[defaults]\nfail_below_lower = 101\n", r"line 2: fail_below_lower is a fraction .*, got 101$"),
        ('[[run]]\nmodel = "digits-robust"\nfail_below_lowr = 0.4\n', "line 3: .* did you mean 'fail_below_lower'"),
        ('[[run]]\nmodel = "digits-robust"\ncertify = 1\n', "line 3: certify must be true or false, got 1"),
        ('[[run]]\nmodel = "digits-robust"\ntargets = "second"\ncertify = true\n', "certificates are for untargeted"),
        ('[[run]]\nmodel = "digits-robust"\nsave_adv = "adv.txt"\n', "line 1: adversarial examples are written as"),
        ('[[run]]\nmodel = "digits-robust"\nsave_adv = "no/adv.pt"\n', "line 1: cannot write 'no/adv.pt'"),
        ('[[run]]\nmodel = "digits-robust"\nloss = ["ce", "cw"]\nsave_adv = "a.pt"\n', "two runs would write 'a.pt'"),
        ("[[run]]\neps = 0.1\n", "line 1: a run needs a model"),
        ('include = ["plan.toml"]\n', "line 1: plan.toml includes itself"),
        ('include = ["other.toml"]\n', "line 1: no such file: other.toml"),
        ("[outptus]\n", r"line 1: unknown key of a plan 'outptus'; did you mean 'outputs'"),
        ('[outputs]\npdf = "x"\n', "line 2: unknown output 'pdf'"),
        ("store = 5\n", "line 1: store must be text, got 5"),
        ("[[run]\n", r"is not TOML: .*line 1"),
        ("", "plans no run"),
    ],
)
def test_a_mistake_is_one_sentence_with_its_line(text, said):
    Path("plan.toml").write_text(text)
    with pytest.raises(InputError, match=said):
        read_plan("plan.toml")
    assert call("run", "plan.toml").exit_code == 2


def test_includes_share_defaults_and_runs():
    Path("common.toml").write_text('[defaults]\nlimit = 4\neps = 0.1\n[[run]]\nname = "first"\nmodel = "tiny.py:up"\n')
    Path("plan.toml").write_text(
        'include = ["common.toml"]\n[defaults]\nlimit = 5\n[[run]]\nname = "second"\nmodel = "tiny.py:down"\n'
    )
    first, second = read_plan("plan.toml").runs
    assert (first.name, first.source.limit, second.name, second.source.limit) == ("first", 4, "second", 5)
    assert second.how.eps == "0.1"


def test_a_cycle_of_includes_is_found():
    Path("a.toml").write_text('include = ["b.toml"]\n')
    Path("b.toml").write_text('include = ["a.toml"]\n')
    with pytest.raises(InputError, match=r"b.toml, line 1: a.toml includes itself"):
        read_plan("a.toml")


def test_pyproject_holds_a_plan():
    text = '[project]\nname = "mine"\n[tool.tmifpe.defaults]\nlimit = 4\n[[tool.tmifpe.run]]\nmodel = "tiny.py:up"\n'
    Path("pyproject.toml").write_text(text)
    (run,) = read_plan("pyproject.toml").runs
    assert (run.name, run.source.limit, run.where) == ("tiny.py:up", 4, "pyproject.toml, line 5")
    Path("pyproject.toml").write_text(text + "epss = 1\n")
    assert "pyproject.toml, line 7: unknown option of a run 'epss'" in call("run").stderr
    Path("pyproject.toml").write_text('[project]\nname = "mine"\n')
    assert "has no table [tool.tmifpe]" in call("run").stderr


def test_the_plan_to_begin_with_runs_as_it_is():
    assert call("plan", "init", "--out", "mine.toml").exit_code == 0
    assert Path("mine.toml").read_text() == TEMPLATE.format(name="mine.toml")
    planned = read_plan("mine.toml").runs
    assert all(attack_from(run.how, run.attack, run.loss) == full() for run in planned), "and no weaker attack"
    assert len(read_plan("mine.toml").runs) == 9
    assert call("plan", "init", "--out", "mine.toml").exit_code == 2, "never overwritten"
    done = call("run", "mine.toml", "--only", "gate")
    assert done.exit_code == 0, done.stderr


def test_the_script_for_slurm():
    Path("my plan.toml").write_text('[[run]]\nmodel = "tiny.py:up"\n')
    done = call("plan", "sbatch", "my plan.toml", "--jobs", "8")
    assert "#SBATCH --array=1-8\n" in done.stdout
    assert "tmifpe run 'my plan.toml' --shard auto --store tmifpe-runs\n" in done.stdout
    assert call("plan", "sbatch", "my plan.toml", "--time", "1\n#SBATCH --x").exit_code == 2
