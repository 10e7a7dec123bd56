"""Tiny models of every kind a source reads, made where a test wants them."""

from __future__ import annotations

import json
import math
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from tmifpe.core.extras import import_extra
from tmifpe.models.digits import DigitsCNN
from tmifpe.models.mnist import LeNet5, SmallCNN, fast_network

SHAPE = (3, 8, 8)
CLASSES = 5


def tiny(seed: int = 0) -> nn.Sequential:
    """Convolution, BatchNorm with statistics of its own, dropout: train and eval mode differ."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        network = nn.Sequential(
            nn.Conv2d(3, 4, 3, padding=1),
            nn.BatchNorm2d(4),
            nn.ReLU(),
            nn.Flatten(),
            nn.Dropout(),
            nn.Linear(256, CLASSES),
        )
        network(torch.rand(8, *SHAPE))
    return network


def images(n: int, shape: tuple[int, ...] = SHAPE, seed: int = 0) -> torch.Tensor:
    return torch.rand(n, *shape, generator=torch.Generator().manual_seed(seed))


def onnx_bytes(
    batch: int | str = 1, *, tied: bool = False, softmax: bool = False, opset: int = 13, uint8: str = ""
) -> bytes:
    """Conv, Relu, Reshape to a constant (batch, -1), Gemm. `tied` joins a constant of one row to the images,
    which no rewriting of shapes can lift. `uint8` names what comes before Conv where the input is one of bytes: the
    operator that makes them floats, or one more before it."""
    onnx = pytest.importorskip("onnx")
    h = onnx.helper
    rng = np.random.default_rng(0)
    values = {
        "w": rng.normal(size=(4, 3, 3, 3)).astype(np.float32),
        "a": rng.normal(size=(CLASSES, 288 if tied else 256)).astype(np.float32),
        "b": rng.normal(size=CLASSES).astype(np.float32),
        "to": np.array([batch if isinstance(batch, int) else 0, -1], np.int64),
        "scale_to": np.array([1, 4, 1, 1], np.int64),
        "scale": rng.random(4).astype(np.float32) + 0.5,
        "token": rng.normal(size=(1, 4, 1, 8)).astype(np.float32),
    }
    nodes = [
        h.make_node("Conv", ["x", "w"], ["c"], pads=[1, 1, 1, 1], kernel_shape=[3, 3]),
        h.make_node("Reshape", ["scale", "scale_to"], ["s"]),  # leading 1 of a constant, not of the images
        h.make_node("Mul", ["c", "s"], ["m"]),
        h.make_node("Relu", ["m"], ["r"]),
    ]
    if uint8:
        nodes[0].input[0] = "scaled"
        values |= {"d": np.array(255, np.float32), "one": np.array(1, np.uint8)}
        before = h.make_node(uint8, ["x", "one"] if uint8 == "Add" else ["x"], ["same"])
        cast = h.make_node("Cast", ["same"], ["float"], to=onnx.TensorProto.FLOAT)
        nodes = [before, cast, h.make_node("Div", ["float", "d"], ["scaled"]), *nodes]
    last = "r"
    if tied:
        nodes.append(h.make_node("Concat", ["token", "r"], ["cat"], axis=2))
        last = "cat"
    nodes += [
        h.make_node("Reshape", [last, "to"], ["f"]),
        h.make_node("Gemm", ["f", "a", "b"], ["g" if softmax else "y"], transB=1),
    ]
    if softmax:
        nodes.append(h.make_node("Softmax", ["g"], ["y"], axis=1))
    info = onnx.TensorProto.FLOAT
    graph = h.make_graph(
        nodes,
        "tiny",
        [h.make_tensor_value_info("x", onnx.TensorProto.UINT8 if uint8 else info, [batch, *SHAPE])],
        [h.make_tensor_value_info("y", info, [batch, CLASSES])],
        [onnx.numpy_helper.from_array(array, name) for name, array in values.items()],
    )
    model = h.make_model(graph, opset_imports=[h.make_opsetid("", opset)], ir_version=7)
    return model.SerializeToString()


def save_script(path: Path, network: nn.Module, *, trace: bool = False) -> Path:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        script = torch.jit.trace(network.eval(), images(2)) if trace else torch.jit.script(network.eval())
        torch.jit.save(script, str(path))
    return path


def save_pt2(path: Path, network: nn.Module, *, batch: int | None = None, example: torch.Tensor | None = None) -> Path:
    shapes = None if batch else ({0: torch.export.Dim("n", min=1)},)
    given = images(batch or 4) if example is None else example
    torch.export.save(torch.export.export(network.eval(), (given,), dynamic_shapes=shapes), str(path))
    return path


def save_hf(folder: Path, *, normalise: bool = True, size: int = 8, classes: int = CLASSES, sums: bool = False) -> Path:
    transformers = import_extra("transformers", "this test", "hf", uses_torchvision=True)
    config = transformers.ViTConfig(
        hidden_size=8,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=8,
        image_size=size,
        patch_size=size if sums else size // 2,
        num_labels=classes,
    )
    network = transformers.ViTForImageClassification(config)
    if sums:
        see_one_sum(network, network.vit.embeddings.patch_embeddings.projection, seed=4)
    network.save_pretrained(folder)
    if normalise:
        settings = {"do_normalize": True, "image_mean": [0.5, 0.4, 0.3], "image_std": [0.25, 0.2, 0.3]}
        (folder / "preprocessor_config.json").write_text(json.dumps(settings))
    return folder


def see_one_sum(network: nn.Module, patches: nn.Conv2d, seed: int) -> None:
    """Random weights that see of an image, one patch, only the sum of its first channel: what happens in a ball can be
    tried out along a line. The seed is one with which the class changes twice on the way from black to white."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, weight in network.named_parameters():
            if name != "logit_scale":
                weight.copy_(torch.randn(weight.shape, generator=generator))
        patches.weight.copy_(patches.weight[:, :, :1, :1].expand_as(patches.weight) / patches.weight[0, 0].numel())
        patches.weight[:, 1:] = 0


WORDS = ("cat", "dog", "bird", "fish", "tree")


def save_clip(folder: Path, *, sums: bool = False) -> Path:
    """A random CLIP of 8x8 pixels whose tokenizer spells words letter by letter, with the usual scale of 100."""
    transformers = import_extra("transformers", "this test", "hf", uses_torchvision=True)
    folder.mkdir(parents=True, exist_ok=True)
    letters = sorted(set("".join(WORDS) + "a photo of a sketch of the ."))
    tokens = [*letters, *(f"{letter}</w>" for letter in letters), "<|startoftext|>", "<|endoftext|>"]
    vocabulary = {token: number for number, token in enumerate(tokens)}
    (folder / "vocab.json").write_text(json.dumps(vocabulary))
    (folder / "merges.txt").write_text("#version: 0.2\n")
    files = str(folder / "vocab.json"), str(folder / "merges.txt")
    transformers.CLIPTokenizer(*files).save_pretrained(folder)
    small = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}
    ends = {"bos_token_id": len(tokens) - 2, "eos_token_id": len(tokens) - 1}
    config = transformers.CLIPConfig(
        text_config={**small, **ends, "vocab_size": len(tokens), "max_position_embeddings": 48},
        vision_config={**small, "image_size": 8, "patch_size": 8 if sums else 4},
        projection_dim=6,
        logit_scale_init_value=math.log(100),
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        network = transformers.CLIPModel(config)
    if sums:
        see_one_sum(network, network.vision_model.embeddings.patch_embedding, seed=9)
    network.save_pretrained(folder)
    sizes = {"size": {"shortest_edge": 8}, "crop_size": {"height": 8, "width": 8}}
    transformers.CLIPImageProcessor(**sizes).save_pretrained(folder)
    return folder


def save_zoo(folder: Path, name: str = "Wong2020Fast") -> Path:
    """Random weights of the true architecture, where RobustBench looks for them."""
    from tmifpe.models.robustbench_zoo import import_zoo

    zoo = import_zoo()
    entry = zoo.all_models[zoo.BenchmarkDataset("cifar10")][zoo.ThreatModel("Linf")][name]
    (folder / "cifar10" / "Linf").mkdir(parents=True)
    torch.save(entry["model"]().state_dict(), folder / "cifar10" / "Linf" / f"{name}.pt")
    return folder


def _mnist(build: Callable[[], nn.Module], name: str) -> Callable[[Path], tuple[str, dict[str, Any]]]:
    def make(folder: Path) -> tuple[str, dict[str, Any]]:
        torch.save(build().state_dict(), folder / "w.pt")
        return name, {"weights": folder / "w.pt"}

    return make


def _bundled(name: str) -> Callable[[Path], tuple[str, dict[str, Any]]]:
    def make(folder: Path) -> tuple[str, dict[str, Any]]:
        torch.save(DigitsCNN().state_dict(), folder / "w.pt")
        return name, {"weights": folder / "w.pt"}

    return make


def _factory(folder: Path) -> tuple[str, dict[str, Any]]:
    (folder / "mine.py").write_text(
        "from torch import nn\n"
        "def make():\n"
        "    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.LazyLinear(5))\n"
        "    import torch; net(torch.zeros(2, 3, 8, 8)); net.input_shape = (3, 8, 8); return net\n"
    )
    return f"{folder / 'mine.py'}:make", {}


def _onnx(folder: Path) -> tuple[str, dict[str, Any]]:
    (folder / "m.onnx").write_bytes(onnx_bytes())
    return str(folder / "m.onnx"), {}


def _timm(folder: Path) -> tuple[str, dict[str, Any]]:
    timm = import_extra("timm", "this test", "timm", uses_torchvision=True)
    torch.save(timm.create_model("test_vit", pretrained=False).state_dict(), folder / "w.pt")
    return "timm:test_vit", {"weights": folder / "w.pt"}


def _probe(folder: Path) -> tuple[str, dict[str, Any]]:
    generator = torch.Generator().manual_seed(0)
    torch.save({"head.weight": torch.randn(4, 5, generator=generator)}, folder / "head.pt")
    return f"probe:{_factory(folder)[0]}", {"weights": folder / "head.pt"}


MAKERS: dict[str, Callable[[Path], tuple[str, dict[str, Any]]]] = {
    "digits-robust": _bundled("digits-robust"),
    "digits-distilled": _bundled("digits-distilled"),
    "mnist-smallcnn": _mnist(SmallCNN, "mnist-smallcnn"),
    "mnist-fast": _mnist(fast_network, "mnist-fast"),
    "mnist-lenet5": _mnist(LeNet5, "mnist-lenet5"),
    "factory": _factory,
    "onnx": _onnx,
    "pt2": lambda folder: (str(save_pt2(folder / "m.pt2", tiny())), {}),
    "torchscript": lambda folder: (str(save_script(folder / "m.pt", tiny())), {}),
    "robustbench": lambda folder: ("robustbench:cifar10/Linf/Wong2020Fast", {"weights": save_zoo(folder)}),
    "timm": _timm,
    "hf": lambda folder: (f"hf:{save_hf(folder)}", {}),
    "clip": lambda folder: (f"clip:{save_clip(folder)}", {"classes": WORDS}),
    "probe": _probe,
    "ensemble": lambda folder: (f"ensemble:{'+'.join([_factory(folder)[0]] * 2)}", {}),
    "ensemble-probabilities": lambda folder: (f"ensemble-probabilities:{'+'.join([_factory(folder)[0]] * 2)}", {}),
}
"""Registered source to a maker of (text, options of load_model)."""
