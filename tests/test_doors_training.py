"""Attacks and robust accuracy inside a training: the right numbers, and no trace of them in the training."""

from __future__ import annotations

import random
import sys
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import tmifpe
from tests.peers import peer
from tmifpe import PGD, InputError, MissingExtra, Threat
from tmifpe.attacks.training import MADRY
from tmifpe.compat.training import RobustProbe

THREAT = Threat("linf", 0.1)
DATA = torch.rand(40, 1, 4, 4, generator=torch.Generator().manual_seed(0)), torch.arange(40) % 4


def network() -> nn.Module:
    """Mode, RNG and buffers all matter to its training."""
    torch.manual_seed(1)
    return nn.Sequential(
        nn.Flatten(), nn.Linear(16, 12), nn.BatchNorm1d(12), nn.ReLU(), nn.Dropout(0.5), nn.Linear(12, 4)
    )


def rng_states() -> tuple[Any, ...]:
    return torch.get_rng_state().tolist(), random.getstate(), np.random.get_state()[1].tolist()  # type: ignore[index]


def modes(model: nn.Module) -> list[bool]:
    return [module.training for module in model.modules()]


# attack(model, x, y, threat).


@pytest.mark.numerical
def test_attack_is_pgd_as_written_by_hand():
    """From the image itself, on a linear model: every step is eps/20 by the sign of the gradient, so that its last bit
    does not matter."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(16, 4))
    x, y = DATA
    found = tmifpe.attack(
        model, x, y, THREAT, by=PGD("ce", 10, schedule="constant", step_size=0.05, momentum=0.0, random_start=False)
    )
    adv = x.clone()
    for _ in range(10):
        adv.requires_grad_()
        (grad,) = torch.autograd.grad(functional.cross_entropy(model(adv), y, reduction="sum"), adv)
        adv = (x + (adv.detach() + 0.005 * grad.sign() - x).clamp(-0.1, 0.1)).clamp(0, 1)
    # A pixel's way is ten roundings long, each of half an ulp of 1 at most, on both sides.
    assert (found - adv).abs().max() <= 20 * 2**-24


@pytest.mark.parametrize("by", [MADRY, PGD(steps=3), tmifpe.fgsm(), PGD(steps=3, smooth=3.0)])
@pytest.mark.parametrize("norm", ["linf", "l2", "l1"])
def test_attack_stays_in_ball_and_box(by, norm):
    x, y = DATA
    threat = Threat(norm, 0.3)
    adv = tmifpe.attack(network(), x, y, threat, by=by)
    size = {"linf": torch.inf, "l2": 2, "l1": 1}[norm]
    assert torch.linalg.vector_norm((adv - x).flatten(1), ord=size, dim=1).max() <= 0.3 + 16 * 2**-24
    assert 0 <= adv.min() <= adv.max() <= 1
    assert not adv.requires_grad


def test_attack_leaves_no_trace():
    model, (x, y) = network().train(), DATA
    model[2].eval()
    model[1].weight.requires_grad_(False)
    model[5].weight.grad = torch.ones_like(model[5].weight)
    before = [(name, p.detach().clone(), p.requires_grad, p.grad) for name, p in model.named_parameters()]
    before_modes, buffers = modes(model), [b.clone() for b in model.buffers()]
    states, given = rng_states(), (x.clone(), x._version)
    tmifpe.attack(model, x, y, THREAT)
    assert rng_states() == states
    assert modes(model) == before_modes
    assert all(torch.equal(a, b) for a, b in zip(model.buffers(), buffers, strict=True))
    for (_, weight, wanted, grad), now in zip(before, model.parameters(), strict=True):
        assert torch.equal(weight, now)
        assert now.requires_grad == wanted
        assert now.grad is grad
    assert torch.equal(x, given[0])
    assert x._version == given[1]


def test_attack_starts_where_the_seed_says():
    x, y = DATA
    one, again, other = (tmifpe.attack(network(), x, y, THREAT, seed=seed) for seed in (1, 1, 2))
    assert torch.equal(one, again)
    assert not torch.equal(one, other)


@pytest.mark.parametrize("by", [PGD(restarts=2), tmifpe.Square(), tmifpe.MultiTargeted()])
def test_attack_climbs_once(by):
    with pytest.raises(InputError, match="climbs once"):
        tmifpe.attack(network(), *DATA, THREAT, by=by)


# The probe.


def trained(epochs: int = 2, probe: RobustProbe | None = None) -> dict[str, Tensor]:
    model = network().train()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for epoch in range(epochs):
        for rows in torch.randperm(40).split(8):
            optimizer.zero_grad()
            functional.cross_entropy(model(DATA[0][rows]), DATA[1][rows]).backward()
            optimizer.step()
        if probe is not None:
            probe(model, epoch)
    state = optimizer.state_dict()["state"].values()
    return model.state_dict() | {f"momentum {k}": one["momentum_buffer"] for k, one in enumerate(state)}


def test_training_with_the_probe_is_the_same_training():
    told: list[tuple[dict[str, float], int]] = []
    probe = RobustProbe(DATA, THREAT, n=12, log=lambda numbers, epoch: told.append((dict(numbers), epoch)))
    with_probe, without = trained(probe=probe), trained()
    assert all(torch.equal(with_probe[name], without[name]) for name in without)
    assert told == [(probe.history[0], 0), (probe.history[1], 1)]
    assert all(0 <= one["robust_accuracy"] <= one["clean_accuracy"] <= 1 for one, _ in told)


def test_the_probe_leaves_rng_and_modes_alone():
    """Directly: the training above would not notice a state that it does not read."""
    probe = RobustProbe(DATA, THREAT, n=12)
    for training in (True, False):
        model = network().train(training)
        model[2].train(not training)
        before = rng_states(), modes(model), [buffer.clone() for buffer in model.buffers()]
        assert probe(model, 0) is not None
        assert rng_states() == before[0]
        assert modes(model) == before[1]
        assert all(torch.equal(now, then) for now, then in zip(model.buffers(), before[2], strict=True))


def test_the_probe_takes_the_same_stratified_examples_every_time():
    probe = RobustProbe(DATA, THREAT, n=12, every=3, attack="fgsm")
    x, y = probe.data.fetch(range(12))
    assert y.bincount().tolist() == [3, 3, 3, 3]
    model = network()
    assert [epoch for epoch in range(7) if probe(model, epoch) is not None] == [2, 5]
    found = tmifpe.evaluate(model, (x, y), THREAT, "fgsm", checks=False)
    assert probe.history[5] == {"clean_accuracy": found.clean_accuracy, "robust_accuracy": found.robust_accuracy}


# Extras.


@pytest.mark.filterwarnings("ignore")  # of the package itself
def test_the_metric_does_not_depend_on_batches():
    torchmetrics = peer("torchmetrics")
    from tmifpe.compat.torchmetrics import RobustAccuracy

    model = network()
    numbers = []
    for size in (40, 16):
        metric = RobustAccuracy(THREAT, attack="pgd(steps=3)")
        assert isinstance(metric, torchmetrics.Metric)
        for x, y in zip(DATA[0].split(size), DATA[1].split(size), strict=True):
            metric.update(model, x, y)
        numbers.append((float(metric.compute()), float(metric.clean())))
    assert numbers[0] == numbers[1]
    found = tmifpe.evaluate(model, DATA, THREAT, "pgd(steps=3)", checks=False)
    assert numbers[0] == pytest.approx((found.robust_accuracy, found.clean_accuracy))
    metric.reset()
    with pytest.raises(InputError, match="update"):
        metric.compute()


@pytest.mark.filterwarnings("ignore")  # of the package itself: workers, loggers
def test_a_lightning_training_with_the_callback_is_the_same_training(tmp_path):
    lightning = peer("lightning.pytorch")
    from tmifpe.compat.lightning import RobustAccuracyCallback

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.network = network()

        def forward(self, x: Tensor) -> Tensor:
            return self.network(x)

        def training_step(self, batch: Any, _: int) -> Tensor:
            return functional.cross_entropy(self(batch[0]), batch[1])

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=0.1)

    def fitted(callbacks: list[Any]) -> tuple[dict[str, Tensor], Any]:
        module = Module()
        torch.manual_seed(2)
        loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(*DATA), batch_size=8, shuffle=True)
        trainer = lightning.Trainer(
            max_epochs=2,
            accelerator="cpu",
            callbacks=callbacks,
            logger=lightning.loggers.CSVLogger(tmp_path),
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
        )
        trainer.fit(module, loader)
        return module.state_dict(), trainer

    states: list[tuple[Any, ...]] = []

    class Watched(RobustAccuracyCallback):
        def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
            pl_module.network[2].eval()
            states.append((rng_states(), modes(pl_module)))
            super().on_train_epoch_end(trainer, pl_module)
            states.append((rng_states(), modes(pl_module)))
            pl_module.network[2].train()

    callback = Watched(DATA, THREAT, n=12, attack="pgd(steps=3)")
    with_callback, trainer = fitted([callback])
    without, _ = fitted([])
    assert all(torch.equal(with_callback[name], without[name]) for name in without)
    assert sorted(callback.probe.history) == [0, 1]
    assert len(states) == 4
    assert states[0] == states[1]
    assert states[2] == states[3]
    logged = {name: float(value) for name, value in trainer.logged_metrics.items()}
    assert logged == pytest.approx(callback.probe.history[1])


@pytest.mark.parametrize(("module", "package"), [("torchmetrics", "torchmetrics"), ("lightning", "lightning")])
def test_a_missing_package_is_a_sentence(monkeypatch, module, package):
    for name in [name for name in sys.modules if name.split(".")[0] in (package, "pytorch_lightning")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.delitem(sys.modules, f"tmifpe.compat.{module}", raising=False)
    for name in (package, "pytorch_lightning"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(MissingExtra, match=rf"pip install 'tmifpe\[{package}\]'"):
        __import__(f"tmifpe.compat.{module}")
