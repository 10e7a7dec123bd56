"""Every model source, on tiny models made here: logits, eval mode, frozen, normalisation inside, a stable identity."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch
from torch import nn

import tmifpe
from tests.model_files import MAKERS, images
from tmifpe.core.errors import InputError, MissingExtra
from tmifpe.core.types import Classifier
from tmifpe.data import as_data
from tmifpe.models import MODELS, check_compatible, load_model

STATED = [name for name in MODELS if name != "torchscript"]  # an archive that says nothing of its input


def shape_of(classifier: Classifier) -> tuple[int, ...]:
    return classifier.input_shape or (3, 8, 8)


@pytest.mark.parametrize("name", list(MODELS))
def test_contract(name: str, tmp_path: Path) -> None:
    """A new source must be given a maker; then all promises are checked by themselves."""
    text, options = MAKERS[name](tmp_path)
    before = torch.get_rng_state()
    classifier = load_model(text, **options)
    assert torch.equal(torch.get_rng_state(), before), "the caller's random stream was used"
    assert isinstance(classifier, Classifier)
    assert classifier.name == text
    module = classifier.module
    assert isinstance(module, nn.Module)
    assert not module.training
    # An exported graph keeps the mode it was exported in, whatever its flags say.
    assert name == "pt2" or not any(part.training for part in module.modules())
    assert not any(parameter.requires_grad for parameter in module.parameters())

    x = images(5, shape_of(classifier)).requires_grad_(True)
    logits = module(x)
    assert logits.shape == (5, classifier.classes or 5)
    (gradient,) = torch.autograd.grad(logits.sum(), x)
    assert gradient.isfinite().all()
    assert gradient.abs().sum() > 0
    one_by_one = torch.cat([module(image[None]) for image in x.detach()])
    torch.testing.assert_close(one_by_one, logits.detach(), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(module(x), logits, rtol=0, atol=0)
    assert load_model(text, **options).identity == classifier.identity


@pytest.mark.parametrize("name", STATED)
def test_sources_state_input_and_classes(name: str, tmp_path: Path) -> None:
    text, options = MAKERS[name](tmp_path)
    classifier = load_model(text, **options)
    assert classifier.input_shape is not None
    assert classifier.classes == classifier.module(images(2, classifier.input_shape)).shape[1]


@pytest.mark.parametrize("name", list(MODELS))
def test_mean_and_std_apply_to_every_source(name: str, tmp_path: Path) -> None:
    text, options = MAKERS[name](tmp_path)
    plain = load_model(text, **options)
    channels = shape_of(plain)[0]
    neutral = load_model(text, **options, mean=[0.0] * channels, std=[1.0] * channels)
    mean, std = [0.1, 0.2, 0.3][:channels], [0.5, 0.6, 0.7][:channels]
    given = load_model(text, **options, mean=mean, std=std)
    assert (given.mean, given.std) == (tuple(mean), tuple(std))
    x = images(3, shape_of(plain))
    shifted = (x - torch.tensor(mean).view(-1, 1, 1)) / torch.tensor(std).view(-1, 1, 1)
    torch.testing.assert_close(given.module(x), neutral.module(shifted), rtol=1e-4, atol=1e-5)
    assert len({plain.identity, neutral.identity, given.identity}) == 3


@pytest.mark.parametrize("name", STATED)
def test_other_data_is_refused_before_compute(name: str, tmp_path: Path) -> None:
    text, options = MAKERS[name](tmp_path)
    classifier = load_model(text, **options)
    c, h, w = shape_of(classifier)
    label = torch.zeros(2, dtype=torch.long)
    check_compatible(classifier, as_data((images(2, (c, h, w)), label)))
    other_sizes = () if classifier.resizes else ((c, h + 1, w), (c, h, w - 1))
    for wrong in ((4 - c, h, w), *other_sizes):
        with pytest.raises(InputError, match=f"takes images of shape {c}x{h}x{w}"):
            check_compatible(classifier, as_data((images(2, wrong), label)))
    too_high = torch.tensor([0, classifier.classes or 0])
    with pytest.raises(InputError, match="has only"):
        check_compatible(classifier, as_data((images(2, (c, h, w)), too_high)))


def test_a_model_that_states_nothing_is_shown_two_images(tmp_path: Path) -> None:
    text, _ = MAKERS["torchscript"](tmp_path)
    classifier = load_model(text)
    assert classifier.input_shape is None
    label = torch.zeros(2, dtype=torch.long)
    check_compatible(classifier, as_data((images(2), label)))
    for wrong in ((1, 8, 8), (3, 9, 9)):
        with pytest.raises(InputError, match="does not take images"):
            check_compatible(classifier, as_data((images(2, wrong), label)))
    with pytest.raises(InputError, match="label 7"):
        check_compatible(classifier, as_data((images(2), torch.tensor([0, 7]))))


def test_class_counts_must_agree() -> None:
    from tmifpe.data import load_data

    data = load_data("digits", limit=4)
    eleven = Classifier(nn.Sequential(nn.Flatten(), nn.Linear(64, 11)), "eleven", "x", 11, (1, 8, 8))
    with pytest.raises(InputError, match="11 classes, but digits has 10"):
        check_compatible(eleven, data)


@pytest.mark.parametrize(
    ("model", "sentence"),
    [
        (lambda x: x, r"must return logits \(2, classes\), got torch.float32 of shape"),
        (lambda x: "text", "got a str"),
        (lambda x: x.flatten(1)[:1], r"must return logits \(2, classes\)"),
        (lambda x: 1 / 0, "does not take images"),
    ],
)
def test_output_must_be_logits(model: object, sentence: str) -> None:
    classifier = Classifier(model, "odd", "x")  # pyright: ignore[reportArgumentType]
    with pytest.raises(InputError, match=sentence):
        check_compatible(classifier, as_data((images(2), torch.tensor([0, 1]))))


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("digits-robst", "did you mean 'digits-robust'"),
        ("nothing-like-it", "unknown model"),
        ("", "unknown model"),
        ("robustbnch:cifar10/Linf/X", "did you mean 'robustbench'"),
        ("absent.onnx", "no such file"),
        ("absent.pt2", "no such file"),
        ("absent.pt", "no such file"),
        ("weights.safetensors", "weights only"),
        ("mnist-fast", "weights=FILE"),
        ("no.such.module:make", "no module 'no'"),
        ("absent.py:make", "no such file"),
        ("factory.py:make", "no such file"),  # a file, not a misspelt `factory`
        ("timm:resnet81", "did you mean 'resnet1"),
        ("timm:", "needs a name"),
        ("timm:test_vit(colour=1)", "no option 'colour'"),
        ("timm:test_vit(num_classes=3)", "weights=FILE"),
        ("hf:", "needs a name"),
        ("hf:./nowhere", "no such folder"),
        ("robustbench:cifar10/Wong2020Fast", "robustbench:DATASET/THREAT/ID"),
        ("robustbench:cifr10/Linf/Wong2020Fast", "did you mean 'cifar10'"),
        ("robustbench:cifar10/Lnf/Wong2020Fast", "did you mean 'Linf'"),
        ("robustbench:cifar10/Linf/Wong2020Fsat", "did you mean 'Wong2020Fast'"),
    ],
)
def test_bad_names(text: str, sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match=sentence):
        load_model(text)


@pytest.mark.parametrize(
    ("name", "package", "extra"),
    [
        ("onnx", "onnx", "onnx"),
        ("onnx", "onnx2torch", "onnx"),
        ("timm", "timm", "timm"),
        ("hf", "transformers", "hf"),
        ("robustbench", "robustbench.utils", "robustbench"),
    ],
)
def test_missing_extra(name: str, package: str, extra: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text, options = MAKERS[name](tmp_path)
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingExtra, match=rf"pip install 'tmifpe\[{extra}\]'"):
        load_model(text, **options)


@pytest.mark.parametrize(
    ("mean", "std", "sentence"),
    [
        ([0.5], None, "together"),
        (None, [0.5], "together"),
        ([0.5, 0.5], [0.5], "one per channel"),
        ([0.5] * 3, [0.5] * 3, "1 channels"),
        ([0.5], [0.0], "positive"),
        ([0.5], [-1.0], "positive"),
        ([float("nan")], [1.0], "finite"),
        ([0.5], [float("inf")], "finite"),
        (["a"], [1.0], "numbers"),
        ([], [], "one per channel"),
    ],
)
def test_bad_normalisation(mean: list[float] | None, std: list[float] | None, sentence: str, tmp_path: Path) -> None:
    text, options = MAKERS["mnist-fast"](tmp_path)
    with pytest.raises(InputError, match=sentence):
        load_model(text, **options, mean=mean, std=std)


@pytest.mark.parametrize("device", ["nonsense", "cuda:99"])
def test_bad_device(device: str, tmp_path: Path) -> None:
    text, options = MAKERS["mnist-fast"](tmp_path)
    with pytest.raises(InputError, match="cannot use device"):
        load_model(text, **options, device=device)


@pytest.mark.parametrize("name", ["digits-robust", "digits-distilled"])
def test_bundled_weights_load(name: str) -> None:
    assert load_model(name).classes == 10


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16])
def test_normalisation_follows_the_dtype_of_the_images(dtype: torch.dtype) -> None:
    from tmifpe.models import Normalize

    x = images(2).to(dtype)
    assert Normalize(lambda z: z.flatten(1), (0.5,) * 3, (0.25,) * 3)(x).dtype == dtype


def test_names_that_stand_alone_take_nothing_after_a_colon():
    with pytest.raises(InputError, match="nothing after a colon"):
        tmifpe.load_model("digits-robust:mine.safetensors")
    with pytest.raises(InputError, match=r"m\.py:FUNCTION"):
        tmifpe.load_model("m.py")
