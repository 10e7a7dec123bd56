"""Models of every shape, end to end: zero-shot, processors, ensembles, probes, inputs that are no images; each with a
number that is known otherwise."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from typer.testing import CliRunner

import tmifpe
from tests.model_files import WORDS, images, save_clip, save_hf, save_pt2, tiny
from tmifpe import InputError, Threat
from tmifpe.cli import app
from tmifpe.cli.plans.file import read_plan
from tmifpe.core.extras import import_extra
from tmifpe.core.outputs import as_logits
from tmifpe.models import Ensemble, Normalize, Probe, ZeroShot, load_model, model_identity
from tmifpe.models.processor import Resized, Resizing, normalisation, resizing
from tmifpe.run.tune.fold import folded

pytestmark = pytest.mark.usefixtures("unchecked")

ATTACK = "multi-targeted(targets=3,steps=10)"
"""On a linear model every class is a linear problem, which a few steps of sign take to the corner of the ball."""


@pytest.fixture(autouse=True)
def _own_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMIFPE_STORE", str(tmp_path / "store"))


@pytest.fixture(scope="module")
def clip_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_clip(tmp_path_factory.mktemp("clip"))


def transformers() -> Any:
    return import_extra("transformers", "this test", "hf", uses_torchvision=True)


def call(*words: str, code: int = 0) -> Any:
    result = CliRunner().invoke(app, list(words))
    assert result.exit_code == code, (result.output, result.stderr, result.exception)
    return result


def evaluated(*words: str) -> dict[str, Any]:
    return json.loads(call("evaluate", *words, "--json").stdout)


def layer(seed: int, classes: int = 4, features: int = 12) -> nn.Linear:
    made = nn.Linear(features, classes)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        made.weight.copy_(torch.randn(classes, features, generator=generator))
        made.bias.copy_(torch.randn(classes, generator=generator) / 4)
    return made


def robust_by_hand(weight: Tensor, bias: Tensor, x: Tensor, y: Tensor, eps: float) -> Tensor:
    """Which examples no point of the ball breaks: z_y - z_k > eps ‖w_y - w_k‖₁ for every other class k. None may lie
    nearer to the edge than rounding."""
    weight, bias, x = weight.detach().double(), bias.detach().double(), x.double().flatten(1)
    z, rows = x @ weight.T + bias, torch.arange(len(x))
    slack = z[rows, y][:, None] - z - eps * (weight[y][:, None] - weight[None]).abs().sum(dim=2)
    slack[rows, y] = math.inf
    least = slack.amin(dim=1)
    assert (least.abs() > 1e-3).all(), "choose another eps: an example lies on the edge"
    return least > 0


def table(n: int = 60, low: float = -1.0, high: float = 1.0, seed: int = 3) -> Tensor:
    """Rows whose ball of 0.05 of the box lies within the box, so that only eps stops an attack."""
    generator = torch.Generator().manual_seed(seed)
    return low + (high - low) * (0.05 + 0.9 * torch.rand(n, 12, generator=generator))


# Zero-shot


def their_logits(folder: Path, x: Tensor, sentences: list[str]) -> Tensor:
    """By CLIP's own processor, tokenizer and forward pass; floats are given as they are, so that nothing is rounded."""
    hf = transformers()
    network = hf.CLIPModel.from_pretrained(folder).eval()
    words = hf.AutoTokenizer.from_pretrained(folder)(sentences, padding=True, return_tensors="pt")
    pixels = hf.CLIPImageProcessor.from_pretrained(folder)(x, do_rescale=False, return_tensors="pt")["pixel_values"]
    with torch.no_grad():
        return network(pixel_values=pixels, **words).logits_per_image


@pytest.mark.parametrize("size", [(8, 8), (11, 17)])
def test_clip_gives_the_logits_of_transformers(clip_folder: Path, size: tuple[int, int]) -> None:
    x = images(4, (3, *size))
    classifier = load_model(f"clip:{clip_folder}", classes=WORDS, template="a sketch of the {}.")
    expected = their_logits(clip_folder, x, [f"a sketch of the {word}." for word in WORDS])
    assert (classifier.classes, classifier.class_names) == (5, WORDS)
    torch.testing.assert_close(classifier(x), expected, rtol=1e-4, atol=1e-3)  # of logits up to 100
    usual = load_model(f"clip:{clip_folder}", classes=WORDS)
    default = their_logits(clip_folder, x, [f"a photo of a {word}." for word in WORDS])
    torch.testing.assert_close(usual(x), default, rtol=1e-4, atol=1e-3)
    assert (usual(x) - classifier(x)).abs().max() > 0.1  # the template is read


def test_clip_is_identified_by_its_words(clip_folder: Path) -> None:
    def identity(**told: Any) -> str:
        options: dict[str, Any] = {"classes": WORDS, **told}
        return load_model(f"clip:{clip_folder}", **options).identity

    assert identity() == identity(template="a photo of a {}.")
    different = [identity(), identity(classes=WORDS[::-1]), identity(classes=WORDS[:4]), identity(template="the {}.")]
    assert len(set(different)) == 4


def test_clip_on_the_command_line(clip_folder: Path, tmp_path: Path) -> None:
    x = images(24, (3, 9, 9))
    sentences = [f"a sketch of the {word}." for word in WORDS]
    z = their_logits(clip_folder, x, sentences)
    labels = z.argmax(dim=1)
    labels[::4] = (labels[::4] + 1) % 5
    np.savez(tmp_path / "set.npz", images=x.numpy(), labels=labels.numpy())
    (tmp_path / "names.txt").write_text("\n".join(WORDS))
    words = [f"clip:{clip_folder}", "--classes", str(tmp_path / "names.txt"), "--template", "a sketch of the {}."]
    words += ["--data", f"npz:{tmp_path / 'set.npz'}", "--eps", "4/255", "--attack", "quick"]
    found = evaluated(*words)
    assert found["clean_accuracy"] == pytest.approx(float((z.argmax(dim=1) == labels).double().mean()))
    assert found["robust_accuracy"] <= found["clean_accuracy"]
    assert any("resizes images of 9x9 to 8x8" in note for note in found["notes"])
    call("report", "latest", "--out", str(tmp_path / "r.html"))
    page = (tmp_path / "r.html").read_text()
    assert f"--classes {tmp_path / 'names.txt'}" in page
    assert "--template" in page


@pytest.mark.parametrize(
    ("told", "sentence"),
    [
        ({}, "`classes=FILE`"),
        ({"classes": ["one"]}, "at least two"),
        ({"classes": WORDS, "template": "no place"}, "{} in the place"),
        ({"classes": ["cat", "cat"]}, "named twice"),
        ({"classes": WORDS, "template": "a photo " * 40 + "{}"}, "cannot read the classes"),
    ],
)
def test_clip_says_what_it_needs(told: dict[str, Any], sentence: str, clip_folder: Path) -> None:
    with pytest.raises(InputError, match=sentence):
        load_model(f"clip:{clip_folder}", **told)


def test_words_are_for_clip_alone(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="clip:NAME"):
        load_model("digits-robust", template="a {}")
    with pytest.raises(InputError, match="of the type vit, not clip"):
        load_model(f"clip:{save_hf(tmp_path / 'vit')}", classes=WORDS)


def test_zero_shot_from_features() -> None:
    text = torch.tensor([[1.0, 0.0, 1.0], [0.0, 3.0, 0.0]])
    x = images(5, (3,))
    cosine = nn.functional.cosine_similarity(x[:, None], text[None], dim=2)
    torch.testing.assert_close(ZeroShot(lambda x: x, text, scale=50)(x), 50 * cosine)
    with pytest.raises(InputError, match="two classes"):
        ZeroShot(lambda x: x, text[:1])


# Processors


VIT = {"image_processor_type": "ViTImageProcessor", "do_resize": True, "size": {"height": 8, "width": 8}, "resample": 2}


@pytest.mark.parametrize(
    "settings",
    [
        {**VIT, "do_rescale": True, "rescale_factor": 1 / 255, "do_normalize": True, "image_mean": [0.5, 0.4, 0.3],
         "image_std": [0.25, 0.2, 0.3]},
        {**VIT, "do_rescale": True, "rescale_factor": 1 / 127.5, "do_normalize": False},
        {**VIT, "do_rescale": False, "do_normalize": True, "image_mean": [127.0] * 3, "image_std": [64.0] * 3},
    ],
    ids=["usual", "rescale only", "bytes"],
)  # fmt: skip
def test_hf_gives_the_logits_of_processor_and_model(settings: dict[str, Any], tmp_path: Path) -> None:
    """On bytes, which the processor takes and we divide by 255."""
    folder = save_hf(tmp_path / "vit", normalise=False)
    (folder / "preprocessor_config.json").write_text(json.dumps(settings))
    hf = transformers()
    processor = hf.ViTImageProcessor.from_pretrained(folder)
    network = hf.ViTForImageClassification.from_pretrained(folder).eval()
    stored = torch.randint(0, 256, (6, 3, 8, 8), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        expected = network(**processor(stored, return_tensors="pt")).logits
    classifier = load_model(f"hf:{folder}")
    torch.testing.assert_close(classifier(stored / 255), expected, rtol=1e-3, atol=1e-4)

    if settings.get("rescale_factor") != 1 / 255:
        return
    np.savez(tmp_path / "set.npz", images=stored.numpy(), labels=expected.argmax(dim=1).numpy())
    found = evaluated(f"hf:{folder}", "--data", f"npz:{tmp_path / 'set.npz'}", "--attack", "pgd(steps=2)")
    assert found["clean_accuracy"] == 1.0


def test_hf_resizes_as_its_processor(tmp_path: Path) -> None:
    folder = save_hf(tmp_path / "vit", normalise=False)
    (folder / "preprocessor_config.json").write_text(json.dumps(VIT))
    hf = transformers()
    network = hf.ViTForImageClassification.from_pretrained(folder).eval()
    x = images(3, (3, 13, 20))
    pixels = hf.ViTImageProcessor.from_pretrained(folder)(x, do_rescale=False, return_tensors="pt")
    with torch.no_grad():
        expected = network(**pixels).logits
    classifier = load_model(f"hf:{folder}")
    torch.testing.assert_close(classifier(x), expected, rtol=1e-3, atol=1e-4)
    result = tmifpe.evaluate(classifier, (x, expected.argmax(dim=1)), Threat("linf", 0.01), tmifpe.PGD(steps=2))
    assert result.clean_accuracy == 1.0
    with pytest.raises(InputError, match="takes images of shape 3x8x8"):
        tmifpe.evaluate(classifier, (x[:, :1], expected.argmax(dim=1)), Threat("linf", 0.01), tmifpe.PGD(steps=2))


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, None),
        ({"do_resize": False, "size": 8}, None),
        ({"do_resize": True, "size": 224}, Resizing((224, 224))),
        ({"do_resize": True, "size": {"shortest_edge": 256}}, None),  # a rectangle for a rectangle
        ({"do_resize": True, "size": 256, "do_center_crop": True, "crop_size": 224, "resample": 3},
         Resizing((224, 224), 256, "bicubic")),
        ({"do_resize": True, "size": {"shortest_edge": 224}, "crop_pct": 0.875}, Resizing((224, 224), 256)),
        ({"do_resize": True, "size": {"shortest_edge": 384}, "crop_pct": 0.875}, Resizing((384, 384))),
        ({"do_resize": True, "size": {"shortest_edge": 8}, "do_center_crop": True, "crop_size": 9}, None),
    ],
)  # fmt: skip
def test_sizes_of_processors(settings: dict[str, Any], expected: Resizing | None) -> None:
    assert resizing(settings) == expected


def test_offsets_and_the_second_division_of_efficientnet() -> None:
    settings = {"rescale_factor": 1 / 127.5, "rescale_offset": True, "image_mean": [0.2], "image_std": [0.5]}
    mean, std = normalisation({**settings, "include_top": True}, 1)
    assert mean is not None
    assert std is not None
    x = 0.3
    assert (x - mean[0]) / std[0] == pytest.approx((x * 255 / 127.5 - 1 - 0.2) / 0.5 / 0.5)


def test_resized_leaves_images_of_the_right_size_alone() -> None:
    module = Resized(nn.Identity(), Resizing((4, 4), 5))
    x = images(2, (3, 4, 4))
    assert module(x) is x
    assert module(images(2, (3, 7, 9))).shape == (2, 3, 4, 4)
    assert module(torch.ones(1, 1, 9, 7)).eq(1).all()
    assert model_identity(module) != model_identity(Resized(nn.Identity(), Resizing((4, 4), 5, "bicubic")))


def test_resizing_does_not_keep_a_network_from_being_folded() -> None:
    network = Resized(Normalize(tiny(), (0.5, 0.4, 0.3), (0.2, 0.3, 0.4)), Resizing((8, 8), 9)).eval()
    copy = folded(network)
    assert copy is not None
    for size in (8, 12):
        x = images(3, (3, size, size))
        torch.testing.assert_close(copy(x), network(x).detach(), rtol=1e-4, atol=1e-4)


def test_timm_resizes_as_its_configuration(tmp_path: Path) -> None:
    timm = import_extra("timm", "this test", "timm", uses_torchvision=True)
    network = timm.create_model("test_vit", pretrained=False).eval()
    torch.save(network.state_dict(), tmp_path / "w.pt")
    classifier = load_model("timm:test_vit", weights=tmp_path / "w.pt")
    image = pytest.importorskip("PIL.Image")
    stored = np.random.default_rng(0).integers(0, 256, (20, 30, 3), dtype=np.uint8)
    settings = timm.data.resolve_data_config({}, model=network)
    transform = timm.data.create_transform(**settings)
    with torch.no_grad():
        expected = network(transform(image.fromarray(stored))[None])
        found = classifier(torch.from_numpy(stored).permute(2, 0, 1)[None] / 255)
    # Pictures are rounded to bytes when they are resized, and bicubic overshoot is clipped; nothing else differs.
    assert (found - expected).abs().max() < 0.05 * expected.std()


# Robust accuracy, by trying out the ball


def their_vit_logits(folder: Path, x: Tensor) -> Tensor:
    hf = transformers()
    pixels = hf.ViTImageProcessor.from_pretrained(folder)(x, do_rescale=False, return_tensors="pt")
    with torch.no_grad():
        return hf.ViTForImageClassification.from_pretrained(folder).eval()(**pixels).logits


def robust_by_trial(logits: Callable[[Tensor], Tensor], x: Tensor, y: Tensor, eps: float) -> Tensor:
    """Which examples no point of the ball breaks, where only the sum of the first channel matters: it takes all its
    values, in ball and box, on the line through the image to the brightest and the darkest point."""
    line = torch.linspace(-eps, eps, 201)
    z = logits((x[:, None] + line[:, None, None, None]).clamp(0, 1).flatten(0, 1)).double().unflatten(0, (len(x), -1))
    rest = z.scatter(2, y[:, None, None].expand(-1, 201, 1), -math.inf)
    margin = z.gather(2, y[:, None, None].expand(-1, 201, 1))[..., 0] - rest.amax(dim=2)
    least, step = margin.amin(dim=1), margin.diff(dim=1).abs().amax(dim=1)
    assert (least.abs() > step).all(), "choose another eps: an example lies on the edge"
    return least > 0


@pytest.mark.parametrize("kind", ["clip", "hf"])
def test_robust_accuracy_is_what_trying_finds(kind: str, tmp_path: Path) -> None:
    """Of CLIP and of a classifier of transformers, as these compute themselves with their own processors."""
    if kind == "clip":
        folder = save_clip(tmp_path / kind, sums=True)
        sentences = [f"a photo of a {word}." for word in WORDS]
        model = load_model(f"clip:{folder}", classes=WORDS)
    else:
        folder, sentences = save_hf(tmp_path / kind, sums=True), []
        settings = json.loads((folder / "preprocessor_config.json").read_text())
        (folder / "preprocessor_config.json").write_text(json.dumps(VIT | settings))
        model = load_model(f"hf:{folder}")

    def logits(x: Tensor) -> Tensor:
        return their_logits(folder, x, sentences) if kind == "clip" else their_vit_logits(folder, x)

    x = (torch.linspace(0, 1, 32)[:, None, None, None] + images(32) / 10 - 0.05).clamp(0, 1)
    y = logits(x).argmax(dim=1)
    robust = robust_by_trial(logits, x, y, 0.08)
    assert 5 < int(robust.sum()) < 27
    result = tmifpe.evaluate(model, (x, y), Threat("linf", 0.08), ATTACK)
    assert (result.outcomes.robust == robust.numpy()).all()


# Ensembles


def test_ensemble_of_linear_models_is_linear(tmp_path: Path) -> None:
    one, two = layer(0), layer(1)
    weight, bias = (one.weight + two.weight) / 2, (one.bias + two.bias) / 2
    x = 0.5 + table() / 2
    y = (x @ weight.T + bias).argmax(dim=1)
    robust = robust_by_hand(weight, bias, x, y, 0.025)
    assert 5 < int(robust.sum()) < 55
    result = tmifpe.evaluate(Ensemble([one, two]), (x, y), Threat("linf", 0.025), ATTACK, certify=True)
    assert (result.outcomes.robust == robust.numpy()).all()
    assert (result.outcomes.certified == robust.numpy()).all()  # of a linear model the bounds are exact, too

    (tmp_path / "nets.py").write_text("from torch import nn\ndef net(): return nn.Linear(12, 4)\n")
    for name, network in (("a", one), ("b", two)):
        save_file(network.state_dict(), tmp_path / f"{name}.safetensors")
    np.savez(tmp_path / "t.npz", images=x.numpy(), labels=y.numpy())
    net = f"{tmp_path / 'nets.py'}:net"
    files = f"{tmp_path / 'a.safetensors'}+{tmp_path / 'b.safetensors'}"
    words = ["--weights", files, "--data", f"npz:{tmp_path / 't.npz'}", "--eps", "0.025", "--attack", ATTACK]
    assert evaluated(f"ensemble:{net}+{net}", *words)["robust_accuracy"] == pytest.approx(float(robust.double().mean()))
    both = [load_model(f"{kind}:{net}+{net}", weights=files) for kind in ("ensemble", "ensemble-probabilities")]
    swapped = load_model(f"ensemble:{net}+{net}", weights="+".join(reversed(files.split("+"))))
    assert len({both[0].identity, both[1].identity, swapped.identity}) == 3
    shares = (one(x).double().softmax(dim=1) + two(x).double().softmax(dim=1)) / 2
    torch.testing.assert_close(both[1](x).double(), shares.log(), rtol=1e-4, atol=1e-5)
    with pytest.raises(InputError, match="2 members and 1 weights"):
        load_model(f"ensemble:{net}+{net}", weights=tmp_path / "a.safetensors")


def test_a_plan_names_the_weights_of_every_member(tmp_path: Path) -> None:
    (tmp_path / "a.pt").touch()
    plan = tmp_path / "plan.toml"
    plan.write_text(f'[[run]]\nmodel = "ensemble:x.py:a+digits-robust"\nweights = "{tmp_path / "a.pt"}+"\n')
    assert read_plan(plan).runs[0].source.model == "ensemble:x.py:a+digits-robust"
    plan.write_text('[[run]]\nmodel = "probe:digits-robust"\nweights = "absent.pt"\n')
    with pytest.raises(InputError, match=r"no such file: absent\.pt"):
        read_plan(plan)


def test_probabilities_do_not_underflow() -> None:
    """Far apart: float32 probabilities would be 0 and 1, and every gradient with them."""
    x = torch.tensor([[0.0, 300.0, -300.0]], requires_grad=True)
    mean = Ensemble([lambda x: x, lambda x: x + 1], mean="probabilities")(x)
    torch.testing.assert_close(mean.detach(), torch.tensor([[-300.0, 0.0, -600.0]]))
    (gradient,) = torch.autograd.grad(mean[0, 2] - mean[0, 1], x)
    # Log-probabilities near -600 are 6e-5 apart, and the shares of the members are exponentials of their difference.
    torch.testing.assert_close(gradient, torch.tensor([[0.0, -1.0, 1.0]]), rtol=0, atol=1e-3)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("ensemble:digits-robust", "at least two"),
        ("ensemble:digits-robust+mnist-fast", "weights=FILE"),
        ("ensemble:digits-robust+nets.py:five", "differ in number of classes"),
        ("ensemble:digits-robust+nets.py:wide", "differ in input shape"),
    ],
)
def test_members_must_fit(text: str, sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "nets.py").write_text(
        "from torch import nn\n"
        "def net(pixels, classes, *shape):\n"
        "    made = nn.Sequential(nn.Flatten(), nn.Linear(pixels, classes)); made.input_shape = shape; return made\n"
        "def five(): return net(64, 5, 1, 8, 8)\n"
        "def wide(): return net(72, 10, 1, 8, 9)\n"
    )
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match=sentence):
        load_model(text)


def test_members_keep_their_own_normalisation(tmp_path: Path) -> None:
    name = f"hf:{save_hf(tmp_path / 'vit')}"
    x = images(3)
    torch.testing.assert_close(load_model(f"ensemble:{name}+{name}")(x), load_model(name)(x))
    with pytest.raises(InputError, match="leave out mean and std"):
        load_model(f"ensemble:{name}+{name}", mean=[0.5] * 3, std=[0.5] * 3)


# Probes


def test_probe_on_an_identity_is_linear(tmp_path: Path) -> None:
    head = layer(5)
    x = 0.5 + table() / 2
    y = head(x).argmax(dim=1)
    robust = robust_by_hand(head.weight, head.bias, x, y, 0.05)
    assert 5 < int(robust.sum()) < 55
    result = tmifpe.evaluate(Probe(nn.Identity(), head.weight, head.bias), (x, y), Threat("linf", 0.05), ATTACK)
    assert (result.outcomes.robust == robust.numpy()).all()

    (tmp_path / "same.py").write_text("from torch import nn\ndef make(): return nn.Identity()\n")
    save_file({f"fc.{name}": value for name, value in head.state_dict().items()}, tmp_path / "head.safetensors")
    np.savez(tmp_path / "t.npz", images=x.numpy(), labels=y.numpy())
    words = ["--weights", str(tmp_path / "head.safetensors"), "--data", f"npz:{tmp_path / 't.npz'}"]
    found = evaluated(f"probe:{tmp_path / 'same.py'}:make", *words, "--eps", "0.05", "--attack", ATTACK)
    assert found["robust_accuracy"] == pytest.approx(float(robust.double().mean()))


def test_backbones_lose_their_head(tmp_path: Path, clip_folder: Path) -> None:
    """The first token of a ViT, what timm pools, and the projected features of CLIP."""
    hf = transformers()
    timm = import_extra("timm", "this test", "timm", uses_torchvision=True)
    folder = save_hf(tmp_path / "vit", normalise=False)
    network = timm.create_model("test_vit", pretrained=False).eval()
    save_file(network.state_dict(), tmp_path / "timm.safetensors")
    vit, clip = hf.ViTModel.from_pretrained(folder).eval(), hf.CLIPModel.from_pretrained(clip_folder).eval()
    features: dict[str, tuple[str, tuple[int, ...], Callable[[Tensor], Tensor]]] = {
        f"hf:{folder}": ("", (3, 8, 8), lambda x: vit(x).last_hidden_state[:, 0]),
        f"clip:{clip_folder}": ("", (3, 8, 8), lambda x: clip.get_image_features(x).pooler_output),
        "timm:test_vit": (f"{tmp_path / 'timm.safetensors'}+", (3, 160, 160), lambda x: network.forward_head(
            network.forward_features(x), pre_logits=True)),
    }  # fmt: skip
    for name, (weights, shape, expected) in features.items():
        x = images(2, shape)
        neutral: dict[str, Any] = {"mean": [0.0] * 3, "std": [1.0] * 3}
        with torch.no_grad():
            wanted = expected(x)
        head = layer(0, 3, wanted.shape[1])
        save_file(head.state_dict(), tmp_path / "head.safetensors")
        classifier = load_model(f"probe:{name}", weights=f"{weights}{tmp_path / 'head.safetensors'}", **neutral)
        torch.testing.assert_close(classifier(x), head(wanted).detach(), rtol=1e-3, atol=1e-4, msg=name)


def test_probes_say_what_they_need(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="linear layer"):
        load_model("probe:digits-robust")
    save_file(nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 2)).state_dict(), tmp_path / "two.safetensors")
    with pytest.raises(InputError, match="must hold one linear layer"):
        load_model("probe:digits-robust", weights=tmp_path / "two.safetensors")
    save_file(nn.Linear(3, 2).state_dict(), tmp_path / "one.safetensors")
    with pytest.raises(InputError, match="takes 3 features, the backbone returns 10"):
        load_model("probe:digits-robust", weights=tmp_path / "one.safetensors")
    with pytest.raises(InputError, match=r"must return features \(n, d\), got dict"):
        Probe(lambda x: {"features": x}, torch.eye(2))(torch.zeros(1, 2))  # pyright: ignore[reportArgumentType]


# No images


@pytest.mark.parametrize("shape", [(12,), (3, 4)], ids=["tabular", "spectrogram"])
def test_rows_and_spectrograms_from_file_to_report(shape: tuple[int, ...], tmp_path: Path) -> None:
    """In a box of their own, by the exact margins of a linear model."""
    head = layer(5)
    x = table().reshape(-1, *shape)
    y = head(x.flatten(1)).argmax(dim=1)
    robust = robust_by_hand(head.weight, head.bias, x, y, 0.05)
    assert 5 < int(robust.sum()) < 55
    threat = Threat("linf", 0.05, -1, 1)
    result = tmifpe.evaluate(nn.Sequential(nn.Flatten(), head), (x, y), threat, ATTACK)
    assert (result.outcomes.robust == robust.numpy()).all()

    model = str(save_pt2(tmp_path / "net.pt2", head, example=x[:2])) if x.dim() == 2 else f"{tmp_path / 'net.py'}:net"
    (tmp_path / "net.py").write_text(
        "from pathlib import Path\nimport torch\nfrom torch import nn\n"
        "def net():\n"
        "    made = nn.Sequential(nn.Flatten(), nn.Linear(12, 4)); made.input_shape = (3, 4)\n"
        "    made[1].load_state_dict(torch.load(Path(__file__).with_name('w.pt'))); return made\n"
    )
    torch.save(head.state_dict(), tmp_path / "w.pt")
    np.savez(tmp_path / "t.npz", images=x.numpy(), labels=y.numpy())
    words = [model, "--data", f"npz:{tmp_path / 't.npz'}", "--box", "-1,1", "--eps", "0.05"]
    found = evaluated(*words, "--attack", ATTACK, "--save-adv", str(tmp_path / "adv.npz"))
    assert found["robust_accuracy"] == pytest.approx(float(robust.double().mean()))
    call("report", "latest", "--out", str(tmp_path / "r.html"), "--model", model)
    page = (tmp_path / "r.html").read_text()
    assert page.count("data:image/png") >= 3
    checked = call("verify", str(tmp_path / "adv.npz"), "--model", *words, "--json").stdout
    assert json.loads(checked)["robust_accuracy"] == pytest.approx(float(robust.double().mean()))


# Outputs that are no class per image


@pytest.mark.parametrize(
    ("output", "sentence"),
    [
        (torch.zeros(2, 21, 8, 8), r"segmentation.*`lambda x: model\(x\).mean\(\(2, 3\)\)`"),
        ({"out": torch.zeros(2, 21, 8, 8), "aux": torch.zeros(2, 21, 8, 8)}, "segmentation"),
        ({"logits": torch.zeros(2, 21, 8, 8)}, "segmentation"),
        ([{"boxes": torch.zeros(1, 4), "scores": torch.zeros(1)}] * 2, "boxes.*ground-truth"),
        ({"logits": torch.zeros(2, 100, 92), "pred_boxes": torch.zeros(2, 100, 4)}, "boxes.*ground-truth"),
    ],
    ids=["map", "torchvision", "transformers", "detection", "detr"],
)
def test_dense_outputs_say_what_they_would_need(output: Any, sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        as_logits(output, 2)


def test_boxes_beside_logits_are_left_aside() -> None:
    logits = torch.rand(2, 3)
    assert as_logits({"logits": logits, "boxes": torch.zeros(2, 4)}, 2) is logits


@pytest.mark.parametrize(
    ("labels", "sentence"),
    [
        (torch.zeros(4, 3, dtype=torch.long), "argmax.*multi-label"),
        (torch.zeros(4, 8, 8, dtype=torch.long), "per pixel"),
    ],
)
def test_labels_that_are_no_class_per_image(labels: Tensor, sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        tmifpe.evaluate(nn.Linear(3, 2), (torch.rand(4, 3), labels), Threat("linf", 0.1))


def test_multi_label_classifiers_are_refused(tmp_path: Path) -> None:
    folder = save_hf(tmp_path / "vit")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"problem_type": "multi_label_classification"}))
    with pytest.raises(InputError, match=r"multi-label.*rule of success over sets"):
        load_model(f"hf:{folder}")
