"""The paper's own models, where their weights are at hand: clean accuracy exactly, robust accuracy as printed."""

from __future__ import annotations

import numpy as np
import pytest

import tmifpe
from tmifpe import Threat
from tmifpe.attacks import full

# Table 1 of the paper, row "Fast adversarial training / SmallCNN" (a goal to compare with, in percent).
PRINTED = {"ce": 86.82, "cw": 86.96, "dlr": 87.42, "mifpe": 86.60, "tmifpe": 86.59}
# What 0.1.0 found on the first 512 images with seed 0; its full rows are within 0.25 points of the printed ones.
ROBUST_OF_512 = {"ce": 432, "cw": 431, "dlr": 437, "mifpe": 433, "tmifpe": 431}


@pytest.fixture(scope="module")
def fast_at(shared):
    model = tmifpe.load_model("mnist-fast", weights=shared / "models/mnist_fast_at.pth")
    return model, f"mnist:{shared / 'data/mnist'}"


def test_clean_accuracy_of_the_first_thousand(fast_at):
    """That of all 10,000 is the paper's 98.50: test_models_real.py, and below where all are attacked."""
    model, data = fast_at
    result = tmifpe.evaluate(model, tmifpe.load_data(data, limit=1000), Threat("linf", 0.0), "fgsm", checks=False)
    # The closest of the 10,000 decisions is 0.015 wide; rounding moves these logits by about 5e-6.
    assert result.outcomes.correct.sum() == 983
    assert result.broken == 0


@pytest.mark.slow
@pytest.mark.parametrize("loss", list(PRINTED))
def test_the_first_512_images_of_the_row(fast_at, loss):
    """As many survive as did in the run whose full row is in docs/table1.md, give or take one point.

    On another processor a few examples end elsewhere, as with another seed, which moves the full row by 0.2 points.
    """
    model, data = fast_at
    part = tmifpe.load_data(data, limit=512)
    result = tmifpe.evaluate(model, part, Threat("linf", 0.3), tmifpe.PGD(loss=loss), batch_size=512, checks=False)
    assert abs(result.robust - ROBUST_OF_512[loss]) <= 5


@pytest.mark.numerical
@pytest.mark.convolutional
def test_asking_for_more_breaks_no_less(fast_at):
    """Where plain PGD, with restarts and all, leaves 78 of 100 and the default two."""
    model, data = fast_at
    part, threat = tmifpe.load_data(data, limit=100), Threat("l2", 2.0)
    usual = tmifpe.evaluate(model, part, threat, checks=False)
    assert usual.robust <= 4
    for more in ({"restarts": 2}, {"loss": "ce"}):
        found = tmifpe.evaluate(model, part, threat, full(**more), checks=False)
        assert not (usual.outcomes.fooled & ~found.outcomes.fooled).any()


@pytest.mark.numerical
@pytest.mark.convolutional
def test_modes_agree_on_real_weights(fast_at):
    """In float64: the modes fill their batches differently, and in float32 that may turn a verdict at the edge."""
    model, data = fast_at
    part = tmifpe.load_data(data, limit=20)
    attack = tmifpe.PGD(steps=20)
    tables = [
        tmifpe.evaluate(model, part, Threat("linf", 0.3), attack, mode=mode, precision="fp64", checks=False).outcomes
        for mode in ("verdict", "strongest")
    ]
    assert np.array_equal(tables[0].fooled, tables[1].fooled)
    assert 0 < tables[0].fooled.sum() < 20


@pytest.mark.long
@pytest.mark.parametrize("loss", list(PRINTED))
def test_the_full_row_is_within_two_fifths_of_a_point(fast_at, loss, record_property):
    model, data = fast_at
    result = tmifpe.evaluate(model, tmifpe.load_data(data), Threat("linf", 0.3), tmifpe.PGD(loss=loss), batch_size=512)
    robust = 100 * result.robust_accuracy
    record_property(loss, robust)
    assert abs(robust - PRINTED[loss]) <= 0.40
    assert round(100 * result.clean_accuracy, 2) == 98.50
