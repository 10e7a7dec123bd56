"""The ResNet-18 of benchmarks/ takes the weights that come with pyautoattack, and knows CIFAR-10."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest
import torch

import tmifpe
from tmifpe import Threat

FILE = Path(__file__).resolve().parent.parent / "benchmarks" / "resnet18_cifar.py"


@pytest.fixture(scope="module")
def classifier():
    pytest.importorskip("pyautoattack")
    weights = runpy.run_path(str(FILE))["weights"]()
    return tmifpe.load_model(f"{FILE}:resnet18", weights=weights)


def test_weights_fit_by_name(classifier):
    assert (classifier.classes, classifier.input_shape) == (10, (3, 32, 32))
    assert sum(p.numel() for p in classifier.module.parameters()) == 11_173_962


@pytest.mark.slow
def test_clean_accuracy_is_the_known_one(classifier, shared):
    data = tmifpe.load_data(f"npz:{shared / 'data/cifar10/test_first_846.npz'}")
    x, y = data.fetch(range(len(data)))
    with torch.no_grad():
        correct = torch.cat([classifier.module.eval()(part).argmax(dim=1) for part in x.split(64)]) == y
    assert correct.sum() == 796  # of 846: 94.1 %
    some = tmifpe.evaluate(classifier, (x[:32], y[:32]), Threat("linf", 0.0), "fgsm", checks=False)
    assert some.outcomes.correct.tolist() == correct[:32].tolist()
    assert some.broken == 0, "at eps 0"
