"""What the caller had before a call is there after it, whatever the model does and however many threads attack it."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import tmifpe
from tmifpe import PGD, Threat

THREAT = Threat("linf", 0.05)
X, Y = torch.rand(6, 1, 2, 2, generator=torch.Generator().manual_seed(0)), torch.arange(6) % 3
PATIENCE = 60
"""Seconds to wait for another thread: an event that never comes fails the test instead of hanging it."""


class Network(nn.Module):
    """Draws from every generator, counts its calls in a buffer, and tells of each call."""

    def __init__(self, told: Callable[[Network], None] = lambda _: None) -> None:
        super().__init__()
        self.linear, self.norm = nn.Linear(4, 3), nn.BatchNorm1d(3)
        self.calls: Tensor
        self.register_buffer("calls", torch.zeros(()))
        self.told = told

    def forward(self, x: Tensor) -> Tensor:
        _ = torch.rand(3), np.random.rand(), random.random()
        self.calls += 1
        self.told(self)
        return torch.relu(self.norm(self.linear(x.flatten(1)))) + torch.randn(3)


def rng_states() -> list[Any]:
    return [torch.get_rng_state().tolist(), random.getstate(), str(np.random.get_state())]


def state_of(model: Network) -> list[Any]:
    wanted = [parameter.requires_grad for parameter in model.parameters()]
    return [[module.training for module in model.modules()], wanted, *(b.tolist() for b in model.buffers())]


# Every public call leaves the generators alone, though the model draws from them.

CALLS: dict[str, Callable[[nn.Module], object]] = {
    "attack": lambda model: tmifpe.attack(model, X, Y, THREAT, PGD(steps=2)),
    "PGD": lambda model: PGD(steps=2)(model, X, Y, THREAT),
    "APGD": lambda model: tmifpe.APGD(steps=2)(model, X, Y, THREAT),
    "Square": lambda model: tmifpe.Square(queries=3)(model, X, Y, THREAT),
    "minimal": lambda model: tmifpe.minimal(model, X, Y, "linf", steps=2),
    "evaluate": lambda model: tmifpe.evaluate(model, (X, Y), THREAT, PGD(steps=2)),
    "compare": lambda model: tmifpe.compare(model, (X, Y), THREAT, ["ce"], PGD(steps=2)),
    "curve": lambda model: tmifpe.curve(model, (X, Y), THREAT, resolution=0.01),
    "verify": lambda model: tmifpe.verify(model, (X, Y), THREAT, X),
    "audit": lambda model: tmifpe.audit(model, (X, Y), losses=["ce"], precisions=["fp32"]),
    "certify": lambda model: refused(lambda: tmifpe.certify(model, X, Y, THREAT)),
    "certified_radius": lambda model: refused(lambda: tmifpe.certified_radius(model, X, Y, THREAT)),
}


def refused(call: Callable[[], object]) -> None:
    with pytest.raises(tmifpe.InputError):
        call()


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.filterwarnings("ignore")
def test_a_model_that_draws_leaves_no_trace(name: str):
    model = Network().train()
    before, states = state_of(model), rng_states()
    CALLS[name](model)
    assert rng_states() == states
    assert state_of(model) == before


def test_a_function_that_draws_leaves_no_trace():
    model, states = Network().eval(), rng_states()
    PGD(steps=2)(lambda x: model(x), X, Y, THREAT)
    assert rng_states() == states


# Data that draws.


class Noisy(torch.utils.data.Dataset[Any]):
    def __len__(self) -> int:
        return len(X)

    def __getitem__(self, position: int) -> tuple[Tensor, int]:
        _ = torch.rand(1), np.random.rand(), random.random()
        return X[position], int(Y[position])


@pytest.mark.parametrize("made", [lambda: Noisy(), lambda: torch.utils.data.DataLoader(Noisy(), 2, shuffle=True)])
def test_data_that_draws_leaves_no_trace(made: Callable[[], Any]):
    model, data = Network(), made()
    states = rng_states()
    tmifpe.evaluate(model, data, THREAT, PGD(steps=2), sample=6, checks=False)
    assert rng_states() == states


# Two attacks on one model at once.


class Relay:
    """The second attack begins while the first is at work, and goes on after the first has ended."""

    def __init__(self, fails: bool) -> None:
        self.fails, self.modes = fails, []
        self.first_in, self.second_in, self.first_out = (threading.Event() for _ in range(3))

    def told(self, model: Network) -> None:
        if threading.current_thread().name == "first":
            self.first_in.set()
            assert self.second_in.wait(PATIENCE)
            if self.fails:
                raise ValueError("the first attack fails")
        else:
            self.second_in.set()
            assert self.first_out.wait(PATIENCE)
        self.modes.append(model.training or next(model.parameters()).requires_grad)

    def first(self, model: Network) -> None:
        try:
            tmifpe.attack(model, X, Y, THREAT, PGD(steps=2))
        except tmifpe.InputError:
            assert self.fails
        finally:
            self.first_out.set()

    def second(self, model: nn.Module) -> None:
        assert self.first_in.wait(PATIENCE)
        tmifpe.attack(model, X, Y, THREAT, PGD(steps=3))


@pytest.mark.parametrize("fails", [False, True], ids=["both end", "the first fails"])
@pytest.mark.parametrize("wrapped", [False, True], ids=["one model", "a part of another"])
def test_two_threads_attack_one_model(fails: bool, wrapped: bool):
    relay = Relay(fails)
    model = Network(relay.told).train()
    model.linear.weight.requires_grad_(False)  # a user's own choice, which must come back, too
    before, states = state_of(model), rng_states()
    other = nn.Sequential(model) if wrapped else model
    threads = [
        threading.Thread(target=relay.first, args=(model,), name="first"),
        threading.Thread(target=relay.second, args=(other,), name="second"),
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    assert relay.modes == [False] * (3 if fails else 5), "a forward pass ran in train mode or with gradients"
    assert state_of(model) == before
    assert rng_states() == states
