"""What the code blocks of a page take for granted: files of the reader, downloads, hours. Each is made small here."""

from __future__ import annotations

import importlib
import itertools
import os
import re
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

import tmifpe
from tests.data_files import MAKERS as DATA
from tests.data_files import make_cifar, make_folder
from tests.model_files import save_clip, save_hf, save_zoo
from tmifpe import attacks
from tmifpe.attacks import ATTACKS, Sequence, get_attack, named
from tmifpe.attacks.near import Near
from tmifpe.attacks.radius.bracket import Bracket
from tmifpe.attacks.radius.outside import Outside
from tmifpe.cli.plans.toml import tomllib
from tmifpe.core.extras import import_extra
from tmifpe.losses import AnyLoss

ROOT = Path(__file__).resolve().parent.parent

# Files ---------------------------------------------------------------------------------------------------------------

LINEAR = "from torch import nn\n\n\ndef build():\n    return nn.Sequential(nn.Flatten(), nn.Linear({}, {}))\n"


def _readme(folder: Path) -> None:
    _members(folder)
    _link(folder, models="models", data="data")


def _members(folder: Path) -> None:
    for name in ("my_model.py", "other.py"):
        (folder / name).write_text(LINEAR.format(64, 10))
    for name in ("w", "a", "b"):
        save_file({"1.weight": torch.eye(10, 64), "1.bias": torch.zeros(10)}, folder / f"{name}.safetensors")
    x, y = tmifpe.load_data("digits").fetch(range(4))
    np.savez(folder / "test.npz", images=x.numpy(), labels=y.numpy())


def _certify(folder: Path) -> None:
    _link(folder, **{"mnist_wk17a.pth": "models/mnist_wk17a.pth", "DIR": "data/mnist"})


def _table1(folder: Path) -> None:
    (folder / "benchmarks").symlink_to(ROOT / "benchmarks")
    weights = next(Path(pytest.importorskip("pyautoattack").__file__).parent.rglob("model_test.pt"))
    (folder / "pyautoattack" / "examples").mkdir(parents=True)
    (folder / "pyautoattack" / "examples" / weights.name).symlink_to(weights)


def _your_model(folder: Path) -> None:
    (folder / "photos.py").write_text(LINEAR.format(3 * 224 * 224, 2))
    make_folder(folder / "photos")
    (folder / "names.txt").write_text("ant\nbee\n")


def _your_model_slow(folder: Path) -> None:
    _linear_onnx(folder / "net.onnx")
    make_cifar(folder / "data" / "cifar10")
    (folder / "data" / "imagenet").mkdir()
    DATA["imagenet"](folder / "data" / "imagenet")
    save_zoo(folder / "models")
    save_hf(folder / "microsoft" / "resnet-18", size=224, classes=1000)
    save_clip(folder / "openai" / "clip-vit-base-patch32")
    words = map("".join, itertools.product("abcdefghit", repeat=3))  # in letters that this CLIP has learnt
    (folder / "names.txt").write_text("\n".join(words))
    _members(folder)
    save_file({"weight": torch.eye(1000, 512), "bias": torch.zeros(1000)}, folder / "head.safetensors")


def _linear_onnx(path: Path) -> None:
    onnx = pytest.importorskip("onnx")
    made, kind = onnx.helper, onnx.TensorProto.FLOAT
    weights = np.random.default_rng(0).normal(size=(3 * 32 * 32, 10)).astype(np.float32)
    graph = made.make_graph(
        [made.make_node("Flatten", ["x"], ["f"]), made.make_node("MatMul", ["f", "w"], ["y"])],
        "linear",
        [made.make_tensor_value_info("x", kind, [1, 3, 32, 32])],
        [made.make_tensor_value_info("y", kind, [1, 10])],
        [onnx.numpy_helper.from_array(weights, "w")],
    )
    model = made.make_model(graph, opset_imports=[made.make_opsetid("", 13)], ir_version=7)
    path.write_bytes(model.SerializeToString())


def _extending(folder: Path) -> None:
    (folder / "my_loss.py").write_text((ROOT / "tests" / "plugin" / "tmifpe_hinge" / "loss.py").read_text())
    attack = (ROOT / "tests" / "plugin" / "tmifpe_hinge" / "attack.py").read_text()
    (folder / "my_attack.py").write_text(attack.replace("CornerPGD", "Mine").replace("corner-pgd", "mine"))
    (folder / "my_data.py").write_text("import tmifpe\n\n\ndef load():\n    return tmifpe.load_data('digits')\n")


def _strength(folder: Path) -> None:
    """A copy of what the script reads and writes, in which two lines have two images and one seed."""
    (folder / "benchmarks").mkdir()
    text = (ROOT / "benchmarks" / "strength.py").read_text()
    for before, after in (
        ("limit=line.limit", "limit=2"),
        ('"--seeds", default="0,1,2"', '"--seeds", default="0"'),
        ('"--lines", default=""', '"--lines", default="fast,r2b"'),
    ):
        assert before in text
        text = text.replace(before, after)
    (folder / "benchmarks" / "strength.py").write_text(text)
    shutil.copytree(ROOT / "docs" / "data", folder / "docs" / "data")
    for name in ("README.md", "docs/strength.md"):
        shutil.copy(ROOT / name, folder / name)


def ray_plan(folder: Path) -> None:
    """docs/cluster.md: the plan of its Ray commands."""
    (folder / "plan.toml").write_text(
        "[[run]]\nmodel = 'digits-robust'\ndata = 'digits'\neps = 0.1\nlimit = 2\nattack = 'quick'\n"
    )


FILES: dict[tuple[str, str], Callable[[Path], None]] = {
    ("README.md", "slow"): _readme,
    ("docs/certify.md", "slow"): _certify,
    ("docs/extending.md", "fast"): _extending,
    ("docs/strength.md", "slow"): _strength,
    ("docs/table1.md", "slow"): _table1,
    ("docs/your-model.md", "fast"): _your_model,
    ("docs/your-model.md", "slow"): _your_model_slow,
}
"""Page and set of tests to what makes the files of the reader in a folder."""


def _link(folder: Path, **names: str) -> None:
    """Names of the page to folders and files of TMIFPE_SHARED."""
    for name, there in names.items():
        (folder / name).symlink_to(Path(os.environ["TMIFPE_SHARED"]).resolve() / there)


def names_in(folder: Path) -> dict[str, str]:
    """Paths outside of the current folder, which tests do not write to."""
    return {"/data/imagenet": str(folder / "data" / "imagenet"), "../shared": os.environ.get("TMIFPE_SHARED", "")}


def replaced(word: str, names: dict[str, str]) -> str:
    for name, there in names.items():
        word = word.replace(name, there)
    return word


# Hours and downloads --------------------------------------------------------------------------------------------------


def few_steps(loss: AnyLoss = "tmifpe", steps: int = 100, restarts: int = 1, schedule: str = "cosine") -> Sequence:
    """`full`, stage by stage, with few steps; tests/test_full.py has it as it is."""
    return Sequence(tuple(_shorter(stage) for stage in named.full(loss, steps, restarts, schedule).stages))


def _shorter(stage: Any) -> Any:
    if isinstance(stage, Near | Outside):
        return replace(stage, attack=_shorter(get_attack(str(stage.attack))))
    return replace(stage, steps=3)


def shorten(patch: pytest.MonkeyPatch) -> None:
    """`full`, curves and AutoAttack with few steps."""
    patch.setitem(ATTACKS._loaded, "full", few_steps)
    patch.setattr(attacks, "full", few_steps)
    bracket = partial(Bracket, descend=5, probe=3, rounds=2)
    patch.setattr(importlib.import_module("tmifpe.evaluation.curve"), "Bracket", bracket)
    try:
        import pyautoattack
    except ImportError:  # then nothing runs it
        return

    class Short(pyautoattack.AutoAttack):
        def __init__(self, *args: object, **options: object) -> None:
            super().__init__(*args, **options)  # pyright: ignore[reportArgumentType]
            self.apgd.n_iter = self.apgd_targeted.n_iter = self.fab.n_iter = 3
            self.apgd_targeted.n_target_classes = self.fab.n_target_classes = 1
            self.square.n_queries = 5

    patch.setattr(pyautoattack, "AutoAttack", Short)


def with_few_packages(patch: pytest.MonkeyPatch) -> None:
    """The doctor, as if tmifpe needed torch and one extra: test_doctor.py imports every extra, which takes long."""
    asked = metadata.requires
    few = ["torch>=2.4", 'matplotlib>=3.7; extra == "plots"']
    patch.setattr(metadata, "requires", lambda name: few if name == "tmifpe" else asked(name))


def without_downloads(patch: pytest.MonkeyPatch) -> None:
    """A model of timm without its weights; those of other collections are in FILES."""
    try:
        timm = import_extra("timm", "this page", "timm", uses_torchvision=True)
    except tmifpe.InputError as error:
        pytest.skip(str(error))
    made = timm.create_model
    patch.setattr(timm, "create_model", lambda name, pretrained, **options: made(name, pretrained=False, **options))


# Programs that are checked and not run --------------------------------------------------------------------------------


def _pip(words: list[str]) -> None:
    """What it would install is ours, the extras exist, and so does the file of constraints."""
    assert words[1] == "install"
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    rest = words[2:]
    if "--constraint" in rest:
        at = rest.index("--constraint")
        assert (ROOT / rest[at + 1]).is_file()
        rest = rest[:at] + rest[at + 2 :]
    for asked in rest:
        found = re.fullmatch(r"(\.|tmifpe)(?:\[([a-z,]+)\])?", asked)
        assert found, asked
        assert set((found[2] or "all").split(",")) <= set(extras), asked


def _make(words: list[str]) -> None:
    """There is such a target, and make can tell what it would do."""
    subprocess.run(["make", "--dry-run", *words[1:]], cwd=ROOT, check=True, capture_output=True)


def _venv(words: list[str]) -> None:
    assert words[1:3] == ["-m", "venv"]


def _activate(words: list[str]) -> None:
    assert words[1].endswith("/bin/activate")


def _folder(words: list[str]) -> None:
    assert len(words) == 2


STAND_INS: dict[str, Callable[[list[str]], None]] = {
    "pip": _pip,
    "make": _make,
    "python3": _venv,
    ".": _activate,
    "mkdir": _folder,
    "cd": _folder,
}
"""tests/test_first_use.py does the first page literally where there is a network."""
