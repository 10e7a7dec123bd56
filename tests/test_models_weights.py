"""Weights: what is read, what is unwrapped, what does not fit, and that nothing in a file ever runs."""

from __future__ import annotations

import contextlib
import os
import pickle
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import save, save_file
from torch import nn

from tests.cases import cases
from tests.model_files import images, save_script, tiny
from tmifpe.core.errors import InputError
from tmifpe.models import load_model, read_weights
from tmifpe.models.mnist import fast_network
from tmifpe.models.weights import load_weights

STATE = fast_network().state_dict()


class Payload:
    """Unpickled by an ordinary unpickler, makes a folder."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.mark),)


WRAPPED = {
    "plain": STATE,
    "state_dict": {"state_dict": STATE, "epoch": 3},
    "model_state_dict": {"model_state_dict": STATE, "optimizer": {"lr": 0.1}},
    "model": {"model": STATE},
    "net": {"net": STATE},
    "DataParallel": {f"module.{key}": value for key, value in STATE.items()},
    "compiled": {f"_orig_mod.{key}": value for key, value in STATE.items()},
    "both": {"state_dict": {f"module.{key}": value for key, value in STATE.items()}},
    "half": {key: value.half() for key, value in STATE.items()},
}


@pytest.mark.parametrize("kind", WRAPPED)
@pytest.mark.parametrize("legacy", [False, True])
def test_common_wrappers(kind: str, legacy: bool, tmp_path: Path) -> None:
    path = tmp_path / "w.pth"
    torch.save(WRAPPED[kind], path, _use_new_zipfile_serialization=not legacy)
    classifier = load_model("mnist-fast", weights=path)
    network = fast_network()
    network.load_state_dict({key: value.float() for key, value in WRAPPED["half"].items()} if kind == "half" else STATE)
    x = images(2, (1, 28, 28))
    torch.testing.assert_close(classifier.module(x), network(x).detach(), rtol=0, atol=0)


@pytest.mark.parametrize("name", ["w.safetensors", "w.pt"])
def test_safetensors_by_content_not_by_name(name: str, tmp_path: Path) -> None:
    save_file(STATE, tmp_path / name)
    assert load_model("mnist-fast", weights=str(tmp_path / name)).classes == 10


def test_identity_follows_the_weights(tmp_path: Path) -> None:
    torch.save(STATE, tmp_path / "a.pt")
    save_file(STATE, tmp_path / "a.safetensors")
    changed = {key: value.clone() for key, value in STATE.items()}
    changed["7.bias"][3] += 1e-6
    torch.save(changed, tmp_path / "b.pt")
    identities = [load_model("mnist-fast", weights=tmp_path / n).identity for n in ("a.pt", "a.safetensors", "b.pt")]
    assert identities[0] == identities[1]
    assert identities[0] != identities[2]


def without(key: str) -> dict[str, torch.Tensor]:
    return {name: value for name, value in STATE.items() if name != key}


@pytest.mark.parametrize(
    ("state", "sentence"),
    [
        (without("7.bias"), "missing 7.bias"),
        ({**STATE, "9.weight": torch.zeros(1)}, "unexpected 9.weight"),
        ({**STATE, "7.bias": torch.zeros(11)}, r"7.bias is \(11,\) but \(10,\) is needed"),
        ({f"x{n}": torch.zeros(1) for n in range(9)}, "and 6 more"),
        ({}, "no state dict"),
        ({"epoch": 3}, "no state dict"),
        ([1, 2], "no state dict .* list"),
        (torch.zeros(3), "no state dict"),
    ],
)
def test_weights_that_do_not_fit(state: Any, sentence: str, tmp_path: Path) -> None:
    torch.save(state, tmp_path / "w.pt")
    with pytest.raises(InputError, match=sentence):
        load_model("mnist-fast", weights=tmp_path / "w.pt")


def test_old_checkpoints_without_the_batchnorm_counter(tmp_path: Path) -> None:
    state = {key: value for key, value in tiny(1).state_dict().items() if "num_batches_tracked" not in key}
    torch.save(state, tmp_path / "w.pt")
    network = tiny(0)
    load_weights(network, tmp_path / "w.pt", "tiny")
    assert torch.equal(network[0].weight, state["0.weight"])


@pytest.mark.parametrize("legacy", [False, True])
def test_pickled_payload_does_not_run(legacy: bool, tmp_path: Path) -> None:
    mark = tmp_path / "the-payload-ran"
    torch.save({**STATE, "x": Payload(mark)}, tmp_path / "w.pt", _use_new_zipfile_serialization=not legacy)
    with pytest.raises(InputError, match="not unpickled"):
        load_model("mnist-fast", weights=tmp_path / "w.pt")
    assert not mark.exists()
    torch.load(tmp_path / "w.pt", weights_only=False)
    assert mark.exists(), "the payload of this test is not a real one"


def test_bare_pickle_does_not_run(tmp_path: Path) -> None:
    mark = tmp_path / "the-payload-ran"
    (tmp_path / "w.pt").write_bytes(pickle.dumps(Payload(mark)))
    with pytest.raises(InputError):
        load_model("mnist-fast", weights=tmp_path / "w.pt")
    with pytest.raises(InputError):
        load_model(f"{tmp_path}/w.pt")
    assert not mark.exists()


def test_whole_pickled_model_is_refused(tmp_path: Path) -> None:
    torch.save(nn.Linear(2, 2), tmp_path / "model.pt")
    with pytest.raises(InputError, match="not unpickled"):
        read_weights(tmp_path / "model.pt")
    with pytest.raises(InputError, match="`weights="):
        load_model(str(tmp_path / "model.pt"))


@pytest.mark.parametrize(
    "content", [b"", b"hello", b"PK\x03\x04", b"\x80\x02}", b"\x10" + b"\0" * 7 + b"{", b"\xff" * 64]
)
def test_not_weights_at_all(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "w.pt").write_bytes(content)
    with pytest.raises(InputError):
        read_weights(tmp_path / "w.pt")


def test_missing_file_folder_and_odd_names(tmp_path: Path) -> None:
    for path in (tmp_path / "absent.pt", tmp_path, "\0", "x" * 5000):
        with pytest.raises(InputError, match="no such file"):
            load_model("mnist-fast", weights=path)


def test_a_program_is_not_weights(tmp_path: Path) -> None:
    path = save_script(tmp_path / "program.pt", tiny())
    with pytest.raises(InputError, match="TorchScript"):
        load_model("mnist-fast", weights=path)
    with pytest.raises(InputError, match="carries its own weights"):
        load_model(str(path), weights=path)


def test_bundled_weights_missing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from tmifpe.models import bundled

    monkeypatch.setattr(bundled.resources, "files", lambda _: tmp_path)
    with pytest.raises(InputError, match=r"scripts/train_digits\.py"):
        load_model("digits-robust")


_ZIP = None


def good_bytes() -> bytes:
    global _ZIP
    if _ZIP is None:
        import io

        buffer = io.BytesIO()
        torch.save({"a": torch.arange(6.0)}, buffer)
        _ZIP = buffer.getvalue()
    return _ZIP


@settings(max_examples=cases(120), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(place=st.integers(0, 2000), value=st.integers(0, 255), cut=st.booleans(), safe=st.booleans())
def test_damaged_weights_never_give_a_traceback(tmp_path: Path, place: int, value: int, cut: bool, safe: bool) -> None:
    content = bytearray(save({"a": torch.arange(6.0)}) if safe else good_bytes())
    place %= len(content)
    if cut:
        content = content[:place]
    else:
        content[place] = value
    path = tmp_path / "fuzz"
    path.write_bytes(bytes(content))
    with contextlib.suppress(InputError):
        read_weights(path)


def test_a_zip_that_is_something_else(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "w.pt", "w") as archive:
        archive.writestr("readme.txt", "hello")
    with pytest.raises(InputError):
        read_weights(tmp_path / "w.pt")


def test_a_file_of_another_kind_is_said_to_be_one(tmp_path: Path) -> None:
    """What torch raises for it may be a bare number."""
    for text in ("hello world", "epoch 10, loss 0.2\n", ""):
        (tmp_path / "notes.pt").write_text(text)
        with pytest.raises(InputError, match="neither a safetensors file"):
            read_weights(tmp_path / "notes.pt")
