"""Models that `torch.compile` made: attacks that watch what happens inside see it, and the verdicts are the same."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import tmifpe
from tmifpe import Threat
from tmifpe.attacks.hooks.uncompiled import uncompiled

THREAT = Threat("linf", 0.1)
X = torch.rand(8, 1, 2, 2, generator=torch.Generator().manual_seed(0))
BACKENDS = [
    "eager",
    "aot_eager",
    pytest.param("inductor", marks=pytest.mark.skipif(not shutil.which("g++"), reason="no compiler here")),
]

pytestmark = [
    pytest.mark.skipif(not hasattr(torch.compiler, "set_stance"), reason="needs torch 2.6"),
    pytest.mark.filterwarnings("ignore"),  # of the compiler
]


@pytest.fixture(autouse=True)
def forgotten() -> Iterator[None]:
    """What one test has compiled counts towards the limit of the next."""
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def network() -> nn.Sequential:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(nn.Flatten(), nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3)).eval()


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("attack", ["quick", "full"])
def test_compiled_models_are_attacked_like_any_other(attack: str, backend: str):
    model = network()
    y = model(X).argmax(dim=1)
    plain = tmifpe.evaluate(model, (X, y), THREAT, attack, limit=4)
    compiled = tmifpe.evaluate(torch.compile(model, backend=backend, dynamic=True), (X, y), THREAT, attack, limit=4)
    assert compiled.outcomes.fooled.tolist() == plain.outcomes.fooled.tolist()
    assert [flag.name for flag in compiled.flags] == [flag.name for flag in plain.flags]
    assert not any("no rectifier" in note for note in compiled.notes)
    assert 0 < plain.outcomes.fooled.sum() < 4


PARTS: dict[str, Callable[[nn.Sequential], Any]] = {
    "a layer": lambda model: nn.Sequential(*model[:2], torch.compile(model[2], backend="eager"), model[3]),
    "a function": lambda model: torch.compile(lambda x: model(x), backend="eager"),
}


@pytest.mark.parametrize("part", PARTS)
def test_a_compiled_part_is_smoothed_too(part: str):
    y = network()(X).argmax(dim=1)
    attack = tmifpe.PGD(steps=5, smooth=3.0)
    found = attack(PARTS[part](network()), X, y, THREAT)
    torch.testing.assert_close(found, attack(network(), X, y, THREAT))


class Round(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.round(8 * x) / 8


@pytest.mark.usefixtures("unchecked")
def test_modules_of_a_compiled_model_can_be_passed():
    model = nn.Sequential(Round(), network())
    compiled = torch.compile(model, backend="eager")
    y = model(X).argmax(dim=1)
    attack = tmifpe.PGD(steps=5)
    broken = [
        tmifpe.evaluate(one, (X, y), THREAT, attack, straight_through=name, tune="off").broken
        for one, name in ((model, "0"), (compiled, "_orig_mod.0"))
    ]
    assert broken[0] == broken[1] > 0


def stance() -> str:
    return torch._dynamo.eval_frame._stance.stance


def test_the_callers_stance_comes_back_when_the_last_thread_has_left():
    torch.compile(network(), backend="eager")
    inside, leave = threading.Event(), threading.Event()

    def other() -> None:
        with uncompiled():
            inside.set()
            assert leave.wait(60)

    thread = threading.Thread(target=other)
    with uncompiled():
        thread.start()
        assert inside.wait(60)
    assert stance() == "force_eager"
    leave.set()
    thread.join(60)
    assert stance() == "default"
