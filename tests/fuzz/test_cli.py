"""Every option of every verb, with good, bad and hostile values: a result, or one sentence and the right exit code."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import typer
from hypothesis import strategies as st
from safetensors.torch import save_file
from typer.testing import CliRunner

from tests.fuzz.fuzzing import fuzz, mix, sentence
from tmifpe.cli import app
from tmifpe.store import Store

CODES = {0, 1, 2, 3, 4, 130}

FACTORY = """
import torch
class Tiny(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.linspace(-1, 1, 12).reshape(3, 4))
    def forward(self, x):
        return x.flatten(1) @ self.weight.t()
def make(): return Tiny()
def boom(): raise RuntimeError("[red]out of cheese[/red]\\x1b[31m")
def leave(): raise SystemExit(7)
def nan(): return lambda x: x.flatten(1)[:, :3] * float("nan")
def flat(): return lambda x: x.sum()
number = 5
"""


@pytest.fixture(autouse=True)
def _files() -> None:
    """What the good values name."""
    Path("tiny.py").write_text(FACTORY)
    images = np.random.default_rng(0).integers(0, 256, (3, 1, 2, 2), dtype=np.uint8)
    np.savez("data.npz", images=images, labels=np.arange(3))
    Path("indices.txt").write_text("2\n0\n")
    Path("targets.txt").write_text("1\n1\n")
    Path("logits.txt").write_text("1.5, 0.2, -3")
    save_file({"weight": torch.ones(3, 4)}, "w.safetensors")
    save_file({"adv": torch.zeros(2, 1, 2, 2)}, "adv.safetensors")
    Path("broken.npz").write_bytes(b"PK\3\4 broken")
    plan = 'model = "tiny.py:make"\ndata = "npz:data.npz"\nsteps = 1\nlimit = 2\nchecks = false\n'
    Path("plan.toml").write_text(f'[[run]]\nname = "one"\n{plan}')
    Path("bad.toml").write_text("[[run]]\nmodel = [\n")
    Path("folder").mkdir()


# What each option is called with besides nasty text. Every option of every verb must be here: a new one is fuzzed too.
GOOD: dict[str, list[str]] = {
    "model": [
        "tiny.py:make",
        "tiny.py:make",
        "tiny.py:boom",
        "tiny.py:leave",
        "tiny.py:nan",
        "tiny.py:flat",
        "tiny.py:number",
    ],
    "models": ["tiny.py:make", "digits-robust"],
    "data": [
        "npz:data.npz",
        "npz:data.npz",
        "npz:broken.npz",
        "digits",
        "mnist:folder",
        "cifar10:folder",
        "imagefolder:folder",
    ],
    "box": ["0,1", "0,255", "-1,1", "1,0", "0", "nan,1"],
    "weights": ["w.safetensors", "broken.npz", "folder"],
    "mean": ["0.5", "0.5,0.5,0.5", "1e308", "nan"],
    "std": ["0.25", "1,1,1", "0", "1e-320"],
    "limit": ["1", "2", "99"],
    "sample": ["1", "2", "99"],
    "sample_seed": ["0", "3", "9223372036854775808"],
    "classes": ["logits.txt", "folder", "broken.npz"],
    "template": ["a photo of a {}.", "{}{}", "no place"],
    "resize": ["256", "4x4", "Res256Crop224", "0", "99999:bicubic"],
    "crop": ["1", "2"],
    "indices": ["indices.txt", "folder", "broken.npz"],
    "device": ["cpu", "auto", "meta", "cuda:99", "mps", "xla", "cpu:3"],
    "norm": ["linf", "l2", "LINF"],
    "eps": ["0.1", "8/255", "0", "1e-30", "1e6", "1e7", "0.1,0.2", "0,0.1", "0.1,,2", "0.1,1e7"],
    "to": ["0.1", "8/255", "0", "1e-30", "1e7", "0.1,0.2"],
    "resolution": ["0.05", "1", "0", "1e-30"],
    "at": ["0.1", "0", "0.05,0.1", "5", ","],
    "csv": ["points.csv", "folder", "no/such/x"],
    "figure": ["x.txt", "no/such/x.png", "folder"],
    "gallery": ["0", "3", "501"],
    "title": ["a title", "<script>"],
    "steps": ["1", "2", "2147483648", "9" * 30],
    "restarts": ["1", "2", "2147483648"],
    "schedule": ["cosine", "linear", "constant", "drops"],
    "momentum": ["0", "0.5", "1", "2"],
    "targets": ["second", "least-likely", "random", "1", "targets.txt", "99", "indices.txt", "second,random"],
    "mode": ["verdict", "strongest"],
    "precision": ["fp32", "fp64", "bf16", "fp16", "fp8-e4m3"],
    "seed": ["0", "9223372036854775807", "9223372036854775808"],
    "eot": ["1", "2", "1000001"],
    "batch_size": ["auto", "1", "2", "1000000"],
    "track": ["tensorboard:tb", "tensorboard:data.npz", "nothing", "tensorboard"],
    "tune": ["auto", "off", "on"],  # full may compile, which takes minutes
    "shard_size": ["1", "2", "9" * 30],
    "verify": ["float64", "float32"],
    "repeats": ["1", "2", "1000001"],
    "straight_through": ["*", "nothing", "features.1"],
    "spot_check": ["1:fgsm", "2", "0", "x", "1:nothing"],
    "from_model": ["digits-distilled", "nothing", "digits-robust"],
    "transfer_adv": ["adv.safetensors", "w.safetensors", "broken.npz", "folder"],
    "store": ["store", "folder", "data.npz", "deep/er"],
    "loss": ["tmifpe", "ce", "mifpe(T=10)", "dlr", "fgsm", "gama(steps=1)", "mifpe(T=-1)"],
    "attack": ["paper", "gama(steps=1)", "ce,fgsm", "paper(steps=1)+gama(steps=1)", "fgsm,", "pgd(loss=cw,steps=1)"],
    "losses": ["ce,tmifpe", "ce", "ce,ce", "mifpe(T=2),cw", "fgsm,cw", ",", "ce,nothing"],
    "seeds": ["0", "0,1", "0,0", "-1", "1,a"],
    "save_adv": ["out.safetensors", "folder", "no/such/x"],
    "junit": ["junit.xml", "folder"],
    "summary": ["summary.md", "folder", "no/such/x"],
    "fail_below": ["0", "1", "0.5", "2"],
    "fail_below_clean": ["0", "1", "-1"],
    "fail_below_lower": ["0", "1", "nan"],
    "precisions": ["fp32", "fp16,fp32", "fp32,fp32", "fp8", ""],
    "out": ["out", "data.npz", "folder/x.png", "x.svg", "x.txt"],
    "kind": ["losses", "models", "flags", "norms"],
    "run": ["0123", "0123456789abcdef.1"],
    "first": ["0123"],
    "second": ["0123"],
    "names": ["0123"],
    "runs": ["0123", "latest"],
    "format": ["csv", "json", "parquet", "xml"],
    "output": ["rows.csv", "folder", "no/such/x"],
    "adv": ["adv.safetensors", "a.safetensors", "folder", "broken.npz", "w.safetensors"],
    "robustbench": ["rb.pt", "folder"],
    "eval_results": ["hub", "data.npz", "no/such/x"],
    "dataset": ["org/name", "<b>"],
    "task_id": ["robust", "a: b"],
    "logits": ["1.5,0.2,-3", "logits.txt", "1,1", "[2 1 0]", "-1,-2", "1e308,-1e308", "nan,1", "1"],
    "label": ["0", "1", "5", "-1"],
    "target": ["0", "1", "5"],
    "plot": ["x.txt", "no/such/x.png"],
    "rows": ["1", "mnist", "nothing", "99"],
    "weights_dir": ["folder", "data.npz"],
    "data_dir": ["folder", "data.npz"],
    "engine": ["local", "loca", "ray:nowhere", "processes:1"],
    "workers": ["0", "many", "-1"],  # real ones take seconds to start, and have tests of their own
    "shard": ["1/1", "1/2", "2/2", "3/2", "auto", "auto/2"],
    "retries": ["0", "1", "1001"],
    "shard_timeout": ["1", "0", "nan"],
    "plan": ["plan.toml", "bad.toml", "data.npz", "folder", "pyproject.toml"],
    "only": ["one", "*", "two"],
    "jobs": ["1", "16", "0"],
    "cpus": ["1", "4"],
    "time": ["04:00:00", "2-12", "soon"],
    "stores": ["store", "folder", "data.npz"],
    "into": ["merged", "store", "data.npz"],
}
QUIET = {
    "quiet",
    "verbose",
    "json",
    "no_store",
    "fresh",
    "strict",
    "every",
    "markdown",
    "latex",
    "with_autoattack",
    "paper",
    "checks",
    "certify",
    "early_exit",
    "page",
}
UNTOUCHED = {"open_it"}
"""Opens a browser."""

# A call that works and is quick, to which bad options are added.
BASE: dict[str, list[str]] = {
    "evaluate": ["tiny.py:make", "--data", "npz:data.npz", "--steps", "1", "--limit", "2", "--no-store", "--no-checks"],
    "compare": [
        "tiny.py:make",
        "--data",
        "npz:data.npz",
        "--steps",
        "1",
        "--limit",
        "2",
        "--no-store",
        "--losses",
        "ce",
    ],
    "curve": ["tiny.py:make", "--data", "npz:data.npz", "--to", "0.1", "--limit", "1", "--no-store", "--no-checks"],
    "report": ["0123", "--store", "store", "--gallery", "2"],
    "board": ["store", "--gallery", "2"],
    "verify": ["adv.safetensors", "--model", "tiny.py:make", "--data", "npz:data.npz", "--limit", "2"],
    "audit": ["tiny.py:make", "--data", "npz:data.npz", "--limit", "2", "--losses", "ce", "--precisions", "fp32"],
    "table-targeted": [
        "tiny.py:make",
        "--data",
        "npz:data.npz",
        "--limit",
        "2",
        "--no-store",
        "--losses",
        "ce",
        "--steps",
        "1",
    ],
    "table1": ["--no-store", "--weights-dir", "folder", "--data-dir", "folder"],
    "theory": ["1.5,0.2,-3", "--label", "0"],
    "list": ["losses"],
    "figure1": ["--json"],
    "runs list": [],
    "runs show": ["0123"],
    "runs compare": ["0123", "4567"],
    "runs rm": ["0123"],
    "runs export": ["0123"],
    "runs repair": [],
    "run": ["plan.toml", "--no-store"],
    "plan init": ["--out", "new.toml"],
    "plan sbatch": ["plan.toml"],
    "runs merge": ["store", "--into", "merged"],
}
SLOW = {"demo", "doctor"}  # one attacks two models with six losses, the other imports every extra


@cache
def verbs() -> dict[str, Any]:
    """Every verb, `runs list` and the like among them."""
    group: Any = typer.main.get_command(app)
    found: dict[str, Any] = {}
    for name, command in group.commands.items():
        inner = getattr(command, "commands", None)
        found.update({f"{name} {verb}": part for verb, part in inner.items()} if inner else {name: command})
    return found


def test_every_verb_and_option_is_fuzzed() -> None:
    assert set(verbs()) - SLOW == set(BASE)
    options = {p.name for name, verb in verbs().items() if name not in SLOW for p in verb.params} - {"help"}
    assert options - set(GOOD) - QUIET == UNTOUCHED


@st.composite
def calls(draw: st.DrawFn, only: tuple[str, ...] = ()) -> list[str]:
    """A verb, its working call, and up to three options set anew; an argument may be replaced."""
    name = draw(st.sampled_from(only or tuple(BASE)))
    words, params = list(BASE[name]), [p for p in verbs()[name].params if p.name not in {"help", *UNTOUCHED}]
    for param in draw(st.lists(st.sampled_from(params), max_size=3)) if params else []:
        flag = param.name in QUIET
        value = "" if flag else draw(mix(*GOOD[param.name]))
        if param.param_type_name == "argument":
            words = [value, *words[1:]] if draw(st.booleans()) else [*words, value]
        elif flag:
            words.append(draw(st.sampled_from([*param.opts, *param.secondary_opts])))
        else:
            words += draw(st.sampled_from([[param.opts[-1], value], [f"{param.opts[-1]}={value}"]]))
    return [*name.split(), *words]


def check_stores() -> None:
    """What is in a store is whole: every finished run has all its outcomes, and they add up."""
    for database in Path().rglob("runs.sqlite"):
        store = Store(database.parent)
        for run in store.runs():
            result = store.result(run)
            assert len(result.outcomes) == run.done
            if run.finished is not None:
                wrong = int((~result.outcomes.correct & result.outcomes.counted).sum())
                assert result.robust + result.broken + wrong == result.n
                assert run.done == run.plan.n


def strict_json(text: str) -> Any:
    def refuse(word: str) -> None:
        raise AssertionError(f"{word} is not JSON")

    return json.loads(text, parse_constant=refuse)


def call(words: list[str]) -> Any:
    result = CliRunner().invoke(app, words)
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    assert result.exit_code in CODES
    assert "Traceback" not in result.output
    if result.exit_code == 2:
        sentence(result.stderr[-1000:])
        assert result.stdout == ""
        said = [line for line in result.stderr.splitlines() if line.lower().startswith("error:")]
        assert len(said) == 1 or result.stderr.startswith("Usage:"), result.stderr
        assert not any(line.startswith("error:") and not line.isprintable() for line in said)
    if result.exit_code == 0 and "--json" in words and "--help" not in words:
        assert isinstance(strict_json(result.stdout), dict)
    return result


@fuzz(20, 80, words=calls(("evaluate",)))
def test_evaluate(words: list[str]) -> None:
    call(words)


@fuzz(8, 40, words=calls(("evaluate", "compare", "table-targeted")))
def test_stored_runs_are_whole(words: list[str]) -> None:
    call([word for word in words if word != "--no-store"])
    check_stores()


@fuzz(12, 60, words=calls(("compare", "audit", "table-targeted", "verify")))
def test_other_measurements(words: list[str]) -> None:
    call(words)


@fuzz(4, 30, words=calls(("curve",)))
def test_curves(words: list[str]) -> None:
    call(words)


@fuzz(8, 60, words=calls(("run", "plan init", "plan sbatch")))
def test_plans(words: list[str]) -> None:
    call(words)


@fuzz(12, 70, words=calls(("theory", "list", "figure1", "table1")))
def test_quick_verbs(words: list[str]) -> None:
    call(words)


@fuzz(
    12,
    50,
    words=calls(("report", "board", *(name for name in BASE if name.startswith("runs ")))),
    real=st.integers(0, 2),
)
def test_runs(words: list[str], real: int) -> None:
    """On a store that is there, with names that are there and names that are not."""
    if not Path("store/runs.sqlite").is_file():
        assert call([*["evaluate", "tiny.py:make", "--data", "npz:data.npz", "--steps", "1"]]).exit_code in (0, 2)
    keys = [run.key for run in Store("store").runs()] if Path("store/runs.sqlite").is_file() else []
    call([keys[0] if word == "0123" and keys and real else word for word in words])
    check_stores()


@fuzz(10, 100, words=st.lists(mix("evaluate", "runs", "--help", "--version", "list", "-h"), max_size=4))
def test_any_words_at_all(words: list[str]) -> None:
    call(words)
