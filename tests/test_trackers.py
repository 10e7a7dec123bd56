"""Trackers: each real package, offline, holds the numbers of the result; a missing one is a sentence."""

from __future__ import annotations

import io
import json
import struct
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from tests.peers import peer
from tests.stores import CLI, ask
from tests.trouble import wait_for
from tmifpe import InputError, MissingExtra
from tmifpe.cli import app
from tmifpe.compat.trackers import TRACKERS, track
from tmifpe.compat.trackers.numbers import numbers_of, settings_of
from tmifpe.run.result import Result

HOSTILE = "../../up`*<b>\x1b[31m\n:\udc80"


@pytest.fixture(scope="module")
def result() -> Result:
    return ask()


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Nothing leaves this folder, and nothing leaves this machine."""
    monkeypatch.chdir(tmp_path)
    for name in ("MLFLOW_TRACKING_URI", "MLFLOW_EXPERIMENT_NAME", "MLFLOW_RUN_ID", "WANDB_PROJECT", "WANDB_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TMIFPE_STORE", str(tmp_path / "store"))
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.setenv("WANDB_MODE", "offline")
    return tmp_path


def from_tensorboard(folder: Path) -> tuple[dict[str, float], str]:
    """The scalars and the text of the one run in the folder."""
    events = peer("tensorboard.backend.event_processing.event_accumulator")
    (run,) = folder.iterdir()
    read = events.EventAccumulator(str(run))
    read.Reload()
    numbers = {name: read.Scalars(name)[0].value for name in read.Tags()["scalars"]}
    (text,) = read.Tags()["tensors"]
    return numbers, read.Tensors(text)[0].tensor_proto.string_val[0].decode()


def test_what_is_told_is_the_result(result: Result) -> None:
    numbers = numbers_of(result)
    low, high = result.interval
    assert numbers["robust_accuracy"] == result.robust_accuracy
    assert (numbers["robust_accuracy_lower"], numbers["robust_accuracy_upper"]) == (low, high)
    assert numbers["examples"] == 48
    assert settings_of(result)["model"] == "digits-robust"
    several = replace(result, spec=replace(result.spec, radii=(0.05, result.spec.threat.eps), verify="fp64"))
    assert numbers_of(several).keys() - numbers.keys() == {
        "robust_accuracy_at_0.05",
        "robust_accuracy_at_0.15",
        "second_robust_accuracy",
    }


def test_part_of_a_run_is_not_told(result: Result) -> None:
    """A part would look like the whole in a tracker."""
    with pytest.raises(InputError, match="part 1/4 of a run"):
        numbers_of(replace(result, part="1/4"))
    with pytest.raises(InputError, match="incomplete"):
        numbers_of(replace(result, missing=3))


def test_tensorboard_holds_the_numbers(result: Result, here: Path) -> None:
    peer("tensorboard")
    track(result, "tensorboard:tb")
    numbers, text = from_tensorboard(here / "tb")
    # A scalar of TensorBoard is a float32, to which ours are rounded once.
    assert numbers == {f"tmifpe/{name}": float(np.float32(value)) for name, value in numbers_of(result).items()}
    assert "- model: `digits-robust`" in text


def test_tensorboard_takes_a_writer(result: Result, here: Path) -> None:
    peer("tensorboard")
    from tmifpe.compat.trackers.tensorboard import log_result

    writer = peer("torch.utils.tensorboard").SummaryWriter(str(here / "tb" / "mine"))
    log_result(result, writer, step=7)
    writer.add_scalar("more", 1.0)  # it is still open
    writer.close()
    numbers, _ = from_tensorboard(here / "tb")
    assert {"more", "tmifpe/robust_accuracy"} <= numbers.keys()


def test_a_name_from_a_file_makes_no_path(result: Result, here: Path) -> None:
    peer("tensorboard")
    track(replace(result, spec=replace(result.spec, model=HOSTILE)), "tensorboard:a/tb")
    assert [path.name for path in here.iterdir()] == ["a"]
    _, text = from_tensorboard(here / "a" / "tb")
    assert text.splitlines()[0] == "- model: `../../up'*<b>\x1b[31m :?`"


@pytest.mark.filterwarnings("ignore")  # of the package itself
def test_mlflow_holds_the_numbers(result: Result, here: Path) -> None:
    mlflow = peer("mlflow")
    track(result, f"mlflow:{here / 'ml'}")
    client = mlflow.MlflowClient(tracking_uri=str(here / "ml"))
    (run,) = client.search_runs([client.get_experiment_by_name("tmifpe").experiment_id])
    assert run.data.metrics == numbers_of(result)
    assert run.data.tags["tmifpe.model"] == "digits-robust"
    assert run.info.status == "FINISHED"
    assert not mlflow.active_run()
    (kept,) = here.glob("ml/*/*/metrics/robust_accuracy")
    assert float(kept.read_text().split()[1]) == result.robust_accuracy


@pytest.mark.filterwarnings("ignore")
def test_mlflow_logs_to_the_active_run(result: Result, here: Path) -> None:
    mlflow = peer("mlflow")
    mlflow.set_tracking_uri(str(here / "ml"))
    try:
        with mlflow.start_run() as mine:
            track(result, "mlflow", step=3)
            assert mlflow.active_run().info.run_id == mine.info.run_id
        (metric,) = mlflow.MlflowClient().get_metric_history(mine.info.run_id, "robust_accuracy")
        assert (metric.value, metric.step) == (result.robust_accuracy, 3)
    finally:
        mlflow.set_tracking_uri(None)


@pytest.mark.filterwarnings("ignore")
def test_what_mlflow_says_is_a_sentence(result: Result) -> None:
    peer("mlflow")
    with pytest.raises(InputError, match="MLflow did not take the result: "):
        track(result, "mlflow:nonsense://x")


def records(path: Path) -> Iterator[Any]:
    """The records of a .wandb file: seven bytes, then a log of LevelDB with protocol buffers in it."""
    schema = peer("wandb.proto.wandb_internal_pb2")
    file, whole = io.BytesIO(path.read_bytes()), b""
    if len(head := file.read(7)) < 7:  # not yet written
        return
    assert head[:4] == b":W&B"
    while len(head := file.read(7)) == 7:
        _, length, kind = struct.unpack("<IHB", head)
        if len(piece := file.read(length)) < length:  # still being written
            return
        whole += piece
        if kind in (1, 4):  # complete, or the last of several pieces
            yield schema.Record.FromString(whole)
            whole = b""
        if (left := -file.tell() % 32768) < 7:  # no header fits into the rest of a block
            file.read(left)


def from_wandb(folder: Path) -> tuple[dict[str, float], dict[str, str]]:
    """The history and the config of the one run in the folder."""
    paths = list(folder.glob("wandb/offline-run-*/run-*.wandb"))
    if not paths:  # not yet written
        return {}, {}
    (path,) = paths
    history: dict[str, float] = {}
    config: dict[str, str] = {}
    for record in records(path):
        for item in record.history.item:
            history["/".join(item.nested_key) or item.key] = json.loads(item.value_json)
        for update in (record.run.config.update, record.config.update):
            config |= {"/".join(item.nested_key) or item.key: json.loads(item.value_json) for item in update}
    return history, config


@pytest.mark.filterwarnings("ignore")
def test_wandb_holds_the_numbers(result: Result, here: Path) -> None:
    """In a run of its own; and in the caller's, which stays open. One test: the package remembers its first folder."""
    wandb = peer("wandb")
    track(result, "wandb:robustness")
    assert wandb.run is None
    with wandb.init(dir=here / "mine", settings=wandb.Settings(silent=True)):
        track(result, "wandb")
        assert wandb.run is not None
    told = numbers_of(result)
    for folder in (here, here / "mine"):
        # Written by a process of wandb's own, which on a busy machine is not done when `finish` is.
        wait_for("the numbers are written", lambda folder=folder: "tmifpe/clean_accuracy" in from_wandb(folder)[0])
        history, config = from_wandb(folder)
        assert {name: history[f"tmifpe/{name}"] for name in told} == told
        assert config["tmifpe/model"] == "digits-robust"


def called(*words: str, code: int = 0) -> Any:
    done = CliRunner().invoke(app, list(words))
    assert done.exit_code == code, (done.output, done.stderr, done.exception)
    return done


@pytest.mark.parametrize("name", TRACKERS)
def test_a_missing_package_is_a_sentence(
    name: str, result: Result, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before anything is computed."""
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(MissingExtra, match=rf"pip install 'tmifpe\[{name}\]'$"):
        track(result, name)
    said = called(*CLI, "--track", name, code=2).stderr
    assert said.endswith(f"need an optional dependency: pip install 'tmifpe[{name}]'\n")
    assert said.count("\n") == 1
    assert not (here / "store").exists()


def test_evaluate_tells_whoever_is_named(result: Result, here: Path) -> None:
    peer("tensorboard")
    done = called(*CLI, "--json", "--track", "tensorboard:one", "--track", "tensorboard:two")
    assert json.loads(done.stdout)["robust_accuracy"] == result.robust_accuracy
    assert "logged 1 run to tensorboard:two" in done.stderr
    for folder in ("one", "two"):
        numbers, _ = from_tensorboard(here / folder)
        assert numbers["tmifpe/robust_accuracy"] == np.float32(result.robust_accuracy)


COMPARE = ["compare", *(word for word in CLI[1:] if word not in ("--attack", "paper"))]
PLAN = '[[run]]\nname = "one"\nmodel = "digits-robust"\neps = 0.15\nlimit = 4\nattack = "quick"\nchecks = false\n'


@pytest.mark.parametrize(
    ("words", "runs"), [([*COMPARE, "--losses", "ce,cw"], 2), (["run", "plan.toml"], 1)], ids=["compare", "run"]
)
def test_every_result_is_a_run_in_the_tracker(words: list[str], runs: int, here: Path) -> None:
    peer("tensorboard")
    (here / "plan.toml").write_text(PLAN)
    called(*words, "--track", "tensorboard")
    assert len(list((here / "runs").iterdir())) == runs


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--track", "tensorbord"], "unknown tracker 'tensorbord'; did you mean 'tensorboard'?"),
        (["--track", "tensorboard", "--shard", "1/2"], "--track is for whole runs"),
    ],
)
def test_what_cannot_be_tracked_is_refused_at_once(words: list[str], said: str, here: Path) -> None:
    assert said in called(*CLI, *words, code=2).stderr
    assert not (here / "store").exists()


def test_a_disk_that_takes_nothing_is_a_sentence(result: Result, here: Path) -> None:
    peer("tensorboard")
    (here / "file").write_text("")
    with pytest.raises(InputError, match="TensorBoard did not take the result: "):
        track(result, "tensorboard:file")
