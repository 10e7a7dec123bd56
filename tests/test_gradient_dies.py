"""The module in which the gradient dies is named; nothing else is, and nothing of the model is changed by looking."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from typer.testing import CliRunner

import tmifpe
from tests.masked import KILLERS, Honest, Named, Wrapped, drop, images, killed, noise, quantise, recentred, sharpen
from tmifpe import PGD, Threat
from tmifpe.attacks import Queries
from tmifpe.attacks.hooks.layers import ROWS, Layers, look_at_layers
from tmifpe.cli import app

LINF = Threat("linf", 0.05)
X = images(12)


def look(model: nn.Module, x: Tensor = X) -> Layers:
    with torch.no_grad():
        labels = model(x).argmax(dim=1)
    return look_at_layers(Queries(model), x, labels)


@pytest.mark.parametrize("kind", KILLERS)
def test_the_killer_is_named_and_nothing_else(kind: str) -> None:
    (layer,) = look(killed(kind)).dying
    assert (layer.name, layer.kind, layer.own) == (KILLERS[kind][0], "Named", False)


def test_all_killers_are_named_in_one_look() -> None:
    model = nn.Sequential(
        Named(quantise), nn.Flatten(), nn.Linear(16, 16), Named(torch.round), Honest(), Named(sharpen)
    )
    assert [layer.name for layer in look(model).dying] == ["0", "3", "5"]


@pytest.mark.parametrize(
    "model",
    [
        Honest(),
        Honest(scale=1e4),
        Wrapped(Named(noise)),
        Wrapped(Named(drop)),
        Wrapped(after=Named(recentred)),
        Wrapped(after=Named(lambda z: 1e-6 * z)),
        Wrapped(after=Named(lambda z: z.log_softmax(dim=1))),
        nn.Sequential(nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(8, 4)),
        nn.Sequential(nn.Flatten(), nn.Linear(16, 8), nn.Tanh(), nn.LayerNorm(8), nn.GELU(), nn.Linear(8, 4)),
    ],
    ids=lambda model: type(model).__name__,
)
def test_a_sound_model_has_no_dying_layer(model: nn.Module) -> None:
    seen = look(model.eval())
    assert seen.found
    assert not seen.dying


def test_flat_background_and_ties_are_no_shattering() -> None:
    x = X.clone()
    x[:, :, 1:] = 0.0  # mostly black, so that max pooling meets ties
    model = nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(32, 4))
    assert not look(model, x).dying
    assert not look(model, torch.zeros_like(X)).dying


class Residual(nn.Module):
    """A dead branch beside a skip connection, through which the whole has a gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.branch, self.head = Named(quantise), Honest()

    def forward(self, x: Tensor) -> Tensor:
        return self.head(x + self.branch(x))


class Hidden(nn.Module):
    """The killer is a call in the forward pass of a module between its modules."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function
        self.block = nn.Sequential(nn.Identity(), Wrapped(function, inner=nn.Flatten()))
        self.head = nn.Linear(16, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.block(x))


class Unrecorded(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.head = Named(lambda x: 0.9 * x), Honest()

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            x = self.first(x)
        return self.head(x)


def test_a_dead_branch_is_seen_beside_its_skip_connection() -> None:
    assert [layer.name for layer in look(Residual()).dying] == ["branch"]


@pytest.mark.parametrize("function", [quantise, torch.detach, KILLERS["poison"][1]])
def test_calls_in_a_forward_pass_are_blamed_on_the_innermost_module_that_makes_them(function) -> None:
    (layer,) = look(Hidden(function)).dying
    assert (layer.name, layer.own) == ("block.1", True)


def test_gradients_switched_off_by_the_model_are_blamed_on_who_does_it() -> None:
    (layer,) = look(Unrecorded()).dying
    assert (layer.name, layer.own, str(layer)) == ("", True, "the model itself (Unrecorded)")


def test_the_share_of_dead_units() -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(16, 10), nn.ReLU(), nn.Linear(10, 4))
    with torch.no_grad():
        model[1].weight.zero_()
        model[1].bias.copy_(torch.tensor([-1.0] * 7 + [1.0] * 3))
        model[3].weight.copy_(torch.rand(4, 10, generator=torch.Generator().manual_seed(0)))
    layers = {layer.name: layer for layer in look(model).found}
    assert layers["2"].off == pytest.approx(0.7)
    assert layers["1"].off is None
    assert [layer.name for layer in look(model).dying] == ["1"]  # its weights are zero: the input does not matter


class InPlace(nn.Module):
    """Whoever holds the input of an in-place module sees it changed, as in pre-activation networks."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.relu, self.head = nn.Conv2d(1, 1, 1), nn.ReLU(inplace=True), Honest()

    def forward(self, x: Tensor) -> Tensor:
        z = self.first(x) - 0.5
        return self.head(self.relu(z) + z)


def test_in_place_modules_keep_their_meaning_and_shared_ones_are_counted() -> None:
    torch.manual_seed(0)
    seen = look(InPlace())
    assert [layer.name for layer in seen.found] == ["first", "relu", "head"]
    assert not seen.note
    relu = nn.ReLU()
    twice = nn.Sequential(nn.Flatten(), nn.Linear(16, 8), relu, nn.Linear(8, 4), relu)
    assert [(layer.name, layer.call) for layer in look(twice).found if layer.kind == "ReLU"] == [("2", 1), ("2", 2)]


def test_nothing_is_left_behind() -> None:
    layers = [Named(quantise), nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(16, 4)]
    model = nn.Sequential(*layers).train()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    state = torch.get_rng_state()
    look_at_layers(Queries(model), X, torch.zeros(len(X), dtype=torch.long))
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters())
    assert not any(kept for m in model.modules() for k, kept in vars(m).items() if k.endswith("_hooks"))


def test_a_function_and_torchscript_get_a_note() -> None:
    y = Honest()(X).argmax(dim=1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # deprecated, but still what people load
        scripted = torch.jit.trace(Wrapped(quantise), X)
    for model, words in (Honest().forward, "is a function"), (scripted, "TorchScript"):
        result = tmifpe.evaluate(model, (X, y), LINF, PGD(steps=2))
        assert not result.layers
        assert [words in note for note in result.notes] == [True]
    assert "is a function" in tmifpe.audit(Honest().forward, (X, y), ["cw"], ["fp32"]).notes[-1]


class Optimising(nn.Module):
    """Differentiates through its own modules on the way forward."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = Honest()

    def forward(self, x: Tensor) -> Tensor:
        with torch.enable_grad():
            leaf = x.detach().requires_grad_()
            (grad,) = torch.autograd.grad(self.inner(leaf).square().sum(), leaf, create_graph=True)
        return self.inner(x - 0.01 * grad)


def test_what_cannot_be_measured_is_a_note_and_no_error() -> None:
    y = Honest()(X).argmax(dim=1)
    result = tmifpe.evaluate(Optimising(), (X, y), LINF, PGD(steps=2))
    assert result.layers or any("could not be measured" in note for note in result.notes)


def test_the_look_is_cheap_and_counted() -> None:
    x, queries = images(40), Queries(Honest())
    seen = look_at_layers(queries, x, Honest()(x).argmax(dim=1))
    assert seen.rows == ROWS
    assert (queries.tally.forwards, queries.tally.backwards) == (2 * ROWS, ROWS)


def test_result_store_audit_and_command_show_it(tmp_path: Path) -> None:
    model, y = killed("quantise"), killed("quantise")(X).argmax(dim=1)
    results = [tmifpe.evaluate(model, (X, y), LINF, PGD(steps=2), store=tmp_path, name="q") for _ in range(2)]
    assert results[0].layers == results[1].layers  # the second one out of the store
    assert results[0].to_json()["layers"][0] == {
        "name": "before", "kind": "Named", "call": 1, "none": 1.0, "faint": 0.0, "shattered": 0.0, "off": 1.0,
        "own": False,
    }  # fmt: skip
    (raised,) = [flag for flag in results[1].flags if flag.name == "gradient-dies"]
    assert raised.seen == "Of 12 images, before (Named) leaves 100% without a gradient."
    assert tmifpe.Store(tmp_path).result(tmifpe.Store(tmp_path).runs()[0]).layers == results[0].layers
    audit = tmifpe.audit(model, (X, y), ["cw"], ["fp32"])
    assert audit.layers == results[0].layers
    assert "The gradient dies in before (Named)" in audit.advice[-1]


def test_the_command_prints_the_table(tmp_path: Path) -> None:
    file = tmp_path / "rounded.py"
    file.write_text(
        "import torch\n"
        "class Round(torch.nn.Module):\n"
        "    def forward(self, x):\n"
        "        return torch.round(8 * x) / 8\n"
        "def make():\n"
        "    torch.manual_seed(0)\n"
        "    return torch.nn.Sequential(Round(), torch.nn.Flatten(), torch.nn.Linear(64, 10))\n",
        encoding="utf-8",
    )
    words = ["evaluate", f"{file}:make", "--limit", "40", "--attack", "paper", "--steps", "2", "--no-store"]
    said = CliRunner().invoke(app, words).stdout
    assert "Gradient on its way back" in said
    assert "--straight-through NAME" in " ".join(said.replace("│", " ").split())
    told = json.loads(CliRunner().invoke(app, [*words, "--straight-through", "0", "--json"]).stdout)
    assert told["straight_through"] == ["0"]
    assert "gradient-dies" not in {flag["name"] for flag in told["flags"]}
    assert told["layers"][0]["none"] == 1
