"""The ResNet-18 of benchmarks/ takes the weights that come with pyautoattack, and knows CIFAR-10."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

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
    data = tmifpe.load_data(f"cifar10:{shared / 'data' / 'cifar10'}")
    result = tmifpe.evaluate(classifier, data, Threat("linf", 0.0), "fgsm", batch_size=64, checks=False)
    assert result.outcomes.correct.sum() == 796  # of 846: 94.1 %
    assert result.broken == 0
