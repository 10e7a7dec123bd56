"""Every flag has a model that must raise it and one, as similar as can be, that must not."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.masked import (
    Corners,
    Dropping,
    Honest,
    Named,
    Normed,
    Remembering,
    Remote,
    Wrapped,
    cancelling,
    drop,
    images,
    killed,
    noise,
    overflowing,
    purify,
    quantise,
    recentred,
    shatter,
    straight_through,
)
from tests.test_early_exit import SLOW as SMALL_STEPS
from tests.test_early_exit import on_the_cliff
from tmifpe import PGD, Result, Threat, evaluate, load_data, load_model
from tmifpe.attacks import bim, fgsm
from tmifpe.checks.attack import check_monotone
from tmifpe.checks.flags import FLAGS
from tmifpe.losses import LOSSES
from tmifpe.models.normalize import Normalize

EPS = 0.05
SIDE = images()[0].numel() ** 0.5  # of the box, corner to corner
NORM = ((0.1307,), (0.3081,))
OUTSIDE = "found-from-outside"


@dataclass
class Case:
    """An evaluation in small: the model on the honest model's labels, unless others are given."""

    model: Any = field(default_factory=Honest)
    attack: Any = field(default_factory=lambda: PGD(steps=10))
    eps: float = EPS
    norm: str = "linf"
    box: tuple[float, float] = (0.0, 1.0)
    x: Tensor = field(default_factory=images)
    labels: Tensor | None = None
    options: dict[str, Any] = field(default_factory=dict)

    def run(self) -> Result:
        labels = Honest()(self.x).argmax(dim=1) if self.labels is None else self.labels
        threat = Threat(self.norm, self.eps, *self.box)
        return evaluate(self.model, (self.x, labels), threat, self.attack, **self.options)


OWN = [*LOSSES]  # without those that tests of other files have registered by the time these run


def names(case: Case | Sequence[Case]) -> set[str]:
    if isinstance(case, Case):
        return {flag.name for flag in case.run().flags}
    return {flag.name for flag in check_monotone([one.run() for one in case])}


def cliff(**options: Any) -> Case:
    """Every example breaks, long after early exit has predicted otherwise."""
    model, (x, y), threat = on_the_cliff()
    return Case(model, SMALL_STEPS, threat.eps, x=x, labels=y, options=options)


def labelled(by: nn.Module, wrong: int = 0, model: nn.Module | None = None) -> Case:
    """A model on the predictions of another (or its own), of which some are made wrong."""
    labels = by(images()).argmax(dim=1)
    labels[:wrong] = (labels[:wrong] + 1) % 4
    return Case(model or by, labels=labels)


def normalised() -> nn.Module:
    return Normalize(Wrapped(lambda u: 0.3081 * u + 0.1307), *NORM)


def two(classes: int) -> Case:
    return labelled(Honest(classes))


def transferred(model: nn.Module) -> Case:
    """With examples that break the honest model, made on it."""
    x, y = images(), Honest()(images()).argmax(dim=1)
    adv = PGD(steps=10)(Honest(), x, y, Threat("linf", EPS))
    return Case(model, options={"transfer_adv": adv})


def remote(eps: float, **options: Any) -> Case:
    grey = 0.5 + 0.5 * (images() - 0.5)
    attacks = options.pop("attacks", PGD(steps=50))
    labels = torch.zeros(24, dtype=torch.long)
    return Case(Remote(), attacks, eps, "l2", x=grey, labels=labels, options=options)


def boxed(low: float, high: float, **options: Any) -> Case:
    """The honest model on the honest images, moved to another box."""
    model = Wrapped(lambda x: (x - low) / (high - low))
    x = low + (high - low) * images()
    return Case(model, x=x, box=(low, high), labels=model(x).argmax(dim=1), **{"eps": EPS * (high - low), **options})


def right_sign(logits: Tensor, labels: Tensor, targets: Tensor | None) -> Tensor:
    away = F.cross_entropy(logits, labels, reduction="none")
    return away if targets is None else -F.cross_entropy(logits, targets, reduction="none")


def wrong_sign(logits: Tensor, labels: Tensor, targets: Tensor | None) -> Tensor:
    """The commonest mistake in a loss of one's own."""
    return -right_sign(logits, labels, targets)


def turned(x: Tensor) -> Tensor:
    """A backward pass that turns every other pixel's gradient."""
    if x.requires_grad:
        x = x + 0.0
        x.register_hook(lambda grad: grad * (2 * torch.arange(4.0).remainder(2) - 1))
    return x


WEAK = PGD(steps=1, step_size=1e-3, random_start=False)
SLOW = PGD(loss="cw", steps=10, step_size=0.02, schedule="constant", momentum=0.0, random_start=False)

RAISING: dict[str, list[Callable[[], Case | list[Case]]]] = {
    "large-eps": [lambda: Case(eps=8.0), lambda: Case(eps=0.5), lambda: Case(norm="l2", eps=SIDE / 2)],
    "small-eps": [lambda: boxed(0, 255, eps=8 / 255), lambda: boxed(0, 255, eps=0.5, norm="l2")],
    "small-steps": [
        lambda: Case(attack=PGD(step_size=2 / 255)),
        lambda: Case(attack=[PGD(steps=5), PGD("cw", steps=5, step_size=0.01, random_start=False)]),
    ],
    "early-exit-wrong": [lambda: cliff()],
    "loss-lowers-margin": [
        lambda: Case(attack=PGD(loss=wrong_sign, steps=5)),
        lambda: Case(attack=[PGD(steps=5), PGD(loss=wrong_sign, steps=5)]),
        lambda: Case(attack=PGD(loss=wrong_sign, steps=5), options={"targets": "second"}),
    ],
    "randomised": [lambda: Case(Wrapped(noise)), lambda: Case(lambda x: Honest()(noise(x)))],
    "dropout-active": [lambda: Case(Wrapped(drop)), lambda: Case(Dropping().train().forward)],
    "batch-dependent": [
        lambda: Case(Normed(train=True)),
        lambda: Case(Wrapped(after=recentred)),
        lambda: Case(Wrapped(after=recentred), x=images(1)),
        lambda: Case(Wrapped(after=recentred), options={"batch_size": 5}),
    ],
    "remembers-images": [
        lambda: Case(Remembering(lambda x: (x.data_ptr(), x.shape))),
        lambda: Case(Remembering(lambda x: (id(x), x.shape))),
    ],
    "probabilities": [lambda: Case(Wrapped(after=lambda z: z.softmax(dim=1)))],
    "inference-time-optimisation": [lambda: Case(Wrapped(purify))],
    "too-few-classes": [lambda: two(2)],
    "part-of-box": [
        lambda: Case(x=images() / 255),  # divided by 255 twice
        lambda: Case(box=(-1.0, 1.0)),  # in [0, 1]
        lambda: Case(box=(0.0, 255.0)),
        lambda: Case(x=0.5 + 0.05 * images()),
    ],
    "normalisation": [
        lambda: labelled(normalised(), model=Wrapped(lambda u: 0.3081 * u + 0.1307)),  # forgotten
        lambda: labelled(Honest(), model=Normalize(Honest(), *NORM)),  # given, though the model needs none
        lambda: Case(x=255 * images(), box=(0.0, 255.0), eps=12.75, labels=Honest()(images()).argmax(dim=1)),
    ],
    "saturated-logits": [
        lambda: Case(Honest(scale=1e4)),
        lambda: Case(Wrapped(after=lambda z: z + 1e6)),
        lambda: Case(Honest(scale=1e3), options={"precision": "fp16"}),
    ],
    "gradient-lost": [
        lambda: Case(Honest(scale=1e4), PGD(loss="ce", steps=10)),
        lambda: Case(Honest(scale=50), PGD(loss="ce", steps=10)),  # only the label's share is gone
        lambda: Case(Honest(scale=1e4), "gama(steps=10)"),
    ],
    "unavailable-gradients": [
        lambda: Case(Wrapped(quantise)),
        lambda: Case(Wrapped(lambda x: x.detach())),
        lambda: Case(Wrapped(after=lambda z: torch.sqrt((z - z).abs()) + z)),  # NaN on the way back
    ],
    "gradient-dies": [
        lambda: Case(killed("quantise")),
        lambda: Case(killed("shatter")),
        lambda: Case(Wrapped(quantise)),  # in the forward pass of the model itself
    ],
    "gradient-disagrees": [
        lambda: Case(Wrapped(shatter)),
        lambda: Case(Wrapped(turned)),
        lambda: Case(Wrapped(turned), norm="l2", eps=0.3),
        lambda: Case(Wrapped(shatter), norm="l1", eps=1.0),
    ],
    "behaves-differently": [lambda: Case(Wrapped(lambda x: x.flip(-1) if x.requires_grad else x))],
    "chance-accuracy": [lambda: Case(labels=torch.arange(24) % 4)],
    "zero-gradients": [
        lambda: Case(Wrapped(quantise)),
        lambda: Case(Honest(scale=1e4), PGD(loss="ce", steps=10)),
    ],
    "unusable-logits": [lambda: Case(Wrapped(overflowing), eps=0.2)],
    "unstable-predictions": [lambda: Case(Wrapped(shatter)), lambda: Case(Wrapped(shatter), norm="l2", eps=0.1)],
    "silent-success": [lambda: Case(Wrapped(noise), PGD(steps=3), eps=0.01)],
    "incomplete-optimisation": [lambda: Case(attack=SLOW), lambda: Case(attack=fgsm(step_size=0.1))],
    "transfer-failure": [
        lambda: transferred(Wrapped(quantise)),
        lambda: Case(Wrapped(quantise), options={"from_model": Honest(), "checks": False}),
    ],
    "spot-check": [lambda: Case(attack=WEAK, options={"spot_check": "8:cw", "checks": False})],
    "unconstrained-failure": [
        lambda: Case(Wrapped(quantise)),
        lambda: Case(Wrapped(quantise), norm="l2"),
        lambda: Case(Wrapped(after=lambda z: 0 * z + torch.eye(4)[0]), labels=torch.zeros(24, dtype=torch.long)),
    ],
    "found-from-outside": [
        lambda: remote(0.3),
        lambda: remote(0.3, attacks=[PGD(steps=50), Corners(steps=20)]),
        lambda: remote(0.3, mode="strongest", precision="fp64"),
    ],
    "black-box-beats-white-box": [lambda: Case(Wrapped(quantise), [PGD(steps=5), Corners(steps=40)], eps=0.1)],
    "non-monotone-eps": [lambda: [Case(eps=0.04), Case(eps=0.05, attack=WEAK)]],
    "fragile": [lambda: Case(Wrapped(after=cancelling, inner=Honest(scale=5)), options={"verify": "float64"})],
}

QUIET: dict[str, list[Callable[[], Case | list[Case]]]] = {
    "early-exit-wrong": [lambda: cliff(early_exit=False), lambda: Case(attack=PGD(steps=60), eps=1e-3)],
    "large-eps": [lambda: Case(eps=0.49), lambda: Case(norm="l2", eps=0.45 * SIDE)],
    "small-eps": [
        lambda: Case(eps=1e-4),
        lambda: boxed(0, 255, eps=8),
        lambda: boxed(-1, 1, eps=8 / 255),
        lambda: boxed(0, 255, norm="l2"),
    ],
    "small-steps": [
        lambda: Case(attack=PGD(step_size=2 / 255, steps=300)),
        lambda: Case(attack=bim(steps=49)),
        lambda: Case(attack=PGD(step_size=0.25)),
        lambda: Case(attack=PGD(step_size=0.01), eps=0.0),
    ],
    "loss-lowers-margin": [
        lambda: Case(attack=PGD(loss=right_sign, steps=5)),
        lambda: Case(attack=PGD(loss=right_sign, steps=5), options={"targets": "second"}),
        lambda: Case(Honest(scale=1e4), [PGD(loss=name, steps=1) for name in OWN], norm="l2"),
        lambda: Case(attack="full"),
    ],
    "randomised": [
        lambda: Case(),
        lambda: Case(options={"precision": "bf16"}),
        lambda: Case(Wrapped(after=lambda z: z * (1 + 1e-6 * torch.randn_like(z)))),  # as atomic additions on a GPU do
        lambda: Case(Wrapped(noise), options={"eot": 4, "repeats": 3}),  # known, and allowed for
    ],
    "dropout-active": [lambda: Case(Dropping().train()), lambda: Case(Wrapped(noise))],
    "batch-dependent": [
        lambda: Case(Normed(train=False)),
        lambda: Case(Wrapped(noise)),
        lambda: Case(options={"precision": "fp16"}),
    ],
    "remembers-images": [
        lambda: Case(Remembering(lambda x: tuple(x.flatten().tolist()))),  # by content
        lambda: Case(Wrapped(noise)),
        lambda: Case(x=images(1)),
    ],
    "probabilities": [
        lambda: Case(Wrapped(after=lambda z: z.log_softmax(dim=1))),
        lambda: Case(Wrapped(after=torch.relu)),
    ],
    "inference-time-optimisation": [lambda: Case(Wrapped(torch.enable_grad()(lambda x: x * 1.0)))],
    "too-few-classes": [lambda: two(3)],
    "part-of-box": [lambda: Case(), lambda: boxed(-1, 1), lambda: boxed(0, 255), lambda: remote(0.1)],
    "normalisation": [
        lambda: boxed(0, 255),
        lambda: labelled(normalised(), wrong=6),
        lambda: labelled(Honest(), wrong=6),
        lambda: Case(labels=torch.arange(24) % 4),  # bad, but no normalisation makes it better
    ],
    "saturated-logits": [lambda: Case(Honest(scale=10)), lambda: Case(Wrapped(after=lambda z: z + 100))],
    "gradient-lost": [
        lambda: Case(Honest(scale=1e4)),
        lambda: Case(Honest(scale=50), PGD(loss="ce-margin", steps=10)),
        lambda: Case(Honest(scale=1e4), [PGD(loss="ce", steps=5), PGD(steps=5)]),  # the second one sees
        lambda: Case(Wrapped(quantise)),  # that is another flag
    ],
    "unavailable-gradients": [
        lambda: Case(Wrapped(straight_through)),
        lambda: Case(Honest(scale=1e4), PGD(loss="ce", steps=10)),  # that is another flag
        lambda: Case(Wrapped(quantise), Corners(steps=5)),  # none is needed
    ],
    "gradient-dies": [
        lambda: Case(Wrapped(Named(straight_through))),
        lambda: Case(killed("quantise"), options={"straight_through": "before"}),  # known, and passed
        lambda: Case(killed("quantise"), Corners(steps=5)),  # none is needed
    ],
    "gradient-disagrees": [
        lambda: Case(),
        lambda: Case(norm="l2", eps=0.3),
        lambda: Case(norm="l1", eps=1.0),
        lambda: Case(Wrapped(quantise)),  # has none at all
        lambda: Case(Wrapped(noise)),  # disagrees with itself
    ],
    "behaves-differently": [lambda: Case(), lambda: Case(Wrapped(lambda x: x.clone() if x.requires_grad else x))],
    "chance-accuracy": [lambda: Case(), lambda: labelled(Honest(), wrong=8), lambda: Case(x=images(1))],
    "zero-gradients": [
        lambda: Case(Wrapped(straight_through)),
        lambda: Case(Honest(scale=1e4)),
        lambda: Case(Honest(scale=1e4), [PGD(loss="ce", steps=5), PGD(steps=30)], eps=0.2),
    ],
    "unusable-logits": [lambda: Case(Wrapped(overflowing), eps=0.02)],
    "unstable-predictions": [lambda: Case(), lambda: Case(eps=0.0), lambda: Case(Honest(scale=1e4))],
    "silent-success": [lambda: Case(Wrapped(straight_through)), lambda: Case(options={"targets": "second"})],
    "incomplete-optimisation": [lambda: Case(), lambda: Case(attack=SLOW, eps=0.0)],
    "transfer-failure": [
        lambda: transferred(Honest()),
        lambda: Case(options={"from_model": Wrapped(quantise), "checks": False}),
    ],
    "spot-check": [lambda: Case(options={"spot_check": "8:cw", "checks": False})],
    "unconstrained-failure": [lambda: Case(), lambda: Case(norm="l2"), lambda: Case(attack=fgsm())],
    "found-from-outside": [
        lambda: Case(),
        lambda: Case(norm="l2"),
        lambda: Case(norm="l2", eps=0.0),
        lambda: Case(norm="l2", eps=5.0),  # the whole box already
        lambda: Case(Wrapped(noise), PGD(steps=2), eps=1e-4),  # broken by the next draw, not by an attack
        lambda: Case(Wrapped(noise), PGD(steps=2), eps=1e-4, options={"eot": 8, "repeats": 3}),
        lambda: remote(0.1),  # nothing to be found there
        lambda: Case(Wrapped(quantise), Corners(steps=5)),  # no gradient attack to lead in
    ],
    "black-box-beats-white-box": [
        lambda: Case(attack=[PGD(steps=10), Corners(steps=40)], eps=0.1),
        lambda: Case(Wrapped(quantise), [Corners(steps=40), PGD(steps=5)], eps=0.1),
    ],
    "non-monotone-eps": [lambda: [Case(eps=0.1), Case(eps=0.02), Case(eps=0.05)]],
    "fragile": [lambda: Case(options={"verify": "float64"})],
}


def table(cases: dict[str, list[Callable[[], Any]]]) -> list[Any]:
    return [pytest.param(name, make, id=f"{name}-{k}") for name, makes in cases.items() for k, make in enumerate(makes)]


@pytest.fixture(autouse=True)
def _other_flags(request: pytest.FixtureRequest) -> None:
    """A test of one flag, which is another one than `found-from-outside`."""
    if getattr(request.node, "callspec", None) and request.node.callspec.params.get("name", OUTSIDE) != OUTSIDE:
        request.getfixturevalue("not_led_in")


@pytest.mark.parametrize(("name", "make"), table(RAISING))
def test_raised(name: str, make: Callable[[], Case]) -> None:
    assert name in names(make())


@pytest.mark.parametrize(("name", "make"), table(QUIET))
def test_not_raised(name: str, make: Callable[[], Case]) -> None:
    assert name not in names(make())


def test_every_flag_has_both() -> None:
    assert set(RAISING) == set(QUIET) == set(FLAGS)


@pytest.mark.parametrize("norm", ["linf", "l2"])
@pytest.mark.parametrize("targets", [None, "second"])
@pytest.mark.parametrize("mode", [pytest.param("verdict", marks=pytest.mark.numerical), "strongest"])
def test_an_honest_model_raises_none(norm: str, targets: str | None, mode: str) -> None:
    assert names(Case(norm=norm, options={"targets": targets, "mode": mode})) == set()


def test_what_only_an_attack_from_outside_finds_raises_nothing_else() -> None:
    assert names(remote(0.3)) == {"found-from-outside", "black-box-beats-white-box"}  # the probe needs no gradient
    assert remote(0.3).run().robust_accuracy > 0.9


@pytest.mark.parametrize(("norm", "eps", "raised"), [("l2", 2.0, True), ("linf", 0.3, False)])
def test_fast_at_at_l2_is_not_called_robust_without_a_word(shared: Path, norm: str, eps: float, raised: bool) -> None:
    # At L2 2.0 every gradient loss leaves 78 % or more standing, AutoAttack 4 %: docs/reading-table1.md.
    model = load_model("mnist-fast", weights=shared / "models/mnist_fast_at.pth")
    result = evaluate(model, load_data(f"mnist:{shared / 'data/mnist'}", limit=40), Threat(norm, eps), PGD())
    assert result.robust_accuracy > 0.75
    assert ("found-from-outside" in {flag.name for flag in result.flags}) == raised


def test_a_real_model_without_its_normalisation_is_noticed(shared: Path) -> None:
    data = load_data(f"npz:{shared / 'data/cifar10/test_first_846.npz'}", limit=64)
    for mean, std, raised in (None, None, True), ((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616), False):
        model = load_model(str(shared / "models/cifar10_resnet2b.onnx"), mean=mean, std=std)
        result = evaluate(model, data, Threat("linf", 0.0), PGD(steps=1))
        assert ("normalisation" in {flag.name for flag in result.flags}) == raised
        assert (result.clean_accuracy > 0.5) != raised


def test_flags_say_what_was_seen_and_what_to_do() -> None:
    for flag in Case(Wrapped(quantise)).run().flags:
        assert any(c.isdigit() for c in flag.seen)
        assert flag.advice.endswith(".")


def test_the_page_has_a_paragraph_on_each() -> None:
    page = (Path(__file__).parent.parent / "docs" / "flags.md").read_text(encoding="utf-8")
    sections = [section.partition("\n") for section in page.split("\n### ")[1:]]
    assert [title for title, _, _ in sections] == list(FLAGS)
    for title, _, text in sections:
        assert len(text.split()) > 40, title
