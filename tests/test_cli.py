"""The command line, end to end: what a user types, what comes back, and how it fails."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from typer.testing import CliRunner

import tmifpe
from tmifpe.cli import app

pytestmark = pytest.mark.usefixtures("unchecked")

QUICK = ["--eps", "0.15", "--limit", "24", "--steps", "5"]


@pytest.fixture(autouse=True)
def _own_store(tmp_path, monkeypatch):
    monkeypatch.setenv("TMIFPE_STORE", str(tmp_path / "store"))


def call(*words: str, code: int = 0):
    result = CliRunner().invoke(app, list(words))
    assert result.exit_code == code, (result.output, result.stderr, result.exception)
    return result


def refused(*words: str) -> str:
    """Exit 2, nothing on stdout, and one sentence on stderr."""
    result = call(*words, code=2)
    assert result.stdout == ""
    assert "Traceback" not in result.stderr
    return " ".join(result.stderr.split())


@pytest.mark.checked
def test_evaluate_prints_one_json_object():
    result = call("evaluate", "digits-robust", *QUICK, "--json")
    found = json.loads(result.stdout)
    wanted = (
        "clean_accuracy robust_accuracy interval n broken norm eps loss steps seed seconds forwards backwards version"
    )
    assert set(wanted.split()) <= set(found)
    assert found["n"] == 24
    assert 0 <= found["interval"][0] <= found["robust_accuracy"] <= found["interval"][1] <= 1
    assert (found["norm"], found["eps"], found["loss"], found["steps"], found["seed"]) == ("linf", 0.15, "tmifpe", 5, 0)


@pytest.mark.checked
def test_evaluate_shows_a_table():
    output = call("evaluate", "digits-robust", *QUICK[2:], "--norm", "l2", "--eps", "8/255").stdout
    assert "robust accuracy" in output
    assert "%" in output


def test_targets_add_a_success_rate():
    for targets in ("second", "least-likely", "random", "3"):
        found = json.loads(call("evaluate", "digits-robust", *QUICK, "--targets", targets, "--json").stdout)
        assert 0 <= found["success_rate"] <= 1
        assert found["targets"] == targets


def test_targets_from_a_file(tmp_path):
    path = tmp_path / "targets.txt"
    path.write_text("\n".join(["1"] * 24))
    assert (
        json.loads(call("evaluate", "digits-robust", *QUICK, "--targets", str(path), "--json").stdout)["left_out"] >= 0
    )
    path.write_text("1\n2")
    assert "24" in refused("evaluate", "digits-robust", *QUICK, "--targets", str(path))


def test_fail_below_is_exit_one():
    call("evaluate", "digits-robust", *QUICK, "--fail-below", "0.0")
    call("evaluate", "digits-robust", *QUICK, "--fail-below", "1.0", code=1)
    assert "fraction" in refused("evaluate", "digits-robust", *QUICK, "--fail-below", "45")


def test_adversarial_examples_are_saved_and_hold(tmp_path):
    path = tmp_path / "adv.safetensors"
    found = json.loads(call("evaluate", "digits-distilled", *QUICK, "--save-adv", str(path), "--json").stdout)
    saved = load_file(path)
    model = tmifpe.load_model("digits-distilled").module
    wrong = model(saved["adv"]).argmax(dim=1) != saved["labels"]
    assert 1 - wrong.double().mean().item() == pytest.approx(found["robust_accuracy"])
    x, _ = tmifpe.load_data("digits", limit=24).fetch(range(24))
    assert (saved["adv"] - x).abs().max() <= 0.15 + 1e-6


@pytest.mark.checked
@pytest.mark.usefixtures("not_led_in")
def test_adversarial_examples_are_written_as_the_ending_says(tmp_path):
    readers = {
        "a.safetensors": load_file,
        "a.npz": lambda path: {name: torch.from_numpy(np.load(path)[name]) for name in ("adv", "labels", "indices")},
        "a.pt": lambda path: torch.load(path, weights_only=True),
    }
    first = None
    for name, read in readers.items():
        path = str(tmp_path / name)
        call("evaluate", "digits-distilled", *QUICK, "--no-checks", "--attack", "paper", "--save-adv", path)
        saved = read(path)
        first = first or saved
        assert torch.equal(saved["adv"], first["adv"])
        assert torch.equal(saved["labels"], first["labels"])
        weak = ["--attack", "paper", "--loss", "ce", "--steps", "1", "--eps", "0.15", "--limit", "24"]
        found = json.loads(call("evaluate", "digits-distilled", *weak, "--transfer-adv", path, "--json").stdout)
        assert "transfer-failure" in [flag["name"] for flag in found["flags"]], name
        fewer = [*weak[:-1], "9"]
        some = json.loads(call("evaluate", "digits-distilled", *fewer, "--transfer-adv", path, "--json").stdout)
        assert some["n"] == 9, "the rows of the run, of a file that has more"
        moved = refused("evaluate", "digits-distilled", "--limit", "25", "--transfer-adv", path)
        assert "different images: 1 of the 25" in moved
    for name in ("adv", "adv.pth", "adv.npy"):
        assert ".safetensors, .npz, .pt" in refused("evaluate", "digits-robust", "--save-adv", str(tmp_path / name))
        assert not (tmp_path / name).exists()


def test_adversarial_examples_are_never_unpickled(tmp_path):
    import pickle

    class Evil:
        def __reduce__(self):
            return (open, (str(tmp_path / "ran"), "w"))

    (tmp_path / "adv.pt").write_bytes(pickle.dumps({"adv": Evil()}))
    np.savez(tmp_path / "adv.npz", adv=np.array([Evil()], dtype=object))
    for name in ("adv.pt", "adv.npz"):
        assert name in refused("evaluate", "digits-robust", *QUICK, "--transfer-adv", str(tmp_path / name))
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    "words",
    [
        ["evaluate", "digits-robust", "--loss", "tmifpe", "--loss", "cw"],
        ["evaluate", "digits-robust", "--loss=tmifpe", "--loss", "tmifpe"],
        ["compare", "digits-robust", "--eps", "0.1", "--losses", "ce", "--eps", "0.2"],
        ["evaluate", "digits-robust", "--checks", "--no-checks"],
        ["runs", "list", "--store", "a", "--store", "b"],
    ],
)
def test_an_option_that_takes_one_value_is_refused_twice(words):
    assert "is given twice" in refused(*words)


def test_a_switch_may_be_given_twice():
    assert json.loads(call("runs", "list", "--json", "--json").stdout) == {"runs": []}


@pytest.mark.parametrize(("word", "norm"), [("L2", "l2"), ("2", "l2"), ("Linf", "linf"), ("inf", "linf")])
def test_norms_are_spelt_as_people_do(word, norm):
    words = ["--eps", "0.1", "--limit", "4", "--steps", "1", "--no-checks", "--json"]
    assert json.loads(call("evaluate", "digits-robust", *words, "--norm", word).stdout)["norm"] == norm


def test_mean_and_std_may_be_fractions():
    words = ["--limit", "4", "--steps", "1", "--no-checks", "--json"]
    found = json.loads(call("evaluate", "digits-robust", *words, "--mean", "0/1", "--std", "255/255").stdout)
    assert found["clean_accuracy"] == 1
    assert "1/255" in refused("evaluate", "digits-robust", "--mean", "0", "--std", "1/x")


def test_data_sorted_by_class_is_noted_and_sampled(tmp_path):
    order = np.argsort(tmifpe.load_data("digits").labels.numpy(), kind="stable")
    images, labels = tmifpe.load_data("digits").fetch(order.tolist())
    np.savez(tmp_path / "sorted.npz", images=images.numpy(), labels=labels.numpy())
    words = ["evaluate", "digits-robust", "--data", f"npz:{tmp_path}/sorted.npz", "--steps", "1", "--no-checks"]
    found = json.loads(call(*words, "--limit", "40", "--json").stdout)
    assert any("cover 1 of 10 classes" in note and "--sample 40" in note for note in found["notes"])
    assert json.loads(call(*words, "--sample", "40", "--json").stdout)["notes"] == []
    assert "one of them" in refused(*words, "--sample", "40", "--limit", "40")


@pytest.mark.checked
@pytest.mark.usefixtures("not_led_in")
def test_a_huge_eps_names_what_was_meant():
    found = json.loads(call("evaluate", "digits-robust", *QUICK[2:], "--eps", "8", "--json").stdout)
    assert any(flag["name"] == "large-eps" and "--eps 8/255" in flag["advice"] for flag in found["flags"])


def test_forgotten_data_is_named(tmp_path):
    (tmp_path / "mine.py").write_text(
        "from torch import nn\ndef make():\n"
        "    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 10))\n"
    )
    for verb in ("evaluate", "compare", "audit", "table-targeted"):
        assert "--data is missing" in refused(verb, f"{tmp_path}/mine.py:make")
    assert "--data is missing" not in refused("evaluate", f"{tmp_path}/mine.py:make", "--data", "digits")


def test_a_bare_path_as_data_suggests_what_to_write(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "photos32").mkdir()
    (tmp_path / "set.npz").touch()
    assert "imagefolder:photos32" in refused("evaluate", "digits-robust", "--data", "photos32")
    assert "npz:set.npz" in refused("evaluate", "digits-robust", "--data", "set.npz")
    assert "unknown data source" in refused("evaluate", "digits-robust", "--data", "photos33")


def test_compare_says_what_was_asked_and_what_came_from_the_store():
    words = ["compare", "digits-robust", *QUICK, "--no-checks", "--targets", "second"]
    output = call(*words, "--losses", "tmifpe", "--seeds", "0,1,2").stdout
    assert "differences" not in output, "one loss has nothing to differ from"
    assert "The seed alone moves" in output
    assert "From the store" not in output
    lines = call(*words, "--losses", "ce,tmifpe", "--seeds", "0,1,2").stdout.splitlines()
    assert max(len(line) for line in lines) <= 80
    output = " ".join(" ".join(lines).split())
    assert "linf 0.15, 24 examples, 5 steps, targets second" in output
    assert "From the store: tmifpe." in output
    assert "all seeds" in output
    assert "the difference between the two means is" in output


def test_runs_tell_restarts_and_indices_apart():
    words = ["evaluate", "digits-robust", "--eps", "0.3", "--limit", "60", "--no-checks", "--json"]
    first = json.loads(call(*words, "--attack", "fgsm").stdout)["key"]
    second = json.loads(call(*words, "--attack", "paper", "--steps", "20", "--restarts", "2").stdout)["key"]
    assert "20 x2" in " ".join(call("runs", "list").stdout.split())
    told = json.loads(call("runs", "compare", first, second, "--json").stdout)
    assert len(told["indices_first"]) == told["only_first"]
    assert len(told["indices_second"]) == told["only_second"] > 0
    assert sorted(told["indices_first"] + told["indices_second"]) == sorted(told["indices"])
    output = " ".join(call("runs", "compare", first, second).stdout.split())
    assert "only by the second, at index " + ", ".join(map(str, told["indices_second"][:20])) in output
    assert ("more (--json has all)" in output) == (max(told["only_first"], told["only_second"]) > 20)


def test_losses_take_options():
    for loss in ("tmifpe(t_rule=one-step)", "mifpe(T=10)", "tmifpe-naive", "tmifpe(lam=87.3)"):
        assert json.loads(call("evaluate", "digits-robust", *QUICK, "--loss", loss, "--json").stdout)["loss"] == loss


@pytest.mark.parametrize("precision", ["fp64", "bf16", "fp16"])
def test_precisions(precision):
    found = json.loads(call("evaluate", "digits-robust", *QUICK, "--precision", precision, "--json").stdout)
    assert found["precision"] == precision


def test_compare():
    output = call("compare", "digits-robust", *QUICK, "--losses", "ce,tmifpe", "--seeds", "0,1").stdout
    assert "tmifpe" in output
    assert "McNemar" in output
    found = json.loads(call("compare", "digits-robust", *QUICK, "--losses", "ce,mifpe(T=2)", "--json").stdout)
    assert set(found["losses"]) == {"ce", "mifpe(T=2)"}


@pytest.mark.parametrize("kind", ["losses", "norms", "attacks", "models", "data"])
def test_list(kind):
    assert call("list", kind).stdout.strip()


@pytest.mark.parametrize("words", [["--help"], ["--version"], ["evaluate", "--help"], ["compare", "--help"]])
def test_help(words):
    assert call(*words).stdout


def write_npz(path, n: int = 6, shape=(1, 8, 8)) -> str:
    images = np.random.default_rng(0).integers(0, 255, (n, *shape), dtype=np.uint8)
    np.savez(path, images=images, labels=np.arange(n) % 10)
    return f"npz:{path}"


FACTORY = """
import torch
def small():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 10))
def broken():
    raise RuntimeError("out of cheese")
def nan():
    return lambda x: x.flatten(1)[:, :10] * float("nan")
def flat():
    return lambda x: x.flatten(1).sum(1)
"""


def test_a_users_own_model_and_data(tmp_path):
    data = write_npz(tmp_path / "d.npz")
    factory = tmp_path / "mine.py"
    factory.write_text(FACTORY)
    weights = tmp_path / "w.safetensors"
    save_file({"1.weight": torch.zeros(10, 64), "1.bias": torch.eye(10)[3]}, weights)
    found = json.loads(
        call("evaluate", f"{factory}:small", "--weights", str(weights), "--data", data, "--steps", "3", "--json").stdout
    )
    assert found["clean_accuracy"] == pytest.approx(1 / 6)
    call("evaluate", f"{factory}:small", "--data", data, "--steps", "2", "--mean", "0.5", "--std", "0.25")


def test_bad_input_is_one_sentence_and_exit_two(tmp_path):
    data = write_npz(tmp_path / "d.npz")
    factory = tmp_path / "mine.py"
    factory.write_text(FACTORY)
    small = ["evaluate", f"{factory}:small", "--data", data, "--steps", "2"]
    assert "did you mean 'tmifpe'" in refused("evaluate", "digits-robust", "--loss", "tmipfe")
    assert "did you mean 'linf'" in refused("evaluate", "digits-robust", "--norm", "lnif")
    assert "did you mean 'digits-robust'" in refused("evaluate", "digits-robus")
    assert "did you mean" in refused("evaluate", "digits-robust", "--data", "mnis:x")
    assert "kind of thing" in refused("list", "loses")
    assert refused("evaluate", "digits-robust", "--data", "npz:nowhere.npz")
    assert refused("evaluate", "digits-robust", "--weights", "nowhere.pt")
    assert refused("evaluate", "nowhere.py:f")
    assert refused("evaluate", f"{factory}:large", "--data", data)
    assert "cheese" in refused("evaluate", f"{factory}:broken", "--data", data)
    assert "NaN" in refused("evaluate", f"{factory}:nan", "--data", data)
    assert "only 2 classes" in refused("evaluate", f"{factory}:flat", "--data", data)
    for eps in ("-1", "nan", "inf", "eight", "1/0"):
        assert "eps" in refused(*small, "--eps", eps)
    assert refused(*small, "--batch-size", "0")
    assert refused(*small, "--batch-size", "many")
    assert refused(*small, "--device", "tpu9")
    assert refused(*small, "--mean", "0.5")
    assert refused(*small, "--mean", "0.5", "--std", "0")
    assert refused(*small, "--mean", "0.5,0.5", "--std", "1,1")
    assert refused(*small, "--mean", "a", "--std", "1")
    assert refused(*small, "--targets", "nothing")
    assert refused(*small, "--targets", "77")
    assert refused(*small, "--indices", "nowhere.txt")
    assert refused(*small, "--mode", "quick")
    assert refused(*small, "--schedule", "cos")
    assert refused(*small, "--momentum", "2")
    assert refused(*small, "--precision", "fp8")
    assert refused(*small, "--save-adv", str(tmp_path / "no" / "such" / "x.safetensors"))
    assert refused("compare", "digits-robust", "--losses", "ce,ce")
    assert refused("compare", "digits-robust", "--losses", "")
    assert refused("compare", "digits-robust", "--seeds", "a")
    call("evaluate", "digits-robust", "--steps", "0", code=2)
    call("evaluate", "digits-robust", "--limit", "none", code=2)
    call("evaluate", code=2)
    call("evalute", "digits-robust", code=2)


def test_images_that_do_not_fit_the_model_fail_before_any_compute(tmp_path):
    data = write_npz(tmp_path / "d.npz", shape=(3, 8, 8))
    assert "3x8x8" in refused("evaluate", "digits-robust", "--data", data)
    data = write_npz(tmp_path / "e.npz", shape=(1, 9, 8))
    assert "1x9x8" in refused("evaluate", "digits-robust", "--data", data)


def test_a_pickle_that_is_not_weights_only_is_refused_and_does_not_run(tmp_path):
    class Payload:
        def __reduce__(self):
            return (open, (str(tmp_path / "ran"), "w"))

    torch.save(Payload(), tmp_path / "evil.pt")
    refused("evaluate", "mnist-fast", "--weights", str(tmp_path / "evil.pt"))
    assert not (tmp_path / "ran").exists()


def test_weights_that_do_not_fit(tmp_path):
    save_file({"x": torch.zeros(2)}, tmp_path / "w.safetensors")
    assert refused("evaluate", "mnist-fast", "--weights", str(tmp_path / "w.safetensors"))


def test_demo(tmp_path, monkeypatch):
    import tmifpe.cli.demo as module

    monkeypatch.setattr(module, "EXAMPLES", 40)
    monkeypatch.setattr(module, "STEPS", 5)
    monkeypatch.setattr(module, "FEW", 3)
    output = call("demo", "--out", str(tmp_path / "a" / "b.png")).stdout
    assert "What it shows" in output
    assert (tmp_path / "a" / "b.png").stat().st_size > 10_000
    assert "Report:" in output
    assert (tmp_path / "a" / "report.html").read_text(encoding="utf-8").count('<details class="run"') == 12


@pytest.mark.checked
@pytest.mark.usefixtures("not_led_in")
def test_a_model_that_prints_does_not_spoil_the_json(tmp_path):
    (tmp_path / "loud.py").write_text(
        "import tmifpe\n"
        "from torch import nn\n"
        "class Loud(nn.Module):\n"
        "    def __init__(self):\n"
        "        super().__init__(); print('made'); self.net = tmifpe.load_model('digits-robust').module\n"
        "    def forward(self, x):\n"
        "        print('asked'); return self.net(x)\n"
    )
    for verb in ("evaluate", "compare", "audit"):
        words = [verb, f"{tmp_path / 'loud.py'}:Loud", "--data", "digits", "--limit", "8", "--json"]
        words += [] if verb == "audit" else ["--eps", "0.1", "--steps", "2", "--no-store"]
        words += ["--losses", "ce,tmifpe"] if verb == "compare" else []
        result = CliRunner().invoke(app, words)
        assert result.exit_code == 0, result.output
        json.loads(result.stdout)


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        (["autoattack", "--schedule", "linear"], "--schedule"),
        (["autoattack", "--steps", "5"], "--steps"),
        (["fgsm", "--steps", "5"], "--steps"),
    ],
)
def test_options_that_an_attack_would_not_hear_are_refused(words, wanted):
    told = CliRunner().invoke(app, ["evaluate", "digits-robust", "--limit", "4", "--no-store", "--attack", *words])
    assert told.exit_code == 2
    assert wanted in told.output


def test_several_seeds_are_for_compare():
    told = CliRunner().invoke(app, ["evaluate", "digits-robust", "--seeds", "0,1,2"])
    assert told.exit_code == 2
    assert "tmifpe compare MODEL --losses full --seeds 0,1,2" in " ".join(told.stderr.split())


FAILING = """
import torch
class Failing(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(64, 10)
        torch.nn.init.zeros_(self.layer.weight)  # always class 0, so that some images are right and are attacked
        torch.nn.init.zeros_(self.layer.bias)
    def forward(self, x):
        if {when}:
            {what}
        return self.layer(x.flatten(1))
"""


@pytest.mark.parametrize(
    ("when", "what"),
    [
        ("x.requires_grad", "raise RuntimeError('no gradients')"),
        ("len(x) > 2", "raise KeyError('small batches only')"),
        ("len(x) > 2", "raise SystemExit('bye')"),
        ("x.requires_grad", "x = x.mul_(2)"),
    ],
)
def test_a_model_that_fails_on_the_way_is_one_sentence(tmp_path, when, what):
    (tmp_path / "m.py").write_text(FAILING.format(when=when, what=what))
    for verb in (["evaluate"], ["compare", "--losses", "ce"]):
        told = CliRunner().invoke(
            app, [*verb, f"{tmp_path / 'm.py'}:Failing", "--limit", "64", "--steps", "2", "--no-store"]
        )
        assert told.exit_code == 2, told.output
        assert "the model failed on" in told.output
        assert "Traceback" not in told.output


def test_compare_prints_markdown_and_latex():
    words = ["compare", "digits-robust", *QUICK, "--losses", "cw,tmifpe", "--no-checks"]
    text, tex = call(*words, "--markdown").stdout, call(*words, "--latex").stdout
    assert text.startswith("| column | robust % | 95 % interval | seconds |\n|---|---:|---:|---:|\n| cw | ")
    assert "McNemar" in text
    assert r"\begin{tabular}{lrrr}" in tex
    assert "choose one of --json, --markdown and --latex" in refused(*words, "--latex", "--json")
    assert "to CE" not in call(*words).stdout, "there is no CE to compare with"
    with_ce = [*words[:-3], "--losses", "ce,cw", "--no-checks"]
    assert "to CE" in call(*with_ce).stdout
    assert "| column | robust % | 95 % interval | to CE | seconds |" in call(*with_ce, "--markdown").stdout


def test_what_was_chosen_is_said_where_it_is_asked_for():
    words = (
        "evaluate",
        "digits-robust",
        "--eps",
        "0.1",
        "--limit",
        "8",
        "--attack",
        "paper",
        "--no-store",
        "--no-checks",
    )
    assert "tuning" not in call(*words).stderr
    assert "tuning: off" in call(*words, "-v", "--tune", "off").stderr
    assert "tuning: as it is" in call(*words, "-v").stderr
