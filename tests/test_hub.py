"""Runs for the Hugging Face Hub: what is written reads as huggingface_hub reads it, whatever the names are."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from tests.stores import ask
from tmifpe import InputError
from tmifpe.cli import app
from tmifpe.report.hub import hub_entry, yaml_text
from tmifpe.run.result import Flag, Result

yaml = pytest.importorskip("yaml", reason="the Hub's formats are read back by the extra hf")
hub = pytest.importorskip("huggingface_hub", reason="the Hub's formats are read back by the extra hf")

HOSTILE = '/data/me/a: "b"\n- !!python/object/apply:os.system [x] # \\ \u2028\u0085\x00\x7f {é} 😀 *&% '


@pytest.fixture(scope="module")
def result() -> Result:
    return ask()


def test_a_stored_run_becomes_metadata(
    stored: Callable[[Path], Result], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMIFPE_STORE", str(tmp_path / "runs"))
    result = stored(tmp_path / "runs")
    words = ["runs", "export", "latest", "--eval-results", str(tmp_path / "card"), "--dataset", "me/digits"]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.stderr
    assert done.stdout == "", "no table besides"
    card = hub.ModelCard(f"---\n{(tmp_path / 'card' / 'model-index.yaml').read_text()}---\n# A model\n")
    name, (clean, robust) = hub.repocard_data.model_index_to_eval_results(
        yaml.safe_load((tmp_path / "card" / "model-index.yaml").read_text())["model-index"]
    )
    assert card.data.model_name == name == "digits-robust"
    assert card.data.eval_results == [clean, robust]
    assert (clean.task_type, clean.dataset_type) == ("image-classification", "me/digits")
    assert (clean.metric_type, clean.metric_value) == ("accuracy", result.clean_accuracy)
    assert (robust.metric_type, robust.metric_value) == ("robust_accuracy", result.robust_accuracy)
    assert robust.metric_args["eps"] == 0.15
    assert robust.metric_args["interval"] == list(result.interval)
    (file,) = (tmp_path / "card" / ".eval_results").iterdir()
    (entry,) = hub.parse_eval_result_entries(yaml.safe_load(file.read_text()))
    assert (entry.dataset_id, entry.task_id) == ("me/digits", "robust-linf-0.15")
    assert entry.value == result.robust_accuracy
    assert "48 of 500 examples" in entry.notes
    assert "T" in entry.date


@pytest.mark.parametrize(
    ("data", "dataset", "split"),
    [
        ("cifar10:/data/c", "uoft-cs/cifar10", None),
        ("hf:ylecun/mnist:test", "ylecun/mnist", "test"),
        ("hf:beans", "beans", None),
    ],
)
def test_known_data_has_its_name_on_the_hub(result: Result, data: str, dataset: str, split: str | None) -> None:
    entry = hub_entry(replace(result, spec=replace(result.spec, data=data)))
    _, (first, _) = hub.repocard_data.model_index_to_eval_results(entry.model_index)
    assert (first.dataset_type, first.dataset_split) == (dataset, split)
    assert "/data/c" not in yaml_text(entry.model_index) + yaml_text(entry.eval_results)


@pytest.mark.parametrize("data", ["digits", "npz:x.npz", "hf:./folder", "hf:/data/mnist"])
def test_other_data_must_be_named(result: Result, data: str) -> None:
    with pytest.raises(InputError, match="name the dataset as OWNER/NAME"):
        hub_entry(replace(result, spec=replace(result.spec, data=data)))


@pytest.mark.parametrize("dataset", ["a b", "a/b/c", "../x", "x\n", ""])
def test_what_is_no_id_is_refused(result: Result, dataset: str) -> None:
    with pytest.raises(InputError, match="is none; name the dataset"):
        hub_entry(result, dataset)


def test_what_is_no_robust_accuracy_is_refused(result: Result) -> None:
    for other in (replace(result, spec=replace(result.spec, targets="second")), replace(result, part="1/2")):
        with pytest.raises(InputError, match="whole, untargeted runs"):
            hub_entry(other, "me/digits")
    with pytest.raises(InputError, match="incomplete"):
        hub_entry(replace(result, missing=2), "me/digits")


def test_names_from_files_stay_names(result: Result) -> None:
    """And flags go along: a number that is to be doubted says so."""
    spec = replace(result.spec, model=HOSTILE, attacks=("pgd(loss=/data/me/my.py:Loss)",))
    flagged = replace(result, spec=spec, key="../../../x", flags=(Flag("masked", "seen", "advice"),))
    entry = hub_entry(flagged, "me/digits", task=HOSTILE)
    index = yaml.safe_load(yaml_text(entry.model_index))
    assert index[0]["name"] == HOSTILE.rpartition("\\")[2]
    assert index[0]["results"][0]["metrics"][1]["args"]["attack"] == "pgd(loss=my.py:Loss)"
    (told,) = yaml.safe_load(yaml_text(entry.eval_results))
    assert told["dataset"]["task_id"] == HOSTILE
    assert "flags: masked" in told["notes"]
    assert Path(entry.name).name == entry.name
    assert not entry.name.startswith(".")


PLAIN = (
    st.text(st.characters(exclude_categories=["Cs"])) | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
)
KEYS = st.from_regex(r"[a-z][a-z_]{2,8}z", fullmatch=True)


# Nothing depends on the clock: a busy machine draws slowly.
@settings(max_examples=60, deadline=None, database=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.recursive(PLAIN, lambda inner: st.lists(inner) | st.dictionaries(KEYS, inner), max_leaves=12))
def test_yaml_reads_as_it_was(value: Any) -> None:
    assert yaml.safe_load(yaml_text([value])) == [value]


def test_an_odd_byte_in_a_name_is_replaced() -> None:
    assert yaml.safe_load(yaml_text({"name": "a\udc80b"})) == {"name": "a\N{REPLACEMENT CHARACTER}b"}


def test_options_of_the_hub_need_the_hub() -> None:
    done = CliRunner().invoke(app, ["runs", "export", "latest", "--dataset", "me/digits"])
    assert done.exit_code == 2
