"""The bundled models show what they are for: CE is starved on the one, and not beaten by chance on the other."""

from __future__ import annotations

from importlib import resources

import pytest
import torch

import tmifpe
from tmifpe.data.digits import digits
from tmifpe.run.result import Result

MODELS = ("digits-robust", "digits-distilled")
THREAT = tmifpe.Threat("linf", 0.15)


def run(name: str, loss: str) -> Result:
    data = tmifpe.load_data("digits", limit=120)
    return tmifpe.evaluate(tmifpe.load_model(name), data, THREAT, tmifpe.PGD(loss), checks=False)


@pytest.mark.parametrize(("name", "clean"), [("digits-robust", 0.95), ("digits-distilled", 0.90)])
def test_they_read_digits(name: str, clean: float) -> None:
    data = digits("")
    x, labels = data.fetch(range(len(data)))
    assert (tmifpe.load_model(name).module(x).argmax(dim=1) == labels).double().mean() >= clean


def test_a_loaded_model_can_be_called_and_attacked_as_any_other() -> None:
    model = tmifpe.load_model("digits-robust")
    x, labels = tmifpe.load_data("digits").fetch(range(8))
    assert torch.equal(model(x), model.module(x))
    attack = tmifpe.PGD(steps=2)
    assert torch.equal(attack(model, x, labels, THREAT), attack(model.module, x, labels, THREAT))


def test_they_are_small() -> None:
    weights = resources.files("tmifpe.models") / "weights"
    assert sum(len((weights / f"{name}.safetensors").read_bytes()) for name in MODELS) < 400_000


def test_training_and_test_images_are_apart() -> None:
    train, test = (data.fetch(range(len(data)))[0].flatten(1) for data in (digits("train"), digits("test")))
    assert len(train) + len(test) == 1797
    assert torch.cdist(test.double(), train.double()).min() > 0


def test_distilled_starves_ce() -> None:
    ce, own = run("digits-distilled", "ce"), run("digits-distilled", "tmifpe")
    assert ce.robust_accuracy - own.robust_accuracy >= 0.20
    assert ce.robust_accuracy >= 0.8  # it looks robust
    assert own.robust_accuracy <= 0.2  # and is not


def test_robust_is_not_flattered() -> None:
    ce, own = run("digits-robust", "ce"), run("digits-robust", "tmifpe")
    assert own.robust_accuracy <= ce.interval[1]
    assert own.robust_accuracy >= 0.6  # it was trained for this
