"""Models through other packages: RobustBench, timm, Hugging Face, user code; and the torchvision trap."""

from __future__ import annotations

import sys
import types
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.model_files import MAKERS, images, save_hf, save_zoo
from tmifpe.core import torchvision_repair
from tmifpe.core.errors import InputError, MissingExtra
from tmifpe.core.extras import import_extra
from tmifpe.core.torchvision_repair import heal_torchvision
from tmifpe.models import load_model
from tmifpe.models.robustbench_zoo import import_zoo


def test_robustbench_finds_the_zoos_folder_without_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    zoo = import_zoo()
    monkeypatch.setattr(zoo, "download_gdrive_new", lambda *_: pytest.fail("went to the network"))
    save_zoo(tmp_path / "models")
    monkeypatch.chdir(tmp_path)
    classifier = load_model("robustbench:cifar10/Linf/Wong2020Fast")
    assert (classifier.classes, classifier.input_shape) == (10, (3, 32, 32))
    state = torch.load(tmp_path / "models/cifar10/Linf/Wong2020Fast.pt", weights_only=True)
    mine = dict(classifier.module.named_parameters())  # pyright: ignore[reportAttributeAccessIssue, reportFunctionMemberAccess]
    assert all(torch.equal(mine[key], state[key]) for key in mine)
    assert (
        load_model("robustbench:cifar10/Linf/Wong2020Fast", weights=tmp_path / "models").identity == classifier.identity
    )


@pytest.mark.parametrize("how", ["raises", "writes nothing"])
def test_robustbench_says_what_to_download(how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    zoo = import_zoo()

    def no_network(*_: Any) -> None:
        if how == "raises":
            raise OSError("no route to host")

    monkeypatch.setattr(zoo, "download_gdrive_new", no_network)
    monkeypatch.chdir(tmp_path)
    drive = zoo.all_models[zoo.BenchmarkDataset("cifar10")][zoo.ThreatModel("Linf")]["Wong2020Fast"]["gdrive_id"]
    with pytest.raises(InputError, match=f"models/cifar10/Linf/Wong2020Fast.pt.*{drive}"):
        load_model("robustbench:cifar10/Linf/Wong2020Fast")


def test_robustbench_never_unpickles_a_payload(tmp_path: Path) -> None:
    from tests.test_models_weights import Payload

    mark = tmp_path / "the-payload-ran"
    save_zoo(tmp_path)
    torch.save({"x": Payload(mark)}, tmp_path / "cifar10/Linf/Wong2020Fast.pt")
    with pytest.raises(InputError, match="not unpickled"):
        load_model("robustbench:cifar10/Linf/Wong2020Fast", weights=tmp_path)
    assert not mark.exists()


def test_robustbench_checkpoint_of_another_model(tmp_path: Path) -> None:
    save_zoo(tmp_path)
    torch.save({"a": torch.zeros(1)}, tmp_path / "cifar10/Linf/Wong2020Fast.pt")
    with pytest.raises(InputError, match="cannot load"):
        load_model("robustbench:cifar10/Linf/Wong2020Fast", weights=tmp_path)
    with pytest.raises(InputError, match="zoo's folder"):
        load_model("robustbench:cifar10/Linf/Wong2020Fast", weights=tmp_path / "absent")


def test_robustbench_leaves_no_alias_behind() -> None:
    import_zoo()
    assert "autoattack" not in sys.modules


def test_timm_normalises_as_it_says(tmp_path: Path) -> None:
    text, options = MAKERS["timm"](tmp_path)
    classifier = load_model(text, **options)
    timm = import_extra("timm", "this test", "timm", uses_torchvision=True)
    network = timm.create_model("test_vit", pretrained=False).eval()
    network.load_state_dict(torch.load(options["weights"], weights_only=True))
    settings = network.pretrained_cfg
    assert classifier.mean == tuple(settings["mean"])
    assert classifier.input_shape == tuple(settings["input_size"])
    x = images(2, settings["input_size"])
    expected = network((x - torch.tensor(settings["mean"]).view(3, 1, 1)) / torch.tensor(settings["std"]).view(3, 1, 1))
    torch.testing.assert_close(classifier.module(x), expected.detach(), rtol=1e-4, atol=1e-5)


def test_timm_options_shape_the_network(tmp_path: Path) -> None:
    timm = import_extra("timm", "this test", "timm", uses_torchvision=True)
    network = timm.create_model("test_vit", pretrained=False, num_classes=7, img_size=32)
    torch.save(network.state_dict(), tmp_path / "w.pt")
    classifier = load_model("timm:test_vit(num_classes=7,img_size=32)", weights=tmp_path / "w.pt")
    assert (classifier.classes, classifier.input_shape) == (7, (3, 32, 32))
    with pytest.raises(InputError, match="do not fit"):
        load_model("timm:test_vit", weights=tmp_path / "w.pt")


def test_timm_without_network(monkeypatch: pytest.MonkeyPatch) -> None:
    timm = import_extra("timm", "this test", "timm", uses_torchvision=True)

    def offline(*_: Any, **__: Any) -> None:
        raise OSError("no route to host")

    monkeypatch.setattr(timm, "create_model", offline)
    with pytest.raises(InputError, match=r"could not be fetched.*`weights=FILE` \(no route"):
        load_model("timm:test_vit")


def test_hf_normalises_as_its_processor(tmp_path: Path) -> None:
    classifier = load_model(f"hf:{save_hf(tmp_path / 'a')}")
    assert classifier.mean == (0.5, 0.4, 0.3)
    assert not classifier.notes
    transformers = import_extra("transformers", "this test", "hf", uses_torchvision=True)
    network = transformers.ViTForImageClassification.from_pretrained(tmp_path / "a").eval()
    x = images(3)
    normal = (x - torch.tensor([0.5, 0.4, 0.3]).view(3, 1, 1)) / torch.tensor([0.25, 0.2, 0.3]).view(3, 1, 1)
    torch.testing.assert_close(classifier.module(x), network(normal).logits.detach(), rtol=1e-4, atol=1e-5)
    torch.save(network.state_dict(), tmp_path / "w.pt")
    again = load_model(f"hf:{tmp_path / 'a'}", weights=tmp_path / "w.pt")
    assert again.identity == classifier.identity


def test_hf_without_processor_says_so(tmp_path: Path) -> None:
    classifier = load_model(f"hf:{save_hf(tmp_path / 'a', normalise=False)}")
    assert classifier.mean is None
    assert "`mean`" in classifier.notes[0]


def test_hf_without_a_trained_head_is_refused(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    save_hf(tmp_path / "a")
    transformers.ViTForImageClassification.from_pretrained(tmp_path / "a").vit.save_pretrained(tmp_path / "b")
    with pytest.raises(InputError, match="lacks classifier"):
        load_model(f"hf:{tmp_path / 'b'}")


def test_hf_folder_of_something_else(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(InputError, match="cannot load hf:"):
        load_model(f"hf:{tmp_path}")


@pytest.mark.parametrize(
    ("body", "text", "sentence"),
    [
        ("make = 3", "make", "is a int"),
        ("def make(width): ...", "make", "without arguments"),
        ("def make(): raise KeyError('data')", "make", "failed: KeyError"),
        ("def make(): return 3", "make", "must return a model"),
        ("def other(): ...", "make", "no 'make'"),
        ("import absent_package", "make", "does not import: ModuleNotFoundError"),
        ("def make(:", "make", "does not import: SyntaxError"),
        ("1 / 0", "make", "does not import: ZeroDivisionError"),
        ("", "make it", "cannot read"),
    ],
)
def test_factories_that_cannot_work(body: str, text: str, sentence: str, tmp_path: Path) -> None:
    (tmp_path / "bad.py").write_text(body)
    path = list(sys.path)
    with pytest.raises(InputError, match=sentence):
        load_model(f"{tmp_path / 'bad.py'}:{text}")
    assert sys.path == path


def test_factories_of_every_kind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "beside.py").write_text("WIDTH = 5")
    (tmp_path / "zoo_of_mine.py").write_text(
        "import torch\nfrom torch import nn\nfrom beside import WIDTH\n"
        "class Net(nn.Linear):\n"
        "    classes, input_shape = WIDTH, (1, 2, 2)\n"
        "    def __init__(self): super().__init__(4, WIDTH)\n"
        "    def forward(self, x): return super().forward(x.flatten(1))\n"
        "made = Net()\n"
        "def plain(): return lambda x: x.flatten(1)\n"
        "def lies():\n    net = Net(); net.classes = 4; return net\n"
    )
    monkeypatch.chdir(tmp_path)
    for text in ("zoo_of_mine.py:Net", "zoo_of_mine.py:made", "zoo_of_mine:Net"):
        assert (load_model(text).classes, load_model(text).input_shape) == (5, (1, 2, 2))
    sys.modules.pop("zoo_of_mine", None)
    sys.modules.pop("beside", None)
    plain = load_model("zoo_of_mine.py:plain")
    assert plain.module(torch.zeros(2, 1, 2, 2)).shape == (2, 4)
    assert load_model("zoo_of_mine.py:plain", mean=[0.5], std=[0.5]).module(torch.ones(1, 1, 1, 1)).tolist() == [[1.0]]
    with pytest.raises(InputError, match="takes no `weights`"):
        load_model("zoo_of_mine.py:plain", weights="zoo_of_mine.py")
    with pytest.raises(InputError, match="states 4 classes but gives 5"):
        load_model("zoo_of_mine.py:lies")
    before = plain.identity
    with (tmp_path / "zoo_of_mine.py").open("a") as file:
        file.write("# another version\n")
    assert load_model("zoo_of_mine.py:plain").identity != before


def test_repair_only_after_that_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    declared: list[Any] = []
    monkeypatch.setattr(torchvision_repair, "_declared", declared)
    calls: list[str] = []

    def attempt(errors: list[Exception | None]) -> None:
        def fake(name: str) -> types.ModuleType:
            calls.append(name)
            error = errors.pop(0)
            if error is not None:
                raise error
            return types.ModuleType(name)

        monkeypatch.setattr(torchvision_repair, "quiet_import", fake)
        heal_torchvision()

    class Library:
        def __init__(self, *_: str) -> None:
            self.defined: list[str] = []

        def define(self, text: str) -> None:
            self.defined.append(text.partition("(")[0])

    monkeypatch.setattr(torch.library, "Library", Library)
    attempt([None])
    attempt([RuntimeError("something else")])
    attempt([ImportError("no such thing")])
    assert declared == []
    attempt([RuntimeError("operator torchvision::nms does not exist"), None])
    assert declared[0].defined == ["nms", "qnms"]
    assert calls == ["torchvision"] * 5


def test_broken_package_is_one_sentence(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "broken_package_x.py").write_text("raise RuntimeError('built for another torch\\nand more')")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(MissingExtra, match=r"broken_package_x does not import: built for another torch\)$"):
        import_extra("broken_package_x", "such models", "onnx")
