"""A run prepared once, cut by what is asked: counted forwards, cuts that no clock decides, randomised models."""

from __future__ import annotations

import time

import pytest
import torch
from torch import nn

import tmifpe
from tests.linear import Linear, examples
from tests.masked import Honest, Wrapped, images, noise
from tmifpe import PGD, InputError, Threat
from tmifpe.attacks import get_attack
from tmifpe.evaluation.prepare import prepare
from tmifpe.run.cut.plan import make_plan
from tmifpe.run.request import EvaluateOptions, Request

THREAT = Threat("linf", 0.05)
LOSSES = ["ce", "ce-margin", "cw", "dlr", "mifpe", "tmifpe"]


def labelled(n: int = 60) -> tuple[torch.Tensor, torch.Tensor]:
    x = images(n)
    return x, Honest()(x).argmax(dim=1)


class Counted(nn.Module):
    """A model that remembers how many images it was shown, and how often it saw a given one."""

    def __init__(self, inner: nn.Module, watched: torch.Tensor) -> None:
        super().__init__()
        self.inner = inner
        self.images = 0
        self.clean = 0
        self.watched = watched

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.images += len(x)
        self.clean += int((x == self.watched).flatten(1).all(dim=1).sum())
        return self.inner(x)


def test_compare_reads_clean_images_and_checks_the_model_once():
    inner = Linear(5, seed=4)
    x, y = examples(inner, 200)
    model, threat = Counted(inner, x[150]).double(), Threat("linf", 0.002)
    tmifpe.compare(model, (x, y), threat, LOSSES, PGD(steps=5), checks=False)
    assert model.clean == 1
    model.images = 0
    row = tmifpe.compare(model, (x, y), threat, LOSSES, PGD(steps=5))
    first, *others = [runs[0] for runs in row.results.values()]
    # What the others save on the model they have for the survivors: the probe gets all of its queries.
    short = ["queries instead of" in " ".join(run.checks_cut) for run in (first, *others)]
    assert short == [True, *(False for _ in others)]
    counted = sum(run.tally.forwards + run.check_forwards for run in (first, *others))
    assert model.images == counted + 16  # eight images are read twice to see whether the model draws
    for loss in LOSSES[-2:]:  # and each column is what evaluate finds alone
        alone = tmifpe.evaluate(inner, (x, y), threat, PGD(loss=loss, steps=5))
        assert (alone.outcomes.fooled == row.results[loss][0].outcomes.fooled).all()
        assert {flag.name for flag in alone.flags} == {flag.name for flag in row.results[loss][0].flags}


def test_several_attacks_and_seeds_on_one_prepared_model():
    model = Linear(5, seed=4)
    x, y = examples(model, 40)
    with prepare(model, (x, y), Threat("linf", 0.002), Request(checks=False)) as ready:
        one = ready.run(PGD(steps=5))
        two = ready.run(PGD(loss="cw", steps=5), seed=3)
    assert (one.spec.seed, two.spec.seed) == (0, 3)
    alone = tmifpe.evaluate(model, (x, y), Threat("linf", 0.002), PGD(loss="cw", steps=5), seed=3, checks=False)
    assert (alone.outcomes.fooled == two.outcomes.fooled).all()


def test_the_cut_is_the_same_on_a_slow_and_a_fast_machine(monkeypatch):
    x, y = labelled()
    fast = tmifpe.evaluate(Honest(), (x, y), THREAT, PGD(steps=3), checks=False)
    clock = time.perf_counter

    class Slow(Honest):
        def forward(self, x):
            time.sleep(0.01)
            return super().forward(x)

    monkeypatch.setattr(time, "perf_counter", lambda: 1000 * clock())
    slow = tmifpe.evaluate(Slow(), (x, y), THREAT, PGD(steps=3), checks=False)
    assert slow.plan == fast.plan


@pytest.mark.parametrize("shape", [(1, 8, 8), (1, 28, 28), (3, 32, 32), (3, 224, 224), (3, 1024, 1024)])
@pytest.mark.parametrize("attack", ["fgsm", "pgd", "pgd(steps=1000)", "gama"])
def test_shards_are_a_few_batches_and_never_larger_than_memory(shape, attack):
    plan = make_plan(10**6, shape, get_attack(attack))
    values = torch.Size(shape).numel()
    assert plan.shard_size % plan.batch_size == 0
    assert plan.shard_size <= 2**13
    assert plan.shard_size == plan.batch_size or plan.shard_size * values <= 2**24
    assert make_plan(3, shape, get_attack(attack)).shard_size == 3


def test_given_sizes_are_kept():
    assert make_plan(1000, (1, 28, 28), PGD(), batch_size=7, shard_size=30).shard_size == 30
    assert make_plan(1000, (1, 28, 28), PGD(), batch_size=7).batch_size == 7
    assert make_plan(1000, (1, 28, 28), get_attack("autoattack")).shard_size == 250


def test_a_randomised_model_cut_otherwise_is_another_run(tmp_path):
    """Its draws belong to batches, so that the cut is part of the answer, and of the key."""
    asked = {"limit": 48, "store": tmp_path, "checks": False}
    attack = PGD(steps=3)
    first = tmifpe.evaluate(Wrapped(noise), labelled(), THREAT, attack, shard_size=16, **asked)
    again = tmifpe.evaluate(Wrapped(noise), labelled(), THREAT, attack, shard_size=16, **asked)
    other = tmifpe.evaluate(Wrapped(noise), labelled(), THREAT, attack, shard_size=24, **asked)
    assert again.resumed == len(again.outcomes) == len(first.outcomes)
    assert other.resumed == 0
    assert first.spec.key() == again.spec.key() != other.spec.key()


def test_a_model_that_draws_nothing_has_one_key_whatever_the_cut(tmp_path):
    asked = {"limit": 32, "store": tmp_path, "checks": False}
    first = tmifpe.evaluate(Honest(), labelled(), THREAT, PGD(steps=3), shard_size=16, **asked)
    again = tmifpe.evaluate(Honest(), labelled(), THREAT, PGD(steps=3), shard_size=8, **asked)
    assert again.resumed == len(first.outcomes)


def test_every_option_is_declared_for_the_editor():
    assert set(EvaluateOptions.__annotations__) == set(Request.__dataclass_fields__)


def test_an_unknown_option_is_named():
    with pytest.raises(InputError, match="did you mean 'limit'"):
        tmifpe.evaluate(Honest(), labelled(), THREAT, limitt=3)  # pyright: ignore[reportCallIssue]
    with pytest.raises(InputError, match=r"steps belongs to the attack, not to evaluate: attack=\"full\(steps=...\)"):
        tmifpe.evaluate(Honest(), labelled(), THREAT, steps=3)  # pyright: ignore[reportCallIssue]
    with pytest.raises(InputError, match="unknown option of compare 'sedes'"):
        tmifpe.compare(Honest(), labelled(), THREAT, ["ce"], sedes=(1,))  # pyright: ignore[reportCallIssue]


def test_an_autocast_around_the_call_changes_nothing_and_is_noted():
    x, y = labelled(24)
    model = Honest()
    attack = PGD(steps=5)
    alone = tmifpe.evaluate(model, (x, y), THREAT, attack)
    with torch.autocast("cpu", torch.bfloat16):
        within = tmifpe.evaluate(model, (x, y), THREAT, attack)
        assert torch.is_autocast_enabled("cpu")
        smallest = tmifpe.minimal(model, x, y, "linf", steps=10)
        assert (x[:1].flatten(1) @ torch.ones(x[0].numel(), 1)).dtype == torch.bfloat16, "the caller's stays on"
    for name in ("margin", "fooled", "adv_gap"):
        assert (within.outcomes.arrays[name] == alone.outcomes.arrays[name]).all()
    assert within.spec.precision == alone.spec.precision == "fp32"
    assert any("torch.autocast was on" in note for note in within.notes)
    assert not any("autocast" in note for note in alone.notes)
    assert torch.equal(smallest.size, tmifpe.minimal(model, x, y, "linf", steps=10).size)


class LowPrecision(nn.Module):
    """A model with an autocast of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = Honest()
        self.seen: set[torch.dtype] = set()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            self.seen.add((x.flatten(1) @ x.flatten(1).T).dtype)
            return self.inner(x).float()


def test_an_autocast_of_the_models_own_stays():
    x, y = labelled(8)
    model = LowPrecision()
    with torch.autocast("cpu", torch.bfloat16):
        tmifpe.evaluate(model, (x, y), THREAT, PGD(steps=2), checks=False)
    assert model.seen == {torch.bfloat16}
