"""Gradients that are wrong are seen, and `full` finds what they hide; on honest networks nothing of this happens."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn

import tmifpe
from tests.defences import DEFENCES
from tmifpe import PGD, Threat, evaluate
from tmifpe.attacks import Queries
from tmifpe.attacks.hooks.mended import MendedQueries, find_cores
from tmifpe.attacks.loop.estimated import EstimatedQueries, SmoothedQueries
from tmifpe.checks.flags import MISLEADING
from tmifpe.checks.repairs import repairs
from tmifpe.core.errors import ModelError
from tmifpe.store import Store

EPS = {"digits-robust": 0.15, "digits-distilled": 0.1}


def bare(which: str = "digits-robust") -> nn.Module:
    return tmifpe.load_model(which).module


def defended(name: str, which: str = "digits-robust") -> nn.Module:
    return DEFENCES[name](copy.deepcopy(bare(which)))


def run(
    model: nn.Module, images: int = 24, attack: object = "full", eps: float = 0.15, **options: object
) -> tmifpe.Result:
    data = tmifpe.load_data("digits", limit=images)
    return evaluate(model, data, Threat("linf", eps), attack, **options)


def named(result: tmifpe.Result) -> set[str]:
    return {flag.name for flag in result.flags}


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Square, which comes last and costs most, with few queries."""
    monkeypatch.setattr(repairs, "_SQUARE", 20)
    monkeypatch.setattr(repairs, "_FIRST", 4)
    monkeypatch.setattr(repairs, "_STEPS", 4)


WRONG = {
    "gradient-disagrees": [
        "ripple in forward",
        "ripple as a module",
        "half of the signs turned",
        "forgotten flip",
        "random gradient",
        "hook turns the gradient",
        "hook drowns the gradient",
        "lies with gradients",
    ],
    "behaves-differently": ["lies with gradients", "lies to whoever asks"],
    "gradient-dies": ["ripple as a module", "rounding in a module", "rounding in forward", "steep tanh"],
}


@pytest.mark.parametrize(("flag", "name"), [(flag, name) for flag, several in WRONG.items() for name in several])
def test_a_wrong_gradient_is_seen(flag, name):
    found = run(defended(name), attack=PGD(steps=10))
    assert flag in named(found)
    assert not found.repairs  # of `full` alone
    assert any('attack="full"' in one.advice for one in found.flags if one.name == flag)


@pytest.mark.parametrize("which", EPS)
@pytest.mark.parametrize("attack", ["full", PGD(steps=10)])
@pytest.mark.parametrize("eps", [0.02, 0.1, 0.3])
def test_an_honest_gradient_is_believed(which, attack, eps):
    found = run(bare(which), attack=attack, eps=eps)
    assert not named(found) & {
        "gradient-disagrees",
        "behaves-differently",
        "gradient-dies",
        "black-box-beats-white-box",
    }
    assert not found.repairs


def deep(unit: type[nn.Module], scale: float) -> nn.Module:
    torch.manual_seed(0)
    layers = [nn.Sequential(nn.Linear(64, 64), unit()) for _ in range(6)]
    net = nn.Sequential(nn.Flatten(), *layers, nn.Linear(64, 10))
    for layer in net.modules():
        if isinstance(layer, nn.Linear):
            nn.init.normal_(layer.weight, std=scale * 64**-0.5)
    return net


@pytest.mark.parametrize(("unit", "scale"), [(nn.Tanh, 3.0), (nn.Sigmoid, 6.0), (nn.GELU, 1.5), (nn.ReLU, 50.0)])
def test_a_curved_network_is_no_liar(unit, scale):
    net = deep(unit, scale)
    x, _ = tmifpe.load_data("digits", limit=24).fetch(range(24))
    found = evaluate(net, (x, net(x).argmax(dim=1)), Threat("linf", 0.02), PGD(steps=10))
    assert not named(found) & {"gradient-disagrees", "behaves-differently"}


@pytest.mark.usefixtures("short")
@pytest.mark.parametrize("name", ["ripple in forward", "lies with gradients", "rounding in forward"])
def test_full_repairs_itself(name):
    plain, found = run(bare(), images=16).robust, run(defended(name), images=16)
    assert named(found) & MISLEADING
    assert found.robust <= plain + 1  # of 16: one image by another rounding or ripple
    assert found.robust + sum(one.broken for one in found.repairs) > plain + 1  # and it was needed
    (told, *_) = [flag for flag in found.flags if flag.name in MISLEADING]
    assert "broke" in told.seen
    assert sorted(index for one in found.repairs for index in one.indices) == sorted(
        found.outcomes.index[found.outcomes.stage == len(found.spec.attacks)].tolist()
    )


@pytest.mark.usefixtures("short")
def test_what_repairs_found_is_kept_and_counted(tmp_path):
    model, asked_of = defended("rounding in forward"), list[int]()
    model.register_forward_pre_hook(lambda _, args: asked_of.append(len(args[0])))
    asked = {"images": 12, "store": tmp_path, "keep_adv": True, "name": "liar"}
    first = run(model, **asked)
    assert any(one.broken for one in first.repairs)
    # 16: whether it is randomised, which is asked of a run that is stored.
    assert sum(asked_of) - 16 == first.spent.forwards > first.tally.forwards + first.check_forwards
    again = run(model, **asked)
    assert again.resumed == 12
    assert (again.repairs, again.flags, again.robust) == (first.repairs, first.flags, first.robust)
    x, labels = tmifpe.load_data("digits", limit=12).fetch(range(12))
    for result in (first, again):
        with torch.no_grad():
            broken = model(result.adv).argmax(dim=1) != labels
        assert broken.tolist() == (result.outcomes.fooled | ~result.outcomes.correct).tolist()
        assert float((result.adv - x).abs().max()) <= 0.15 + 1e-6
        assert "repair" in result.to_pandas()["attack"].tolist()
    (stored,) = Store(tmp_path).runs()
    kept = Store(tmp_path).result(stored)
    assert (kept.robust, kept.repairs, kept.check_backwards) == (first.robust, first.repairs, first.check_backwards)
    assert torch.equal(torch.cat(list(Store(tmp_path).adv(stored))), first.adv)


@pytest.mark.usefixtures("short")
def test_without_checks_nothing_is_repaired():
    assert not run(defended("lies with gradients"), images=8, checks=False).repairs


def slope(queries: Queries, x: Tensor) -> Tensor:
    grad = queries.look(x, lambda z: z[:, 0]).grad
    assert grad is not None
    return grad


class Steep(nn.Module):
    """Linear, with waves on it."""

    def __init__(self, waves: float = 0.0) -> None:
        super().__init__()
        self.waves = waves
        self.register_buffer("weight", torch.randn(3, 16, generator=torch.Generator().manual_seed(1)))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.waves * torch.sin(2000 * x)
        return torch.nn.functional.linear(x.flatten(1), self.weight)


@pytest.mark.parametrize("kind", ["estimated", "smoothed"])
@pytest.mark.parametrize("norm", ["linf", "l2"])
def test_other_gradients_point_where_the_network_climbs(kind, norm):
    x = 0.2 + 0.6 * torch.rand(4, 1, 4, 4)
    model, threat = Steep(0.003), Threat(norm, 0.1)
    made = {
        "estimated": EstimatedQueries(model, threat=threat, pairs=64),
        "smoothed": SmoothedQueries(model, threat=threat, source=Queries(model), draws=64),
    }[kind]
    found = slope(made, x)
    true = model.weight[0].expand(4, -1)
    assert float(torch.cosine_similarity(found.flatten(1), true).median()) > 0.7
    assert float(torch.cosine_similarity(slope(Queries(model), x).flatten(1), true).min()) < 0.6
    alone = slope(made, x[1:2])
    assert torch.allclose(alone, found[1:2], rtol=1e-4, atol=1e-4 * float(alone.abs().max()))  # the row's own draws


def test_a_core_is_found_and_followed():
    x, _ = tmifpe.load_data("digits", limit=8).fetch(range(8))
    net = bare()
    straight = slope(Queries(net), x)
    for name in ("rounding in a module", "lies with gradients", "one-hot outputs", "hook turns the gradient"):
        model = defended(name)
        core, *_ = find_cores(Queries(model), x)
        found = slope(MendedQueries(model, core=core), x).flatten(1)
        assert float(torch.cosine_similarity(found, straight.flatten(1)).median()) > 0.9
    assert model.features[0]._backward_hooks  # they are back
    wrapped = nn.Sequential(nn.Identity(), defended("forgotten flip"))  # the whole core has the fault in itself
    assert [(core.begin, core.end) for core in find_cores(Queries(wrapped), x)] == [
        ("1", "1"),
        ("1.features.0", "1.head.3"),
    ]
    assert find_cores(Queries(lambda x: x.flatten(1)), x) == []


class Asking(nn.Module):
    """Its core wants an option, which only its own forward pass gives."""

    def __init__(self, fails: bool) -> None:
        super().__init__()
        self.core, self.fails = Wanting(bare()), fails

    def forward(self, x: Tensor) -> Tensor:
        x = torch.round(8 * x) / 8
        if self.fails and torch.is_grad_enabled():
            raise RuntimeError("no gradients here")
        return self.core(x, wanted=True)


class Wanting(nn.Module):
    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, x: Tensor, *, wanted: bool) -> Tensor:
        return self.network(x) if wanted else x.flatten(1)


@pytest.mark.usefixtures("short")
@pytest.mark.parametrize("options", [{"targets": "second"}, {"verify": "fp64", "radii": [0.05]}])
def test_repairs_go_with_every_question(options):
    found = run(Asking(fails=False), images=8, **options)
    assert any(one.broken for one in found.repairs)
    assert found.outcomes.fooled.sum() == found.broken
    assert all(0 < size <= 0.15 + 1e-6 for size in found.outcomes.size[found.outcomes.fooled])


def test_a_way_that_the_model_cannot_go_ends_no_run():
    x, _ = tmifpe.load_data("digits", limit=4).fetch(range(4))
    with pytest.raises(ModelError):
        MendedQueries(Asking(fails=True)).look(x, lambda z: z[:, 0])
