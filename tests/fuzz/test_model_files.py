"""Files of models, damaged in every way: they load to something that gives logits, or one sentence."""

from __future__ import annotations

import faulthandler
import io
import os
import pickle
import signal
import traceback
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import strategies as st
from safetensors.torch import save
from torch import nn

from tests.fuzz.fuzzing import damage, damage_inside, fuzz, tried
from tests.model_files import images, onnx_bytes, save_pt2, save_script, tiny
from tmifpe.core.errors import InputError
from tmifpe.core.extras import import_extra
from tmifpe.models import load_model
from tmifpe.models.weights import load_weights, read_weights

Spoil = Callable[[bytes], bytes]


class Runs:
    """Unpickled by an ordinary unpickler, makes a folder."""

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, ("ran",)


@cache
def weight_bytes(kind: str) -> bytes:
    state = {"weight": torch.arange(6.0).reshape(2, 3), "bias": torch.zeros(2)}
    if kind == "safetensors":
        return save(state)
    if kind == "pickle":
        return pickle.dumps({"weight": [1.0, 2.0]})
    buffer = io.BytesIO()
    wrapped = {"state_dict": {f"module.{name}": value for name, value in state.items()}}
    content = {"payload": {**state, "x": Runs()}, "wrapped": wrapped, "model": nn.Linear(3, 2)}.get(kind, state)
    torch.save(content, buffer, _use_new_zipfile_serialization=kind != "legacy")
    return buffer.getvalue()


KINDS = st.sampled_from(["safetensors", "safetensors", "zip", "legacy", "wrapped", "pickle", "payload", "model"])


@fuzz(30, 500, kind=KINDS, spoil=damage())
def test_weights(kind: str, spoil: Spoil) -> None:
    Path("w.pt").write_bytes(spoil(weight_bytes(kind)))
    found = tried(lambda: read_weights("w.pt"))
    assert found is None or all(isinstance(value, torch.Tensor) for value in found.values())
    tried(lambda: load_weights(nn.Linear(3, 2), "w.pt", "linear"))
    assert not Path("ran").exists()


ODD = {
    "sparse": lambda x: x.to_sparse(),
    "complex": lambda x: x.to(torch.complex64),
    "quantised": lambda x: torch.quantize_per_tensor(x, 0.1, 0, torch.quint8),
    "bool": lambda x: x.bool(),
    "half": lambda x: x.half(),
    "float8": lambda x: x.to(torch.float8_e4m3fn),
    "expanded": lambda x: x[:1].expand(x.shape),
    "nan": lambda x: x * torch.nan,
    "empty": lambda x: x[:0],
    "list": lambda x: x.tolist(),
    "meta": lambda x: x.to("meta"),
}


@pytest.mark.parametrize("kind", ODD)
@pytest.mark.filterwarnings("ignore")  # of torch, about quantised and complex tensors
def test_weights_of_odd_kinds(kind: str) -> None:
    module = nn.Linear(3, 2)
    torch.save({name: ODD[kind](value) for name, value in module.state_dict().items()}, "w.pt")
    tried(lambda: load_weights(module, "w.pt", "linear"))
    assert module(torch.rand(1, 3)).shape == (1, 2)


def gives_logits(path: str) -> None:
    classifier = load_model(path)
    try:
        logits = classifier.module(images(2))
    except (RuntimeError, ValueError, TypeError, IndexError, AttributeError, NotImplementedError, AssertionError):
        return  # a graph that reads well may still not fit these images; an evaluation tries two images first
    assert isinstance(logits, torch.Tensor)


@fuzz(20, 300, spoil=damage_inside())
def test_weights_in_an_archive(spoil: Spoil) -> None:
    Path("w.pt").write_bytes(spoil(weight_bytes("wrapped")))
    tried(lambda: load_weights(nn.Linear(3, 2), "w.pt", "linear"))


@cache
def graph_bytes() -> bytes:
    return onnx_bytes()


@fuzz(8, 220, spoil=damage())
def test_onnx(spoil: Spoil) -> None:
    import_extra("onnx2torch", "this test", "onnx", uses_torchvision=True)
    Path("m.onnx").write_bytes(spoil(graph_bytes()))
    tried(lambda: gives_logits("m.onnx"))


def in_a_process(action: Callable[[], object]) -> None:
    """In a process of its own: torch's reader and interpreter of programs trust sizes that a damaged file states, and
    may crash on them (docs/security.md: treat such a file as a program). Anything but a crash is as elsewhere."""
    child = os.fork()
    if not child:
        torch.set_num_threads(1)  # a fork has none of its parent's threads, and would wait for them for ever
        faulthandler.disable()
        try:
            action()
            os._exit(0)
        except BaseException:  # whatever it is, the parent must hear of it
            traceback.print_exc()
            os._exit(1)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert code in (0, -signal.SIGSEGV, -signal.SIGBUS, -signal.SIGFPE, -signal.SIGABRT), code


@cache
def script_bytes(folder: Path = Path()) -> bytes:
    return save_script(folder / "good.pt", tiny()).read_bytes()


@fuzz(12, 90, spoil=damage() | damage_inside() | damage_inside())
def test_torchscript(spoil: Spoil) -> None:
    Path("m.pt").write_bytes(spoil(script_bytes()))
    in_a_process(lambda: tried(lambda: gives_logits("m.pt")))


@cache
def program_bytes(folder: Path = Path()) -> bytes:
    return save_pt2(folder / "good.pt2", tiny(), batch=2).read_bytes()


@fuzz(4, 40, spoil=damage() | damage_inside() | damage_inside())
def test_exported_program(spoil: Spoil) -> None:
    Path("m.pt2").write_bytes(spoil(program_bytes()))
    tried(lambda: gives_logits("m.pt2"))


@pytest.mark.parametrize("suffix", ["onnx", "pt", "pt2", "ts", "pth", "safetensors"])
@pytest.mark.parametrize("kind", ["missing", "folder", "loop", "dangling", "fifo", "long", "null"])
def test_what_is_no_file(suffix: str, kind: str) -> None:
    path = Path(f"m.{suffix}")
    if kind == "folder":
        path.mkdir()
    elif kind in ("loop", "dangling"):
        path.symlink_to(path.name if kind == "loop" else "nowhere")
    elif kind == "fifo":
        os.mkfifo(path)
    text = {"long": f"{'x' * 300}.{suffix}", "null": f"a\0b.{suffix}"}.get(kind, str(path))
    with pytest.raises(InputError):
        load_model(text)
    with pytest.raises(InputError):
        load_model("mnist-fast", weights=text)
