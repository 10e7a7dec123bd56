"""The store at the command line: runs, exports, JUnit, Ctrl-C, and the helper for tests."""

from __future__ import annotations

import csv
import io
import json
import re
import signal
import sqlite3
import subprocess
import time
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree as ET

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from typer.testing import CliRunner

import tmifpe
from tests.stores import CLI, SHARD, THREAT, Killed, N, ask, command, environment, killed_after, same
from tmifpe import PGD, Threat
from tmifpe.cli import app
from tmifpe.core.errors import InputError
from tmifpe.report.gates import Gates
from tmifpe.report.junit import junit_xml
from tmifpe.run.outcomes import Outcomes
from tmifpe.store import Store
from tmifpe.store.export import outcomes_file, robustbench_file
from tmifpe.testing import assert_robust


@pytest.fixture(autouse=True)
def store(tmp_path, monkeypatch, unchecked) -> Path:
    monkeypatch.setenv("TMIFPE_STORE", str(tmp_path / "runs"))
    return tmp_path / "runs"


def call(*words: str, code: int = 0):
    result = CliRunner().invoke(app, [str(word) for word in words])
    assert result.exit_code == code, (result.output, result.stderr, result.exception)
    return result


def told(*words: str):
    return json.loads(call(*words, "--json").stdout)


def test_evaluate_stores_by_default_and_says_what_it_resumed(store):
    first, again = told(*CLI), told(*CLI)
    assert (first["resumed"], again["resumed"]) == (0, N)
    assert first["robust_accuracy"] == again["robust_accuracy"]
    assert told(*CLI, "--fresh")["resumed"] == 0
    assert same(ask(store), ask()), "the library and the command line ask the same question"


def test_no_store_leaves_nothing_behind(store):
    told(*CLI, "--no-store")
    assert not store.exists()


def test_store_option_beats_the_environment(tmp_path, store):
    told(*CLI, "--store", tmp_path / "other")
    assert (tmp_path / "other").is_dir()
    assert not store.exists()


def test_compare_stores(store):
    words = ["compare", "digits-robust", "--limit", "8", "--steps", "2", "--losses", "ce,tmifpe"]
    told(*words)
    assert {row["resumed"] for row in told(*words)["losses"].values()} == {8}
    assert len(Store(store).runs()) == 2


def test_runs_list_and_show(store):
    assert told("runs", "list") == {"runs": []}
    assert "no runs" in call("runs", "list").stderr
    found = told(*CLI)
    with pytest.raises(Killed):
        ask(store, seed=1, progress=killed_after(20))
    one, two = told("runs", "list")["runs"]
    assert (one["run"], one["done"], one["robust_accuracy"]) == (found["key"], N, found["robust_accuracy"])
    assert (two["done"], two["finished"], two["robust_accuracy"]) == (16, None, None)
    shown = told("runs", "show", found["key"][:6])
    assert shown["result"] == {name: value for name, value in found.items() if name in shown["result"]}
    assert set(found) - set(shown["result"]) == {"command", "versions", "machine"}
    assert shown["spec"]["seed"] == 0
    assert shown["sessions"][0]["versions"]["torch"] == torch.__version__
    listed = " ".join(call("runs", "list").stdout.replace("│", " ").split())
    assert found["key"][:8] in listed
    assert "seed 1" in listed
    assert "second" not in listed
    told(*CLI, "--targets", "second")
    assert "second" in call("runs", "list").stdout
    ask(store, verify="fp64", attack="fgsm", limit=2)
    listed = " ".join(call("runs", "list").stdout.replace("│", " ").split())
    assert "verify fp64" in listed
    assert "Not finished: 16 of 48" in call("runs", "show", two["run"]).stdout


def test_what_comes_after_a_run(store, monkeypatch):
    done = call(*CLI, "--fail-below", "0.01")
    key = Store(store).runs()[0].key
    said = " ".join(done.stderr.split())
    assert f"stored as {key[:8]} in {store}; tmifpe report {key[:8]} --store {store}".replace(" ", "") in said.replace(
        " ", ""
    )
    assert "passed: robust accuracy" in said
    assert "stored as" not in call(*CLI, "--quiet").stderr
    shown = call("runs", "show", "latest").stdout
    assert "command: tmifpe evaluate digits-robust --data digits" in shown
    assert told("runs", "compare", "latest", key)["only_first"] == 0
    monkeypatch.setenv("COLUMNS", "160")
    listed = call("runs", "list").stdout
    assert "seed" in listed
    assert Store(store).runs()[0].started[:10] in listed
    absent = store.parent / "nosuch"
    assert "there is no folder" in call("runs", "list", "--store", absent, code=2).stderr


def test_superseded_runs_have_names(store, stored):
    stored(store)
    ask(store, fresh=True)
    (current,) = told("runs", "list")["runs"]
    old, new = told("runs", "list", "--all")["runs"]
    assert new == current
    assert old["run"] == f"{current['key']}.1"
    call("runs", "rm", old["run"])
    assert told("runs", "list", "--all")["runs"] == [current]
    assert told("runs", "show", f"{current['key']}.2")["run"] == current["run"]


def test_runs_compare(store):
    ask(store, attack=tmifpe.PGD(loss="ce", steps=1, random_start=False))
    ask(store, attack=tmifpe.PGD(steps=10))
    weak, strong = (run.key for run in Store(store).runs())
    found = told("runs", "compare", weak, strong)
    assert found["only_first"] == 0
    assert found["only_second"] == len(found["indices"]) > 0
    assert "McNemar" in call("runs", "compare", weak, strong).stdout
    model, data = tmifpe.load_model("digits-robust"), tmifpe.load_data("digits", limit=N)
    tmifpe.evaluate(model, data, tmifpe.Threat("linf", 0.3), tmifpe.PGD(steps=10), store=store, checks=False)
    farther = Store(store).runs()[-1].key
    found = told("runs", "compare", strong, farther)
    assert (found["p"], found["differs"]) == (None, None)
    assert found["only_second"] > 0
    output = " ".join(call("runs", "compare", strong, farther).stdout.split())
    assert "linf 0.3" in output
    assert "the threats differ" in output
    assert "chance" not in output
    ask(store, limit=8)
    other = Store(store).runs()[-1].key
    assert "not on the same examples" in call("runs", "compare", weak, other, code=2).stderr


def test_runs_rm(store, stored):
    stored(store)
    ask(store, seed=1)
    first, second = (run.key for run in Store(store).runs())
    call("runs", "rm", first, "ffff", code=2)
    assert len(Store(store).runs()) == 2, "a wrong name removes nothing"
    call("runs", "rm", first)
    assert [run.key for run in Store(store).runs()] == [second]
    assert [folder.name for folder in (store / "adv").iterdir()] == [f"{second}-1"]
    connection = sqlite3.connect(store / "runs.sqlite")
    for table, rows in (("runs", 1), ("sessions", 1), ("shards", N // SHARD), ("outcomes", N)):
        assert connection.execute(f"SELECT count(*) FROM {table}").fetchone() == (rows,)
    connection.close()
    assert ask(store).resumed == 0


@pytest.mark.parametrize("name", ["../etc", "zz", "abc", "0000", "x" * 100, "", "0000.0", "%"])
def test_unknown_names_give_a_sentence(store, stored, name):
    stored(store)
    for verb in ("show", "rm", "export"):
        assert "Traceback" not in call("runs", verb, name, code=2).stderr


def test_export_formats(store, stored, tmp_path):
    result = stored(store)
    key = result.spec.key()
    rows = list(csv.DictReader(io.StringIO(call("runs", "export", key).stdout)))
    assert [int(row["index"]) for row in rows] == result.outcomes.index.tolist()
    assert [float(row["margin"]) for row in rows] == result.outcomes.margin.tolist()
    plain = json.loads(call("runs", "export", key, "--format", "json").stdout)
    assert [row["fooled"] for row in plain["outcomes"]] == result.outcomes.fooled.tolist()
    assert plain["run"]["key"] == key
    assert "parquett" in call("runs", "export", key, "--format", "parquett", code=2).stderr
    assert "--output" in call("runs", "export", key, "--format", "parquet", code=2).stderr
    parquet = pytest.importorskip("pyarrow.parquet")
    told = call("runs", "export", key, "--format", "parquet", "--output", tmp_path / "rows.parquet")
    assert (told.stdout, told.stderr) == ("", f"wrote {tmp_path / 'rows.parquet'}\n")
    table = parquet.read_table(tmp_path / "rows.parquet")
    assert table.column_names == Outcomes.columns()
    assert np.array_equal(table["steps_used"].to_numpy(), result.outcomes.steps_used)


@pytest.mark.parametrize("form", ["csv", "json"])
def test_exports_are_written_in_pieces(form, store, stored, monkeypatch):
    result = stored(store)
    kept = Store(store)
    run, n = kept.find(result.spec.key()), len(result.outcomes)
    whole = b"".join(outcomes_file(kept, run, form))
    monkeypatch.setattr("tmifpe.store.export._ROWS", 3)
    pieces = list(outcomes_file(kept, run, form))
    assert b"".join(pieces) == whole
    assert len(pieces) >= n / 3


def test_exported_adversarial_examples_are_those_of_save_adv(store, tmp_path):
    call(*CLI, "--save-adv", tmp_path / "a.safetensors")
    call("runs", "export", Store(store).runs()[0].key, "--adv", tmp_path / "b.safetensors")
    one, two = load_file(tmp_path / "a.safetensors"), load_file(tmp_path / "b.safetensors")
    assert set(one) == set(two) == {"adv", "labels", "indices", "fooled"}
    assert all(torch.equal(one[name], two[name]) for name in one)
    assert "cannot write" in call(*CLI, "--save-adv", tmp_path / "no" / "a.safetensors", code=2).stderr


def test_export_for_robustbench(store, tmp_path):
    model, data = tmifpe.load_model("digits-robust"), tmifpe.load_data("digits")
    x, labels = data.fetch(range(N))
    order = torch.randperm(N, generator=torch.Generator().manual_seed(0)).tolist()
    result = tmifpe.evaluate(
        model, (x, labels), THREAT, tmifpe.PGD(steps=3), indices=order, shard_size=SHARD, store=store, checks=False
    )
    assert "wrote" in call("runs", "export", result.spec.key(), "--robustbench", tmp_path / "adv.pt").stderr
    images = torch.load(tmp_path / "adv.pt", weights_only=True)
    assert images.shape == x.shape
    broken = torch.zeros(N, dtype=torch.bool)
    broken[torch.from_numpy(result.outcomes.index)] = torch.from_numpy(result.outcomes.fooled)
    assert torch.equal(images[~broken], x[~broken]), "the clean image where it is robust, in the order of the test set"
    assert bool((images[broken] != x[broken]).flatten(1).any(dim=1).all())
    assert float((images - x).abs().max()) <= THREAT.eps + 1e-6
    with torch.no_grad():
        right = model.module(images).argmax(dim=1) == labels
    assert int(right.sum()) == result.robust


def test_robustbench_wants_the_whole_test_set(store):
    with pytest.raises(Killed):
        ask(store, limit=None, shard_size=100, batch_size=100, attack="fgsm", progress=killed_after(250))
    ask(store)
    ask(store, targets="second", limit=None, shard_size=500, batch_size=500, attack="fgsm")
    unfinished, part, targeted = Store(store).runs()
    for run, said in ((unfinished, "not finished: 200 of 500"), (part, "48 of the 500"), (targeted, "targeted")):
        with pytest.raises(InputError, match=said):
            robustbench_file(Store(store), run)


def test_junit(tmp_path, store):
    report = tmp_path / "report.xml"
    call(*CLI, "--junit", report, "--fail-below", "0.99", code=1)
    suite = ET.parse(report).getroot()
    assert (suite.get("tests"), suite.get("failures")) == ("1", "1")
    failure = suite.find("testcase/failure")
    assert "at least 99.00% is required" in failure.get("message")
    assert "broken, as index (label -> prediction)" in failure.text
    call(*CLI, "--junit", report, "--fail-below", "0.01")
    suite = ET.parse(report).getroot()
    assert suite.get("failures") == "0"
    assert suite.find("testcase/failure") is None


def test_junit_has_the_flags_if_strict(stored, tmp_path):
    result = stored(tmp_path)
    flagged = replace(result, flags=(tmifpe.Flag("masked", "what was seen.", "What to do."),))
    for one, strict, tests, failures in ((result, True, 2, 0), (flagged, True, 2, 1), (flagged, False, 1, 0)):
        suite = ET.fromstring(junit_xml(one, Gates(0.0, strict=strict)))
        assert (int(suite.get("tests")), int(suite.get("failures"))) == (tests, failures)
        assert len(suite.findall("testcase")) == tests
        assert len(suite.findall("testcase/failure")) == failures


def test_junit_escapes_what_xml_cannot_say(stored, tmp_path):
    result = stored(tmp_path)
    name = "<script>&\"'\x00\x1b[31m\ud800\uffff]]>"
    named = replace(result, spec=replace(result.spec, model=name))
    case = ET.fromstring(junit_xml(named, Gates(1.0)).encode()).find("testcase")
    assert case.get("classname") == "tmifpe." + "<script>&\"'\ufffd\ufffd[31m\ufffd\ufffd]]>"


def test_assert_robust():
    model, data = tmifpe.load_model("digits-robust"), tmifpe.load_data("digits", limit=N)
    options = {"attack": tmifpe.PGD(steps=3), "checks": False}
    result = assert_robust(model, data, THREAT, at_least=0.1, **options)
    broken = [row for row in result.outcomes if row.fooled]
    assert broken
    with pytest.raises(AssertionError) as error:
        assert_robust(model, data, THREAT, at_least=0.99, **options)
    text = str(error.value)
    assert text.startswith(f"robust accuracy {result.robust_accuracy:.2%} ({result.robust} of {N}); at least 99.00%")
    for row in broken[:20]:
        assert f"{row.index} ({row.label} -> {row.adv_pred})" in text
    with pytest.raises(InputError, match="fraction"):
        assert_robust(model, data, THREAT, at_least=40, **options)


PAUSED = """
import time
from pathlib import Path
import tmifpe, torch
class Paused(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = tmifpe.load_model("digits-robust").module
    def forward(self, x):
        if any(Path(r"{store}").glob("adv/*/*.safetensors")):
            Path(r"{folder}/waits").touch()
            while not Path(r"{folder}/go").exists():
                time.sleep(0.01)
        return self.inner(x)
def make():
    return Paused()
"""
"""The model of the digits; once a shard is stored it waits to be told, so that a signal comes in the middle."""


def wait_for(path: Path, process) -> None:
    until = time.monotonic() + 600
    while not path.exists():
        assert time.monotonic() < until
        assert process.poll() is None, process.communicate()
        time.sleep(0.01)


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), pytest.param(signal.SIGTERM, 143, marks=pytest.mark.slow)]
)
def test_interrupted_once(store, tmp_path, number, code):
    factory = tmp_path / "paused.py"
    factory.write_text(PAUSED.format(store=store, folder=tmp_path), encoding="utf-8")
    words = ["evaluate", f"{factory}:make", *CLI[2:], "--fresh", "--json"]
    process = subprocess.Popen(
        command(*words), env=environment(store), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    wait_for(tmp_path / "waits", process)
    process.send_signal(number)
    (tmp_path / "go").touch()
    out, err = process.communicate(timeout=600)
    assert process.returncode == code, err
    assert out == ""
    assert "Traceback" not in err
    assert f"finished shards are stored in {store}. Resume with:" in err
    resume = err.strip().splitlines()[-1].strip()
    assert resume == "tmifpe " + " ".join(word for word in words if word != "--fresh")
    (run,) = Store(store).runs()
    assert run.done == SHARD


def test_interrupted_twice_stops_at_once(store, tmp_path):
    factory = tmp_path / "slow.py"
    factory.write_text(
        "import time, torch\n"
        "class Slow(torch.nn.Module):\n"
        "    def forward(self, x):\n"
        "        open(r'%s', 'w').close()\n"
        "        time.sleep(3000)\n"
        "def make():\n"
        "    return Slow()\n" % (tmp_path / "asked"),
        encoding="utf-8",
    )
    words = ["evaluate", f"{factory}:make", "--limit", "4", "--no-checks", "--batch-size", "4", "--shard-size", "4"]
    process = subprocess.Popen(command(*words), env=environment(store), stderr=subprocess.PIPE, text=True)
    wait_for(tmp_path / "asked", process)
    process.send_signal(signal.SIGINT)
    while "stopping after this step" not in (said := process.stderr.readline()):
        assert said, "it ended without a word"
    assert process.poll() is None, "the first one waits for the step"
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=300)
    assert process.returncode == 130
    assert "Traceback" not in err
    assert "Resume with" in err


def test_random_targets_of_two_seeds_are_two_questions(tmp_path):
    command = ["evaluate", "digits-robust", "--limit", "8", "--steps", "1", "--targets", "random", "--no-checks"]
    store = ["--store", str(tmp_path)]
    for seed in ("0", "1"):
        assert CliRunner().invoke(app, [*command, "--seed", seed, *store]).exit_code == 0
    names = [run.name for run in tmifpe.Store(tmp_path).runs()]
    told = CliRunner().invoke(app, ["runs", "compare", *names, *store])
    assert told.exit_code == 2
    assert "different random targets" in told.output


def test_results_say_where_they_come_from_and_what_the_source_noted(tmp_path):
    model = tmifpe.load_model("digits-robust")
    noted = replace(model, notes=("states no normalisation",))
    data = tmifpe.load_data("digits", limit=4)
    result = tmifpe.evaluate(noted, data, Threat("linf", 0.15), PGD(steps=1))
    assert result.to_json()["notes"] == ["states no normalisation"]
    assert result.to_json()["key"] is None  # nothing was hashed
    words = ["evaluate", "digits-robust", "--limit", "4", "--steps", "1", "--store", str(tmp_path), "--json"]
    told = json.loads(CliRunner().invoke(app, [*words, "--targets", "second"]).stdout)
    assert told["key"]
    assert {"command", "versions", "machine"} <= set(told)
    (row,) = json.loads(CliRunner().invoke(app, ["runs", "list", "--store", str(tmp_path), "--json"]).stdout)["runs"]
    assert row["targets"] == "second"
    assert row["precision"] == "fp32"


NAMES = ("=cmd|' /C calc'!A0", "+1+1", "-x", "@sum", "\tx", "\rx", "\x1b[31mred", "\uff1d1", "plain.png")


def test_names_in_a_csv_file_are_no_formulas_and_steer_no_terminal(stored, store):
    result = stored(store)
    (run,) = Store(store).runs()

    class Named(Store):
        def result(self, run):
            found = super().result(run)
            names = (NAMES * len(found.outcomes))[: len(found.outcomes)]
            return replace(found, files=names, class_names=tuple(f"={k}" for k in range(10)))

    text = b"".join(outcomes_file(Named(store), run, "csv")).decode()
    assert not set(text) & {"\x1b", "\r", "\t"}
    rows = list(csv.DictReader(io.StringIO(text)))
    assert len(rows) == len(result.outcomes)
    for row in rows:
        assert not re.match("[=+@\uff1d-]", row["file"])
        assert row["label_name"] == f"'={row['label']}"
        assert float(row["margin"]) < 100, "numbers stay numbers, with their signs"
    assert any(float(row["margin"]) < 0 for row in rows)
    assert rows[8]["file"] == "plain.png"
    assert rows[0]["file"] == "'" + NAMES[0]
