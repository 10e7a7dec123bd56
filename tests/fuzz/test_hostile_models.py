"""Files of models made to run code, or to write or read files; what is said to be a payload is shown to be one."""

from __future__ import annotations

import contextlib
import io
import json
import os
import pickle
import shutil
import struct
import warnings
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from tests.model_files import images, onnx_bytes, save_pt2, tiny
from tmifpe.core.errors import InputError
from tmifpe.core.extras import import_extra
from tmifpe.models import load_model

MARK = Path("the-payload-ran")
HIDDEN = "__import__('os')\\x2emkdir('the-payload-ran')"  # without the dots, at which torch.fx splits names
CODE = HIDDEN.replace("\\x2e", ".")


class Payload:
    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(MARK),)


@contextlib.contextmanager
def shown_real() -> Iterator[None]:
    """What is done inside, without our checks, runs the payload; then the mark is taken away."""
    with contextlib.suppress(Exception), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
    assert MARK.exists(), "torch or onnx2torch has become safe here, or the payload of this test is not a real one"
    shutil.rmtree(MARK) if MARK.is_dir() else MARK.unlink()


def refuse(path: str | Path, match: str) -> None:
    with pytest.raises(InputError, match=match):
        load_model(str(path)).module(images(2))
    assert not MARK.exists()


def entries_of(path: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(path) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def pack(path: Path, entries: dict[str, bytes]) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in entries.items():
            archive.writestr(name, content)
    return path


@pytest.fixture
def program() -> dict[str, bytes]:
    return entries_of(save_pt2(Path("m.pt2"), tiny(), batch=2))


def test_graph_under_another_ending(program: dict[str, bytes]) -> None:
    """torch reads whatever lies in models/, whether or not it ends in .json."""
    graph = json.loads(program.pop("m/models/model.json"))
    graph["guards_code"] = [f"{CODE} or True"]
    program["m/models/model.JSON"] = json.dumps(graph).encode()
    path = pack(Path("m.pt2"), program)
    with shown_real():
        torch.export.load(str(path)).module()(images(2))
    refuse(path, "not loaded")


def test_name_of_a_weight_that_is_a_program(program: dict[str, bytes]) -> None:
    """torch.fx writes names into Python source, quoted but not escaped."""
    evil = json.dumps(f'w") if exec("{HIDDEN}") else getattr(self, "w').encode()
    for name in ("m/models/model.json", "m/data/weights/model_weights_config.json"):
        program[name] = program[name].replace(b'"0.weight"', evil)
    path = pack(Path("m.pt2"), program)
    with shown_real():
        torch.export.load(str(path)).module()(images(2))
    refuse(path, "name")


def test_pickled_constant_in_a_folder(program: dict[str, bytes]) -> None:
    weights = json.loads(program["m/data/weights/model_weights_config.json"])["config"]
    meta = {**next(iter(weights.values())), "path_name": "opaque_obj_x/evil", "is_param": False}
    content = pickle.dumps(Payload())
    program["m/data/constants/opaque_obj_x/evil"] = content + bytes(-len(content) % 4)
    program["m/data/constants/model_constants_config.json"] = json.dumps({"config": {"c": meta}}).encode()
    path = pack(Path("m.pt2"), program)
    with shown_real():
        torch.export.load(str(path))
    refuse(path, "not loaded")


@pytest.mark.parametrize("spelling", ["enum", "\\u0065num"])
def test_input_tree_that_imports(program: dict[str, bytes], spelling: str) -> None:
    Path("imported_by_a_tree.py").write_text(CODE)
    graph = json.loads(program["m/models/model.json"])
    for call in graph["graph_module"]["module_call_graph"]:
        if call["signature"]:
            tree = json.loads(call["signature"]["in_spec"])
            tree[1]["context"] = f'{{"__{spelling}__": true, "fqn": "imported_by_a_tree:X", "name": "x"}}'
            call["signature"]["in_spec"] = json.dumps(tree)
    program["m/models/model.json"] = json.dumps(graph).encode()
    refuse(pack(Path("m.pt2"), program), "more than tensors")


def test_operator_that_writes_a_file(program: dict[str, bytes]) -> None:
    program["m/models/model.json"] = program["m/models/model.json"].replace(b"aten.relu.", b"aten.from_file.")
    refuse(pack(Path("m.pt2"), program), "not an operator")


def test_two_readers_of_one_archive(program: dict[str, bytes]) -> None:
    """Python finds the directory of a zip from its end, torch by the offset it states: they can see different files."""
    buffer = io.BytesIO()
    torch.save(
        ((Payload(), torch.zeros(100_000)), {}), buffer
    )  # larger than the good one, so that no offset is negative
    good = pack(Path("good.zip"), program).read_bytes()
    bad = pack(Path("bad.zip"), program | {"m/data/sample_inputs/model.pt": buffer.getvalue()}).read_bytes()
    ends = [content.rfind(b"PK\5\6") for content in (bad, good)]
    sizes = [
        struct.unpack("<L", content[end + 12 : end + 16])[0] for content, end in zip((bad, good), ends, strict=True)
    ]
    directory = bytearray(good[ends[1] - sizes[1] : ends[1]])
    # Python adds to every offset what lies between where the directory is and where it says it is.
    shift = ends[0] - (ends[0] + ends[1] - sizes[1] - (ends[0] - sizes[0]))
    at = 0
    while at < len(directory):
        name, extra, comment = struct.unpack("<3H", directory[at + 28 : at + 34])
        offset = struct.unpack("<L", directory[at + 42 : at + 46])[0]
        directory[at + 42 : at + 46] = struct.pack("<L", offset + shift)
        at += 46 + name + extra + comment
    end = struct.pack("<4s4H2LH", b"PK\5\6", 0, 0, len(program), len(program), sizes[1], ends[0] - sizes[0], 0)
    Path("m.pt2").write_bytes(bad[: ends[0]] + good[: ends[1] - sizes[1]] + directory + end)
    assert entries_of(Path("m.pt2")) == program  # what Python sees is harmless
    with shown_real():
        torch.export.load("m.pt2")
    with contextlib.suppress(InputError):
        load_model("m.pt2")
    assert not MARK.exists()


class Saves(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        torch.save(x, "the-payload-ran")
        return x.flatten(1)


class Loads(nn.Module):
    """A program that runs when it is loaded."""

    def __init__(self) -> None:
        super().__init__()
        self.training = False

    @torch.jit.export
    def __getstate__(self) -> int:
        return 1

    @torch.jit.export
    def __setstate__(self, state: int) -> None:
        torch.save(torch.zeros(1), "the-payload-ran")
        self.training = False

    def forward(self, x: Tensor) -> Tensor:
        return x.flatten(1)


@pytest.mark.parametrize("kind", [Saves, Loads])
def test_torchscript_that_writes_a_file(kind: type[nn.Module]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.jit.save(torch.jit.script(kind()), "m.pt")
    with shown_real():
        torch.jit.load("m.pt")(images(2))
    refuse("m.pt", "'save'")


@pytest.mark.parametrize("name", ["m.pt", "m.pth", "m.ts", "m.pt2", "m.onnx"])
@pytest.mark.parametrize("how", ["torch", "legacy", "bare"])
def test_pickle_under_any_name(name: str, how: str) -> None:
    if how == "bare":
        Path(name).write_bytes(pickle.dumps(Payload()))
    else:
        torch.save({"x": Payload()}, name, _use_new_zipfile_serialization=how == "torch")
    with shown_real():
        pickle.loads(Path(name).read_bytes()) if how == "bare" else torch.load(name, weights_only=False)
    for model, options in ((name, {}), ("mnist-fast", {"weights": name}), ("digits-robust", {"weights": name})):
        with pytest.raises(InputError):
            load_model(model, **options)
    assert not MARK.exists()


@pytest.fixture
def onnx() -> Any:
    import_extra("onnx2torch", "this test", "onnx", uses_torchvision=True)
    return pytest.importorskip("onnx")


def test_onnx_node_whose_name_is_a_program(onnx: Any) -> None:
    """onnx2torch makes the name of a node that of a module, and torch.fx writes it into Python source."""
    model = onnx.load_from_string(onnx_bytes())
    for node in model.graph.node:
        if node.op_type == "Relu":
            node.name = f'n", None) if exec("{HIDDEN}") else getattr(self, "n'
    Path("m.onnx").write_bytes(model.SerializeToString())
    with shown_real():
        import_extra("onnx2torch", "this test", "onnx").convert(model)(images(1))
    loaded = load_model("m.onnx")  # its name is no longer its own, so nothing is wrong with it
    assert loaded.module(images(2)).shape == (2, 5)
    assert not MARK.exists()


def with_external(onnx: Any, location: str, *, in_attribute: bool = False) -> None:
    """The weights of the convolution in another file."""
    model = onnx.load_from_string(onnx_bytes())
    tensor = next(t for t in model.graph.initializer if t.name == "w")
    if in_attribute:
        node = onnx.helper.make_node("Constant", [], ["w"])
        node.attribute.append(onnx.helper.make_attribute("value", tensor))
        model.graph.initializer.remove(tensor)
        model.graph.node.insert(0, node)
        tensor = model.graph.node[0].attribute[0].t
    tensor.ClearField("raw_data")
    tensor.data_location = onnx.TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value=location)
    Path("m.onnx").write_bytes(model.SerializeToString())


@pytest.mark.parametrize("in_attribute", [False, True])
@pytest.mark.parametrize(
    "location", ["../secret", "sub/../../secret", "link", "linked/secret", "", ".", "\0", "x" * 300]
)
def test_onnx_data_outside_its_folder(onnx: Any, location: str, in_attribute: bool) -> None:
    Path("../secret").write_bytes(np.zeros(108, np.float32).tobytes())
    Path("sub").mkdir()
    Path("link").symlink_to("../secret")
    Path("linked").symlink_to("..")
    with_external(onnx, location, in_attribute=in_attribute)
    refuse("m.onnx", "not a file in its own folder|not a readable ONNX")
    with_external(onnx, str(Path("../secret").resolve()), in_attribute=in_attribute)
    refuse("m.onnx", "not a file in its own folder")


def test_onnx_data_in_its_folder_is_read(onnx: Any) -> None:
    tensor = next(t for t in onnx.load_from_string(onnx_bytes()).graph.initializer if t.name == "w")
    Path("weights.bin").write_bytes(tensor.raw_data)
    with_external(onnx, "weights.bin")
    x, truth = images(2), Path("whole.onnx")
    truth.write_bytes(onnx_bytes())
    torch.testing.assert_close(load_model("m.onnx").module(x), load_model(str(truth)).module(x))


@pytest.mark.parametrize("suffix", ["pt", "pt2"])
def test_archive_that_unpacks_to_gigabytes(suffix: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from tmifpe.models import archive

    monkeypatch.setattr(archive, "_TEXT", 1 << 20)  # the same rule at a size a test can write
    with zipfile.ZipFile(f"m.{suffix}", "w", zipfile.ZIP_DEFLATED) as packed:
        packed.writestr("m/code/x.py", bytes(4 << 20))
        packed.writestr("m/constants.pkl", b"")
    with pytest.raises(InputError, match="unpack"):
        load_model(f"m.{suffix}")
    with pytest.raises(InputError, match="unpack"):
        load_model("mnist-fast", weights=f"m.{suffix}")


def test_a_factory_is_the_users_own_code_and_runs() -> None:
    """The one door that is open on purpose, and only when it is named."""
    Path("mine.py").write_text(f"{CODE}\ndef make():\n    return lambda x: x.flatten(1)\n")
    load_model("mine.py:make")
    assert MARK.exists()


def test_a_factory_that_exits_is_told() -> None:
    Path("script.py").write_text("import sys\nsys.exit('usage: train.py')\n")
    with pytest.raises(InputError, match="does not import"):
        load_model("script.py:make")
