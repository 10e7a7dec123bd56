"""Models in files: ONNX at any batch size, TorchScript, torch.export; and the damaged and hostile ones."""

from __future__ import annotations

import contextlib
import io
import json
import os
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import tmifpe
from tests.cases import cases
from tests.model_files import CLASSES, SHAPE, images, onnx_bytes, save_pt2, save_script, tiny
from tmifpe.core.errors import InputError
from tmifpe.data import as_data
from tmifpe.models import check_compatible, load_model
from tmifpe.models.fixed_batch import FixedBatch


def onnx_truth(content: bytes, x: torch.Tensor) -> torch.Tensor:
    """ONNX's own reference evaluator, one batch of the file's size at a time."""
    reference = pytest.importorskip("onnx.reference").ReferenceEvaluator(
        pytest.importorskip("onnx").load_from_string(content)
    )
    rows = [reference.run(None, {"x": image[None].numpy()})[0] for image in x]
    return torch.from_numpy(np.concatenate(rows))


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("n", [1, 2, 8])
def test_onnx_of_batch_one_at_any_batch(tied: bool, n: int, tmp_path: Path) -> None:
    content = onnx_bytes(1, tied=tied)
    (tmp_path / "m.onnx").write_bytes(content)
    classifier = load_model(str(tmp_path / "m.onnx"))
    assert classifier.input_shape == SHAPE
    assert classifier.classes == CLASSES
    assert isinstance(classifier.module, FixedBatch) == tied
    assert bool(classifier.notes) == tied
    x = images(n)
    torch.testing.assert_close(classifier.module(x), onnx_truth(content, x), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("batch", ["n", 4])
def test_onnx_of_other_batch_sizes(batch: int | str, tmp_path: Path) -> None:
    (tmp_path / "m.onnx").write_bytes(onnx_bytes(batch))
    classifier = load_model(str(tmp_path / "m.onnx"))
    assert not classifier.notes
    x = images(6)
    torch.testing.assert_close(classifier.module(x), onnx_truth(onnx_bytes(1), x), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("tied", [False, True])
def test_onnx_of_bytes_is_given_bytes(tied: bool, tmp_path: Path) -> None:
    content = onnx_bytes(1, uint8="Identity", tied=tied)
    (tmp_path / "m.onnx").write_bytes(content)
    classifier = load_model(str(tmp_path / "m.onnx"))
    x = images(6)
    logits = classifier.module(x.requires_grad_(True))
    truth = onnx_truth(content, (x.detach() * 255).round().to(torch.uint8))
    torch.testing.assert_close(logits, truth, rtol=1e-4, atol=1e-4)
    (grad,) = torch.autograd.grad(logits[:, 0].sum(), x)
    assert bool((grad.flatten(1).abs().amax(dim=1) > 0.1).all()), "the attack sees through the rounding"
    assert any("1/255" in note for note in classifier.notes)
    with pytest.raises(InputError, match="leave out mean and std"):
        load_model(str(tmp_path / "m.onnx"), mean=[0.5] * 3, std=[0.5] * 3)


def test_onnx_of_bytes_stays_in_the_ball(tmp_path: Path) -> None:
    """0.03 lies between 7/255 and 8/255: a point at the edge of that ball would be rounded to 8/255."""
    (tmp_path / "m.onnx").write_bytes(onnx_bytes(1, uint8="Identity"))
    classifier = load_model(str(tmp_path / "m.onnx"))
    pixels = (255 * images(6)).round().to(torch.uint8)
    labels = classifier(pixels / 255).argmax(dim=1)
    attack = tmifpe.PGD(steps=5)
    result = tmifpe.evaluate(
        classifier, (pixels, labels), tmifpe.Threat("linf", 0.03), attack, mode="strongest", keep_adv=True
    )
    assert result.adv is not None
    moved = (255 * result.adv).round() - pixels
    assert int(moved.abs().max()) == 7
    assert result.spec.threat.eps == 7 / 255
    assert any("rounded down to 7/255" in note for note in result.notes)


def test_onnx_that_computes_with_bytes_is_refused(tmp_path: Path) -> None:
    (tmp_path / "m.onnx").write_bytes(onnx_bytes(1, uint8="Add", opset=14))
    with pytest.raises(InputError, match=r"computes with them \(Add\)"):
        load_model(str(tmp_path / "m.onnx"))


def test_torchscript_of_another_size_says_why(tmp_path: Path) -> None:
    classifier = load_model(str(save_script(tmp_path / "m.pt", tiny())))
    data = as_data((images(2, (3, 9, 9)), torch.zeros(2, dtype=torch.int64)))
    with pytest.raises(InputError, match="does not take images of shape 3x9x9: RuntimeError: mat1 and mat2"):
        check_compatible(classifier, data)


def test_onnx_that_ends_in_softmax_says_so(tmp_path: Path) -> None:
    (tmp_path / "m.onnx").write_bytes(onnx_bytes(softmax=True))
    assert any("probabilities" in note for note in load_model(str(tmp_path / "m.onnx")).notes)


@pytest.mark.parametrize("keep", [0, 1, 10, 0.3, 0.7, 0.99])
def test_truncated_onnx(keep: float, tmp_path: Path) -> None:
    content = onnx_bytes()
    (tmp_path / "m.onnx").write_bytes(content[: int(keep * len(content)) if keep < 1 else int(keep)])
    with pytest.raises(InputError, match="not a readable ONNX file"):
        load_model(str(tmp_path / "m.onnx"))


def test_wrong_file_under_the_name(tmp_path: Path) -> None:
    for suffix, sentence in ((".onnx", "ONNX"), (".pt2", "pt2"), (".pt", "torch file"), (".ts", "torch file")):
        path = tmp_path / f"m{suffix}"
        path.write_text("this is not a model")
        with pytest.raises(InputError, match=sentence):
            load_model(str(path))


def test_onnx_operator_that_cannot_be_converted(tmp_path: Path) -> None:
    onnx = pytest.importorskip("onnx")
    h, kind = onnx.helper, onnx.TensorProto.FLOAT
    graph = h.make_graph(
        [h.make_node("Det", ["x"], ["y"])],
        "odd",
        [h.make_tensor_value_info("x", kind, [1, 3, 8, 8])],
        [h.make_tensor_value_info("y", kind, [1, 3])],
    )
    (tmp_path / "m.onnx").write_bytes(
        h.make_model(graph, opset_imports=[h.make_opsetid("", 13)], ir_version=7).SerializeToString()
    )
    with pytest.raises(InputError, match="cannot convert"):
        load_model(str(tmp_path / "m.onnx"))


@pytest.mark.parametrize("trace", [False, True])
def test_torchscript_gives_the_same_logits(trace: bool, tmp_path: Path) -> None:
    network = tiny()
    path = save_script(tmp_path / "m.ts", network, trace=trace)
    x = images(5)
    torch.testing.assert_close(load_model(str(path)).module(x), network.eval()(x).detach(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("batch", [None, 1, 3])
def test_exported_program_at_any_batch(batch: int | None, tmp_path: Path) -> None:
    network = tiny()
    path = save_pt2(tmp_path / "m.pt2", network, batch=batch)
    classifier = load_model(str(path))
    assert (classifier.input_shape, classifier.classes) == (SHAPE, CLASSES)
    assert isinstance(classifier.module, FixedBatch) == (batch is not None)
    for n in (1, 2, 7):
        x = images(n)
        torch.testing.assert_close(classifier.module(x), network.eval()(x).detach(), rtol=1e-5, atol=1e-6)
    classifier.module.train()  # pyright: ignore[reportAttributeAccessIssue]
    classifier.module.eval()  # pyright: ignore[reportAttributeAccessIssue]


def test_identity_of_files(tmp_path: Path) -> None:
    a = load_model(str(save_script(tmp_path / "a.pt", tiny(0)))).identity
    b = load_model(str(save_script(tmp_path / "b.pt", tiny(1)))).identity
    assert a != b


def test_state_dict_named_pt_asks_for_an_architecture(tmp_path: Path) -> None:
    for legacy in (False, True):
        torch.save(tiny().state_dict(), tmp_path / "m.pt", _use_new_zipfile_serialization=not legacy)
        with pytest.raises(InputError, match="`weights="):
            load_model(str(tmp_path / "m.pt"))


def test_truncated_torchscript_and_pt2(tmp_path: Path) -> None:
    script = save_script(tmp_path / "m.pt", tiny())
    program = save_pt2(tmp_path / "m.pt2", tiny())
    for path in (script, program):
        path.write_bytes(path.read_bytes()[:-200])
        with pytest.raises(InputError):
            load_model(str(path))


class Payload:
    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.mark),)


def rewrite(path: Path, change: Callable[[str, bytes], bytes]) -> None:
    with zipfile.ZipFile(path) as archive:
        entries = [(info, archive.read(info)) for info in archive.infolist()]
    with zipfile.ZipFile(path, "w") as archive:
        for info, content in entries:
            archive.writestr(info, change(info.filename, content))


def change_json(key: str, value: Any) -> Callable[[str, bytes], bytes]:
    """Set every field of that name, however deep, in the graph of the archive."""

    def walk(item: Any) -> None:
        for inner in item.values() if isinstance(item, dict) else item if isinstance(item, list) else ():
            walk(inner)
        if isinstance(item, dict) and key in item:
            item[key] = value

    def change(name: str, content: bytes) -> bytes:
        if not name.endswith(".json"):
            return content
        tree = json.loads(content)
        walk(tree)
        return json.dumps(tree).encode()

    return change


def test_pickle_inside_pt2_does_not_run(tmp_path: Path) -> None:
    mark = tmp_path / "the-payload-ran"
    path = save_pt2(tmp_path / "m.pt2", tiny())
    buffer = io.BytesIO()
    torch.save(((Payload(mark),), {}), buffer)
    rewrite(path, lambda name, content: buffer.getvalue() if "sample_inputs" in name else content)
    with pytest.raises(InputError, match="not unpickled"):
        load_model(str(path))
    assert not mark.exists()
    with contextlib.suppress(Exception):
        torch.export.load(str(path))
    assert mark.exists(), "torch has become safe here, or the payload of this test is not a real one"


@pytest.mark.parametrize(
    ("key", "value", "sentence"),
    [
        ("use_pickle", True, "pickled tensor"),
        ("target", "torch.os.system", "not an operator"),
        ("target", "torch.ops.load_library", "not an operator"),
        ("target", "_operator.call", "not an operator"),
        ("guards_code", ["__import__('os').mkdir('x')"], "plain arithmetic"),
        ("guards_code", ["exec(chr(120))"], "plain arithmetic"),
        ("expr_str", "__import__('os').system('x')", "plain arithmetic"),
        ("name", "x):\n    import os", "not a name"),
    ],
)
def test_hostile_pt2(key: str, value: Any, sentence: str, tmp_path: Path) -> None:
    path = save_pt2(tmp_path / "m.pt2", tiny())
    rewrite(path, change_json(key, value))
    with pytest.raises(InputError, match=sentence):
        load_model(str(path))


@pytest.mark.parametrize("name", ["m/data/aotinductor/model/x.so", "m/data/constants/opaque_obj_0", "m/evil.pkl"])
def test_pt2_with_code_or_objects(name: str, tmp_path: Path) -> None:
    path = save_pt2(tmp_path / "m.pt2", tiny())
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr(name, b"x")
    with pytest.raises(InputError, match="not loaded"):
        load_model(str(path))


def test_honest_guards_pass() -> None:
    from tmifpe.models.pt2_screen import is_arithmetic

    assert is_arithmetic("L['x'].size()[0] <= 512")
    assert is_arithmetic("L['args'][0].stride()[1] == 3*L['args'][0].size()[2]")
    assert is_arithmetic("Mul(Integer(2), Symbol('s77', positive=True, integer=True))")
    assert not is_arithmetic("s77.__class__")
    assert not is_arithmetic("open('/etc/passwd')")


@settings(max_examples=cases(60), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(place=st.integers(0, 10**6), value=st.integers(0, 255), cut=st.booleans())
def test_damaged_onnx_never_gives_a_traceback(tmp_path: Path, place: int, value: int, cut: bool) -> None:
    content = bytearray(onnx_bytes())
    place %= len(content)
    if cut:
        content = content[:place]
    else:
        content[place] = value
    (tmp_path / "fuzz.onnx").write_bytes(bytes(content))
    with contextlib.suppress(InputError):
        load_model(str(tmp_path / "fuzz.onnx"))
