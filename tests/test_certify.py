"""Certificates: right where the answer is known, refused where no bounds are, and never contradicted by an attack."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable
from fractions import Fraction

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from typer.testing import CliRunner

import tmifpe
from tests.linear import Linear, distance, examples
from tests.test_attacks_contract import SHORT
from tmifpe import PGD, InputError, Threat, certified_radius, certify
from tmifpe.attacks import ATTACKS
from tmifpe.certificates.certifier import Certifier
from tmifpe.certificates.trace import trace
from tmifpe.cli import app
from tmifpe.core.errors import InternalError
from tmifpe.models.fixed_batch import FixedBatch
from tmifpe.store import Store
from tmifpe.store.export import outcomes_file

LINF = Threat("linf", 0.05)


@pytest.fixture
def small() -> tuple[nn.Sequential, Tensor, Tensor]:
    """A network with one hidden layer, and images labelled as it sees them."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(1, 3, 3), nn.ReLU(), nn.Flatten(), nn.Linear(12, 4)).eval()
    x = torch.rand(9, 1, 4, 4)
    with torch.no_grad():  # every class is somebody's
        model[3].weight *= 5
        model[3].bias -= model(x).mean(dim=0)
    return model, x, model(x).detach().argmax(dim=1)


@pytest.mark.numerical
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_the_radius_of_a_linear_model_is_its_distance(dtype: torch.dtype) -> None:
    """Less one step of the bisection and what is allowed for rounding: 2^-23 of the box, and 22 roundings of each of
    two logits, whose terms add up to at most 60 here, over a slope of at least 1."""
    model = Linear(4, dtype=dtype)
    x, labels = examples(model, 12)
    exact, _ = distance(model.double(), x.double(), labels, "linf")
    found = certified_radius(model.to(dtype), x, labels, Threat("linf", 0.25), steps=12)
    rounding = 2 * 22 * 60 * torch.finfo(dtype).eps + torch.finfo(dtype).eps
    assert bool((found <= exact).all())
    assert bool((found >= exact - 0.25 / 2**12 - rounding).all())


WITH_NUMBERS: dict[str, Callable[[Tensor], Tensor]] = {
    "times": lambda z: 0.1 * z,
    "over": lambda z: z / 0.3,
    "plus": lambda z: z + 0.1,
    "minus": lambda z: z - 0.1,
    "from": lambda z: 0.7 - z,
    "with alpha": lambda z: torch.add(z, z, alpha=0.3),
    "leaky": lambda z: F.leaky_relu(z, 0.1),
    "clamp": lambda z: z.clamp(-10.1, 10.3),
    "BatchNorm": lambda z: F.batch_norm(z, torch.zeros(3, dtype=z.dtype), torch.ones(3, dtype=z.dtype), eps=0.1),
}


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("operation", WITH_NUMBERS)
def test_numbers_are_what_the_model_makes_of_them(operation: str, dtype: torch.dtype) -> None:
    """In float64 0.1 is not what float32 has for it."""
    generator = torch.Generator().manual_seed(0)
    model = nn.Linear(4, 3)
    model.weight.data = torch.randn(3, 4, generator=generator)
    model.bias.data = torch.zeros(3)
    model.to(dtype)
    x = torch.rand(5, 1, 2, 2, generator=generator).to(dtype)

    class Network(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, x: Tensor) -> Tensor:
            return WITH_NUMBERS[operation](self.model(x.flatten(1)))

    y = Network()(x).argmax(dim=1)
    assert bool(certify(Network(), x, y, Threat("linf", 1e-4)).certified.all())


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_the_ball_is_rounded_outwards(dtype: torch.dtype) -> None:
    """Its corners, in real arithmetic, and those of what an attack may return lie in the region of the bounds."""
    x = torch.rand(200, 1, 1, 1, dtype=dtype, generator=torch.Generator().manual_seed(0)) / 2 + 0.25
    radii = torch.rand(200, dtype=torch.float64, generator=torch.Generator().manual_seed(1)) / 8
    model = nn.Sequential(nn.Flatten(), nn.Linear(1, 2)).to(dtype)
    region = Certifier.of(model, x[:1], Threat("linf", 0.1))._region(x, radii)
    slack = Fraction(torch.finfo(dtype).eps)
    ends = (x.double(), radii, region.low, region.high)
    for centre, radius, low, high in zip(*(end.flatten().tolist() for end in ends), strict=True):
        assert Fraction(low) <= Fraction(centre) - Fraction(radius) - slack
        assert Fraction(high) >= Fraction(centre) + Fraction(radius) + slack


def test_a_row_has_its_own_radius_and_no_company(small) -> None:
    """A bound is a function of the row; batches may round it differently, by less than is allowed for."""
    model, x, labels = small
    eps = torch.linspace(0, 0.2, len(x), dtype=torch.float64)
    together = certify(model, x, labels, LINF, eps=eps)
    alone = [certify(model, x[i : i + 1], labels[i : i + 1], Threat("linf", float(eps[i]))) for i in range(len(x))]
    torch.testing.assert_close(together.margin_bound, torch.cat([one.margin_bound for one in alone]), rtol=0, atol=1e-9)
    pairs = certify(model, x, labels, LINF, eps=eps, batch_size=2)
    torch.testing.assert_close(pairs.margin_bound, together.margin_bound, rtol=0, atol=1e-9)
    assert torch.equal(together.eps, eps)
    assert bool(together.certified[0])


def test_a_radius_of_zero_and_one_beyond_the_box(small) -> None:
    model, x, labels = small
    assert bool(certify(model, x, labels, Threat("linf", 0.0)).certified.all())
    assert bool((certify(model, x, (labels + 1) % 4, Threat("linf", 0.0)).margin_bound > 0).all())
    assert not bool(certify(model, x, labels, Threat("linf", 3.0)).certified.any())
    assert certified_radius(model, x, labels, Threat("linf", 0.0)).tolist() == [0.0] * len(x)


def test_nothing_is_proved_where_float32_may_overflow() -> None:
    """In real arithmetic the first logit is the larger one, 0.5e38 times; in float32 both are infinite."""
    model = nn.Sequential(nn.Flatten(), nn.Linear(1, 1, bias=False), nn.Linear(1, 2, bias=False))
    model[1].weight.data.fill_(1e30)
    model[2].weight.data.copy_(torch.tensor([[1e8], [0.5e8]]))
    x, labels = torch.full((1, 1, 1, 1), 0.99), torch.tensor([0])
    assert bool(certify(model, x * 1e-4, labels, Threat("linf", 0.0)).certified.all())
    assert not bool(certify(model, x, labels, Threat("linf", 0.0)).certified.any())


def test_a_model_comes_back_in_its_modes() -> None:
    model = nn.Sequential(nn.Flatten(), nn.BatchNorm1d(4), nn.Dropout(0.9), nn.Linear(4, 2)).train()
    model[1].eval()
    x = torch.rand(2, 1, 2, 2)
    before = [tensor.clone() for tensor in model.state_dict().values()]
    with torch.inference_mode():
        certify(model, x, torch.tensor([0, 1]), LINF)
    assert [layer.training for layer in model] == [True, False, True, True]
    assert all(torch.equal(a, b) for a, b in zip(before, model.state_dict().values(), strict=True))


class Asks(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.flatten(1)[:, :3] if x.mean() > 0.5 else x.flatten(1)[:, 1:]


class Counts(nn.Module):
    seen = 0

    def forward(self, x: Tensor) -> Tensor:
        self.seen += 1
        return x.flatten(1) * self.seen


class Compares(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.flatten(1) - x.flatten(1).mean(dim=0)


@pytest.mark.parametrize(
    ("model", "words"),
    [
        (nn.Sequential(nn.Flatten(), nn.Sequential(nn.Linear(4, 4), nn.GELU())), r"gelu \(layer '1.1', GELU\)"),
        (nn.Sequential(nn.Flatten(), nn.Linear(4, 4), nn.Softmax(dim=1)), r"softmax \(layer '2', Softmax\)"),
        (
            lambda x: x.flatten(1) * x.flatten(1),
            "multiplies or divides by something that depends on the image",
        ),
        (nn.Sequential(nn.MaxPool2d(2, ceil_mode=True), nn.Flatten()), "rounds its size up"),
        (Asks(), "cannot be traced"),
        (Counts(), "differ from those of the traced network"),
        (Compares(), "mixes images of a batch"),
        (nn.Linear(4, 3).bfloat16(), "float32 or float64"),
    ],
)
def test_a_model_without_bounds_is_refused_in_a_sentence(model, words: str) -> None:
    with pytest.raises(InputError, match=words) as raised:
        certify(model, torch.rand(2, 1, 2, 2), torch.tensor([0, 1]), LINF)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"threat": Threat("l2", 0.1)}, "for the norm linf"),
        ({"threat": 0.1}, "must be a Threat"),
        ({"x": torch.full((2, 1, 2, 2), 1.5)}, r"must lie in \[0, 1\] but reach from 1.5 to 1.5"),
        ({"x": torch.zeros(0, 1, 2, 2)}, "at least one"),
        ({"y": torch.tensor([0])}, "2 labels"),
        ({"y": torch.tensor([0, 3])}, "classes from 0 to 2"),
        ({"eps": [0.1]}, "2 radii"),
        ({"eps": [0.1, -0.1]}, "not negative"),
        ({"batch_size": 0}, "batch_size"),
    ],
)
def test_bad_requests(change, words: str) -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(4, 3))
    asked = {"x": torch.rand(2, 1, 2, 2), "y": torch.tensor([0, 1]), "threat": LINF} | change
    with pytest.raises(InputError, match=words):
        certify(model, **asked)


def test_exported_and_fixed_batch_networks(small) -> None:
    model, x, labels = small
    exported = torch.export.export(model, (torch.zeros(1, 1, 4, 4),)).module()
    plain = certify(model, x, labels, LINF).margin_bound
    found = Certifier.of(FixedBatch(exported, 1), x[:1], LINF).margin_bounds(x, labels, torch.full((len(x),), LINF.eps))
    torch.testing.assert_close(found, plain, rtol=0, atol=1e-6)  # a radius in float32 here, in float64 there


def test_an_onnx_network_is_traced(shared) -> None:
    name = str(shared / "models/cifar10_resnet2b.onnx")
    classifier = tmifpe.load_model(name, mean=(0.4914, 0.4822, 0.4465), std=(0.2471, 0.2435, 0.2616))
    x = torch.rand(2, 3, 32, 32)
    network = trace(classifier.module, x[:1])
    # Both are the same sums in float32 and float64; logits are below 20, and no layer adds up more than 1200 terms.
    torch.testing.assert_close(network(x.double()).float(), classifier.module(x), rtol=0, atol=1e-3)


def test_no_attack_contradicts_a_certificate(robust_digits) -> None:
    model, x, labels = robust_digits
    x, labels = x[:6], labels[:6]
    found = certify(model, x, labels, Threat("linf", 0.03))
    assert bool(found.certified.any())
    for attack in ("fgsm", PGD("ce", steps=20), PGD(steps=20), "gama(steps=20)"):
        result = tmifpe.evaluate(model, (x, labels), Threat("linf", 0.03), attack, checks=False, mode="strongest")
        assert not (found.certified.numpy() & result.outcomes.fooled).any()
        assert (result.outcomes.margin <= found.margin_bound.numpy()).all()


# AutoAttack is an extra and long, ddn knows l2 only.
@pytest.mark.parametrize("name", [name for name in ATTACKS if name not in {"autoattack", "ddn"}])
def test_no_attack_of_the_catalogue_contradicts_a_certificate(name: str, small) -> None:
    model, x, labels = small
    threat = Threat("linf", 0.05)
    found = certify(model, x, labels, threat).certified.numpy()
    assert 0 < found.sum() < len(x), "some are certified, not all"
    result = tmifpe.evaluate(model, (x, labels), threat, SHORT.get(name, name), checks=False)
    assert not (found & result.outcomes.fooled).any()


class TestEvaluate:
    def test_certified_robust_attacked(self, small, tmp_path) -> None:
        """Stored, returned, resumed and exported; without certificates the run is another one."""
        model, x, labels = small
        labels = labels.clone()
        labels[0] = (labels[0] + 1) % 4
        options = {"checks": False, "store": tmp_path, "shard_size": 4}
        attack = PGD("ce", steps=10)
        plain = tmifpe.evaluate(model, (x, labels), LINF, attack, **options)
        assert (plain.certified, plain.certified_accuracy) == (None, None)
        assert set(plain.outcomes.certified) == {-1}
        result = tmifpe.evaluate(model, (x, labels), LINF, attack, certify=True, **options)
        assert result.resumed == 0
        expected, bounds = certify(model, x, labels, LINF), result.outcomes.margin_bound
        np.testing.assert_array_equal(result.outcomes.certified[1:], expected.certified[1:].numpy())
        np.testing.assert_allclose(bounds[1:], expected.margin_bound[1:].numpy(), rtol=0, atol=1e-9)
        assert (result.outcomes.certified[0], bounds[0]) == (0, np.inf), "misclassified to begin with"
        assert 0 < result.certified_accuracy <= result.robust_accuracy
        again = tmifpe.evaluate(model, (x, labels), LINF, attack, certify=True, **options)
        assert again.resumed == len(x)
        np.testing.assert_array_equal(again.outcomes.margin_bound, bounds)
        assert result.to_json()["certified"] == again.to_json()["certified"] == result.certified
        kept = Store(tmp_path)
        rows = list(csv.DictReader(io.StringIO(b"".join(outcomes_file(kept, kept.runs()[1], "csv")).decode())))
        assert [int(row["certified"]) for row in rows] == result.outcomes.certified.tolist()
        assert "certified" in str(result)
        assert "certified" not in str(plain)

    def test_a_contradiction_fails_the_run(self, small, tmp_path, monkeypatch) -> None:
        model, x, labels = small
        proved = lambda self, x, labels, eps: torch.full_like(eps, -1.0)  # noqa: E731
        monkeypatch.setattr(Certifier, "margin_bounds", proved)
        data, wide = (x, labels), Threat("linf", 0.5)
        broken = tmifpe.evaluate(model, data, wide, "ce", checks=False).outcomes
        indices = ", ".join(str(index) for index in broken.index[broken.fooled])
        assert indices
        with pytest.raises(InternalError, match=f"certified and broken at index {indices}:"):
            tmifpe.evaluate(model, data, wide, "ce", checks=False, certify=True, store=tmp_path)
        assert Store(tmp_path).runs()[0].done == 0, "nothing of it is stored"

    def test_refused_before_the_attack(self, small, monkeypatch) -> None:
        model, x, labels = small
        monkeypatch.setattr("tmifpe.run.shard.run_shard", None)
        for options, words in (({"targets": "second"}, "untargeted"), ({"precision": "bf16"}, "float32 or float64")):
            with pytest.raises(InputError, match=words):
                tmifpe.evaluate(model, (x, labels), LINF, certify=True, **options)
        with pytest.raises(InputError, match="linf"):
            tmifpe.evaluate(model, (x, labels), Threat("l2", 0.1), certify=True)
        with pytest.raises(InputError, match="GELU"):
            tmifpe.evaluate(nn.Sequential(model, nn.GELU()), (x, labels), LINF, certify=True)

    def test_on_the_command_line(self) -> None:
        words = ["evaluate", "digits-robust", "--limit", "2", "--eps", "0.01", "--steps", "1"]
        words += ["--no-store", "--no-checks", "--certify"]
        told = CliRunner().invoke(app, [*words, "--json"])
        assert told.exit_code == 0, told.output
        plain = json.loads(told.stdout)
        assert plain["certified_accuracy"] <= plain["robust_accuracy"]
        shown = CliRunner().invoke(app, words)
        assert "% ≤ robust ≤ attacked" in shown.stdout


@pytest.mark.slow
def test_the_truth_of_wk17a(shared) -> None:
    """MIPVerify decided every image: 9562 of 10,000 are robust, so at most 438 are not. `evaluate` raises where one is
    certified and broken."""
    model = tmifpe.load_model("mnist-fast", weights=shared / "models/mnist_wk17a.pth")
    data = tmifpe.load_data(f"mnist:{shared / 'data/mnist'}", limit=100)
    result = tmifpe.evaluate(model, data, Threat("linf", 0.1), certify=True, checks=False)
    assert 0.9 * 100 < result.certified <= result.robust
