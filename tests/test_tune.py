"""The executor: what it changes gives the same function, what it chooses is recorded, and verdicts stay the model's."""

from __future__ import annotations

import dataclasses
import threading
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import tmifpe
from tmifpe import PGD, Threat, evaluate
from tmifpe.attacks.loop import Loop, Problem
from tmifpe.attacks.loop.parts import FEWEST, PartedQueries
from tmifpe.attacks.loop.queries import Queries
from tmifpe.core.errors import InputError
from tmifpe.data import as_data
from tmifpe.engines.parcel import Order
from tmifpe.evaluation import prepare
from tmifpe.models.normalize import Normalize
from tmifpe.run.prepared_model import PreparedModel
from tmifpe.run.request import Request
from tmifpe.run.shard import Job, run_shard
from tmifpe.run.spec import Plan
from tmifpe.run.tune import choose as choosing
from tmifpe.run.tune.bench import BETTER, Bench
from tmifpe.run.tune.choose import choose
from tmifpe.run.tune.executor import faster_copy, followed, tuned, using_threads
from tmifpe.run.tune.fold import folded
from tmifpe.run.tune.image_gradient import ImageConv
from tmifpe.run.tune.tuning import Tuning

pytestmark = pytest.mark.usefixtures("unchecked")
CPU = torch.device("cpu")
SMOOTH = PGD(steps=100, smooth=1.0)
"""Which cannot be compiled, so that nobody waits for it."""


class Block(nn.Module):
    """A residual block whose one rectifier is used twice."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Conv2d(channels, channels, 3, padding=1, bias=False), nn.BatchNorm2d(channels))
        self.second, self.norm = nn.Conv2d(channels, channels, 3, padding=1), nn.BatchNorm2d(channels)
        self.relu = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        return self.relu(self.norm(self.second(self.relu(self.first(x)))) + x)


def network(padding: int = 1, classes: int = 5) -> nn.Module:
    """Normalisation, convolutions, BatchNorm with statistics of its own, a linear layer with BatchNorm behind it."""
    torch.manual_seed(0)
    inner = nn.Sequential(
        *(nn.Conv2d(3, 4, 3, padding=padding), nn.BatchNorm2d(4), nn.ReLU(), Block(4), nn.Flatten()),
        *(nn.LazyLinear(8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, classes)),
    )
    inner(torch.rand(2, 3, 8, 8))
    for module in inner.modules():
        if isinstance(module, nn.BatchNorm1d | nn.BatchNorm2d):
            assert module.running_mean is not None
            assert module.running_var is not None
            module.running_mean.uniform_(-1, 1)
            module.running_var.uniform_(0.5, 2)
            nn.init.uniform_(module.weight, 0.5, 2)
    return Normalize(inner, (0.4, 0.5, 0.6), (0.2, 0.3, 0.4)).eval().requires_grad_(False)


def images(n: int = 8) -> Tensor:
    return torch.rand(n, 3, 8, 8, generator=torch.Generator().manual_seed(1))


def data(n: int = 24) -> tuple[Tensor, Tensor]:
    x = images(n)
    with torch.no_grad():
        return x, network()(x).argmax(dim=1)


def prepared(model: Any) -> PreparedModel:
    return PreparedModel(model, torch.float32, CPU)


def gradient(model: Any, x: Tensor) -> tuple[Tensor, Tensor]:
    leaf = x.clone().requires_grad_()
    logits = model(leaf)
    return logits.detach(), torch.autograd.grad(logits.sum(), leaf)[0]


@pytest.mark.parametrize("padding", [0, 1])
@pytest.mark.parametrize("tuning", [Tuning(folded=True), Tuning(channels_last=True, folded=True)], ids=str)
def test_a_copy_is_the_same_function(padding: int, tuning: Tuning):
    model = network(padding)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    fast = faster_copy(prepared(model), tuning)
    (mine, my_grad), (theirs, their_grad) = gradient(model, images()), gradient(fast, images())
    # Each logit is a sum of about a hundred rounded products of numbers of size 1: 1e-5 is a hundred roundings.
    assert torch.allclose(mine, theirs, rtol=1e-5, atol=1e-5)
    assert torch.allclose(my_grad, their_grad, rtol=1e-3, atol=1e-4)
    assert their_grad.is_contiguous()
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_what_can_be_folded_is():
    whole, padded = folded(network(0)), folded(network(1))
    assert whole is not None
    assert padded is not None
    for found in (whole, padded):
        assert not any(isinstance(module, nn.BatchNorm1d | nn.BatchNorm2d) for module in found.modules())
        rectifiers = [module for module in found.modules() if isinstance(module, nn.ReLU)]
        assert len(rectifiers) == 4  # the shared one is two of them
        assert all(module.inplace for module in rectifiers)
    kept = [sum(type(module).__name__ == "_Shift" for module in found.modules()) for found in (whole, padded)]
    assert kept == [0, 1]  # zeros are added around the normalised image, so its mean must be there


class Looks(nn.Module):
    """Asks what its image is like, and so cannot be traced."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(192, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x.flatten(1) if bool(x.mean() > -1) else x.flatten(1) * 2)


class Cuts(nn.Module):
    """Cuts the gradient in a way that tracing does not see."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.linear = nn.Conv2d(3, 3, 3, padding=1), nn.Linear(192, 5)

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            cut = torch.relu(self.conv(x))
        return self.linear((cut + 0.1 * x).flatten(1))


class Draws(nn.Module):
    """Draws numbers that tracing would take for a constant."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.linear = nn.Conv2d(3, 3, 3, padding=1), nn.Linear(192, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(torch.relu(self.conv(x + 0.1 * torch.rand(3, 8, 8))).flatten(1))


def test_what_cannot_be_traced_is_not_folded():
    assert folded(Looks().eval()) is None
    assert folded(nn.Sequential(nn.Flatten(), nn.Linear(4, 2)).eval()) is None  # nothing to fold


def test_a_copy_with_other_gradients_loses(monkeypatch: pytest.MonkeyPatch):
    torch.manual_seed(0)
    model = Cuts().eval().requires_grad_(False)
    assert folded(model) is not None
    bench = Bench(prepared(model), images())
    monkeypatch.setattr(bench, "_seconds", lambda _, tuning, __: 0.1 if tuning.folded else 1.0)
    assert bench.race(Tuning(), Tuning(folded=True)) == Tuning()
    fair = Bench(prepared(network()), images())
    monkeypatch.setattr(fair, "_seconds", lambda _, tuning, __: 0.1 if tuning.folded else 1.0)
    assert fair.race(Tuning(), Tuning(folded=True)) == Tuning(folded=True, gain=10.0)


class Counted(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner, self.calls, self.seen = inner, 0, 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        self.seen += x.shape[0]
        return self.inner(x)


def test_a_short_run_is_not_measured_at_all():
    model, source = Counted(network()), tmifpe.data.as_data(data())
    assert choose(prepared(model), source, Plan(24, 8, 24), PGD(steps=40)) is None
    assert model.calls == 0
    assert choose(prepared(model), source, Plan(24, 8, 24), tmifpe.get_attack("square"), "full") is None
    assert model.calls == 0


def test_measuring_stays_within_its_share(monkeypatch: pytest.MonkeyPatch):
    def broken(*_: Any, **__: Any) -> Any:
        raise RuntimeError("no compiler")  # on a slow machine there would be time for it, and none is needed

    monkeypatch.setattr(torch, "compile", broken)
    monkeypatch.setattr(choosing, "_COMPILING", 0.0)
    model, source = Counted(network()), tmifpe.data.as_data(data())
    choose(prepared(model), source, Plan(4000, 8, 512), PGD(steps=100))
    assert 0 < model.seen <= choosing.SHARE * 4000 * 100


def test_a_randomised_model_is_left_alone():
    torch.manual_seed(0)
    model, source = Draws().eval().requires_grad_(False), tmifpe.data.as_data(data())
    state = torch.get_rng_state()
    assert choose(prepared(model), source, Plan(24, 8, 24), PGD(steps=5), "full") is None
    assert torch.equal(torch.get_rng_state(), state)


def tries(model: Any, attack: str | PGD = "pgd", **options: Any) -> list[str]:
    """What would be tried, in order."""
    bench = Bench(replace(prepared(model), **options), images())
    return [
        " ".join(f"{name}={value}" for name, value in change.items())
        for change in choosing._changes(
            bench, attack if isinstance(attack, PGD) else tmifpe.get_attack(attack), 256, True
        )
    ]


def test_what_is_tried(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(choosing, "_LONG", 0.0)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    copies = [
        "folded=True channels_last=True",
        "parts=2 threads=1",
        "channels_last=True",
        "folded=True",
        "folded=False",
        "channels_last=False",
    ]
    alone = "threads=1 parts=None"
    assert tries(network()) == [*copies, alone, "compiled=True parts=None threads=None"]
    assert tries(network(), "pgd(smooth=3)") == [*copies, alone]
    assert tries(network(), straight_through=("network.2",)) == [alone]  # modules are named
    watched = network()
    watched.register_forward_hook(lambda *_: None)
    assert tries(watched) == [alone]
    assert tries(lambda x: network()(x)) == [alone]
    assert tries(network().double(), dtype=torch.float64) == [alone]
    monkeypatch.setattr(torch, "get_num_threads", lambda: 64)
    assert tries(network())[1] == "parts=8 threads=8"  # of 32 rows
    others = PGD(loss=lambda z, y, _: -z.gather(1, y[:, None])[:, 0])  # which may not be made for several threads
    assert tries(network(), others)[1] == "channels_last=True"
    monkeypatch.setattr(choosing, "_LONG", 1e9)  # a pass is mostly Python
    assert tries(network())[1] == "channels_last=True"


class Liar(nn.Module):
    """Calls everything another class than the model does."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x).roll(1, dims=1)


class Remembers(nn.Module):
    """Keeps what it has computed for later in the same pass, as users' modules do: two threads must not share it."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.seen = network(), torch.zeros(0)

    def forward(self, x: Tensor) -> Tensor:
        self.seen = x.mean(dim=(1, 2, 3), keepdim=True)
        inner = self.inner(x)
        time.sleep(0.002)  # so that the others come in between
        return inner + self.seen.flatten(1)


@pytest.fixture
def parted() -> tuple[nn.Module, Problem, PartedQueries]:
    """A model that no two threads may share, in float64, with a copy for each of three parts."""
    model = Remembers().double().eval().requires_grad_(False)
    made = tuned(PreparedModel(model, torch.float64, CPU), Tuning(parts=3, threads=1))
    assert {id(weight) for copied in made.copies for weight in copied.parameters()} == {
        id(weight) for weight in cast(nn.Module, made.fast).parameters()
    }
    x = images(3 * FEWEST).double()
    problem = Problem(x, model(x).argmax(dim=1), None, torch.arange(len(x)), Threat("linf", 0.3))
    queries = followed(made, Queries(model, torch.float64))
    assert isinstance(queries, PartedQueries)
    return model, problem, queries


@pytest.mark.parametrize("mode", ["verdict", "strongest"])
@pytest.mark.parametrize("smooth", [0.0, 2.0])
def test_parts_find_what_one_loop_finds(parted: Any, smooth: float, mode: str):
    model, problem, queries = parted
    plain, told, busy = Queries(model, torch.float64), [], []

    def verify(adv: Tensor, rows: Problem) -> Tensor:
        busy.append(len(busy))
        time.sleep(0.002)  # so that the others come in between
        assert busy.pop() == 0, "one at a time"
        return rows.succeeded(model(adv).argmax(dim=1))

    def tick(done: int, broken: int) -> None:
        assert threading.current_thread() is threading.main_thread()
        told.append((done, broken, queries.tally.forwards))

    attack = PGD(steps=4, smooth=smooth)
    mine = attack.run(problem, queries, Loop(32, mode, verify, tick))
    theirs = attack.run(problem, plain, Loop(32, mode, verify))
    assert torch.equal(mine.fooled, theirs.fooled)
    assert 0 < int(mine.fooled.sum()) < len(problem)
    # Products round differently in batches of another size; four steps make it a thousand times as large.
    torch.testing.assert_close(mine.margin, theirs.margin, rtol=0, atol=1e-10)
    assert (queries.tally.forwards, queries.notes) == (plain.tally.forwards, plain.notes)
    # A last look has a gradient if another row of its batch needs one.
    assert abs(queries.tally.backwards - plain.tally.backwards) <= len(problem)
    assert told == sorted(told)
    assert told[-1][:2] == (len(problem), int(mine.fooled.sum()))


def test_few_rows_are_one_loop(parted: Any, monkeypatch: pytest.MonkeyPatch):
    _, problem, queries = parted
    monkeypatch.setattr("tmifpe.attacks.loop.loop.run_parts", lambda *_: pytest.fail("in parts"))
    few = problem.take(torch.arange(3 * FEWEST - 1))
    assert len(PGD(steps=1).run(few, queries, Loop(32)).fooled) == len(few)


def test_the_last_few_rows_are_one_loop(parted: Any):
    """All but ten rows are broken at the first look, and these ten are then attacked together."""
    model, problem, queries = parted
    problem = problem.at(torch.where(problem.indices < len(problem) - 10, 0.0, 1e-6))
    other = (problem.labels + 1) % model(problem.x).shape[1]
    wrong = torch.where(problem.indices < len(problem) - 10, other, problem.labels)
    problem = dataclasses.replace(problem, labels=wrong)
    seen: list[int] = []
    together = threading.Barrier(len(queries.copies))

    def wait(*_: Any) -> None:  # until all parts have told of their first look, or have stopped after it
        with suppress(threading.BrokenBarrierError):
            together.wait(timeout=1)

    for copied in queries.copies:
        cast(nn.Module, copied).register_forward_pre_hook(wait)
    queries.model.register_forward_hook(lambda _, given, __: seen.append(len(given[0])))
    told: list[tuple[int, int]] = []
    found = PGD(steps=20).run(problem, queries, Loop(tick=lambda *now: told.append(now)))
    assert found.fooled.tolist() == [True] * (len(problem) - 10) + [False] * 10
    assert (found.steps == torch.where(found.fooled, 0, 20)).all()
    assert seen[:15] == [10] * 15  # some are a look or two ahead, and end so much earlier
    assert told[-1] == (len(problem), len(problem) - 10)
    theirs = PGD(steps=20).run(problem, Queries(model, torch.float64), Loop())
    torch.testing.assert_close(found.margin, theirs.margin, rtol=0, atol=1e-9)
    torch.testing.assert_close(found.best, theirs.best, rtol=0, atol=1e-9)


def test_what_one_part_meets_ends_all(parted: Any):
    _, problem, queries = parted
    alive = threading.active_count()
    hook = queries.copies[1].register_forward_hook(lambda *_: torch.zeros(3))
    with pytest.raises(InputError, match="logits"):
        PGD(steps=1000).run(problem, queries, Loop(32))
    hook.remove()

    def enough(*_: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        PGD(steps=1000).run(problem, queries, Loop(32, tick=enough))
    assert queries.tally.forwards < 100 * len(problem)
    queries.workers.shutdown()  # at once, since nobody works any more
    assert threading.active_count() <= alive


@pytest.mark.numerical
@pytest.mark.convolutional
@settings(max_examples=60, deadline=None)
@given(
    channels=st.integers(1, 4),
    kernel=st.tuples(st.integers(1, 4), st.integers(1, 4)),
    stride=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    padding=st.tuples(st.integers(0, 2), st.integers(0, 2)),
    dilation=st.integers(1, 2),
    last=st.booleans(),
)
def test_the_gradient_at_the_images_is_the_convolutions_own(channels, kernel, stride, padding, dilation, last):
    torch.manual_seed(0)
    layer = nn.Conv2d(channels, 5, kernel, stride, padding, dilation).double().requires_grad_(False)
    x = torch.rand(2, channels, 9, 8, dtype=torch.float64)
    x = x.contiguous(memory_format=torch.channels_last) if last else x
    assert ImageConv.fits(layer)
    (out, grad), (expected, theirs) = (gradient(net, x) for net in (ImageConv(layer), layer))
    assert torch.equal(out, expected)
    # Sums of at most 80 products of numbers below 2, in float64.
    torch.testing.assert_close(grad, theirs, rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    "layer",
    [
        nn.Conv2d(5, 2, 3),
        nn.Conv2d(4, 4, 3, groups=2),
        nn.Conv2d(3, 2, 3, padding="same"),
        nn.Conv2d(3, 2, 3, padding=1, padding_mode="circular"),
        nn.Linear(3, 2),
    ],
)
def test_other_layers_keep_their_own_gradient(layer: nn.Module):
    assert not ImageConv.fits(layer)


@pytest.mark.parametrize(("seconds", "taken"), [(0.9, True), (1.02, True), (1.05, False)])
def test_the_likely_candidate_must_only_not_lose(monkeypatch: pytest.MonkeyPatch, seconds: float, taken: bool):
    def took(self: Bench, queries: Any, tuning: Tuning, clock: Any) -> float:
        return seconds if tuning.changes_model or tuning.threads else 1.0

    monkeypatch.setattr(Bench, "_seconds", took)
    found = choose(prepared(network()), as_data(data()), Plan(24, 8, 8), SMOOTH, "full", grows=False)
    assert found is not None
    assert (found.folded, found.channels_last) == (taken, taken)
    assert found.gain == pytest.approx(1 / seconds if taken else 1.0)


@pytest.mark.parametrize(("rows", "raced"), [(64, True), (60, False)])
def test_parts_are_raced_on_as_many_rows_as_the_run_has(monkeypatch: pytest.MonkeyPatch, rows: int, raced: bool):
    """With fewer, the share of Python would be larger than in the run, and they are taken if they are right."""
    asked: list[Tuning] = []

    def race(self: Bench, best: Tuning, candidate: Tuning, least: float = 1.03) -> Tuning:
        asked.append(candidate)
        return best

    monkeypatch.setattr(Bench, "race", race)
    monkeypatch.setattr(choosing, "_LONG", 0.0)
    kept = as_data(data(64))
    monkeypatch.setattr(choosing, "SHARE", rows * 16 / (64 * 100))
    monkeypatch.setattr(choosing, "_SHORTEST", 0.0)
    with using_threads(2):
        found = choose(prepared(network()), kept, Plan(64, 64, 64), SMOOTH, "auto", grows=False)
    assert found is not None
    assert any(one.parts for one in asked) == raced
    assert found.parts == (None if raced else 2)


def test_two_batches_of_a_shard_are_one():
    """Whatever the races say: what the first leaves for the second takes as many looks, with few rows in each."""
    model, kept = prepared(network()), as_data(data())

    def size(plan: Plan, **options: Any) -> int | None:
        found = choose(model, kept, plan, SMOOTH, "full", **options)
        assert found is not None
        return found.batch_size

    assert size(Plan(24, 8, 16)) == 16
    assert size(Plan(24, 8, 12)) == 12
    assert size(Plan(24, 8, 8)) is None
    assert size(Plan(24, 8, 16), grows=False) is None


def test_a_worker_has_its_own_threads():
    assert Tuning(folded=True, parts=2, threads=1).elsewhere == Tuning(folded=True)


@pytest.mark.parametrize("mode", ["verdict", "strongest"])
def test_the_untouched_model_gives_the_verdicts(mode: str):
    model, source = network(), tmifpe.data.as_data(data())
    job = Job(replace(prepared(model), fast=Liar(model)), source, Threat("linf", 0.0), PGD(steps=3), mode=mode)
    found = run_shard(job, 0, range(24))
    assert found.outcomes.correct.all()
    assert not found.outcomes.fooled.any()
    assert found.tally.forwards > 24 * 4  # and every claim was read again


def test_tuned_and_untuned_agree(robust_digits: tuple[nn.Module, Tensor, Tensor], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(prepare, "choose", lambda *_, **__: Tuning(channels_last=True, folded=True, parts=2, threads=1))
    model, x, y = robust_digits
    threads = torch.get_num_threads()
    for attack in ("pgd(steps=20)", "quick"):
        plain, fast = (evaluate(model, (x, y), Threat("linf", 0.1), attack, tune=tune) for tune in ("off", "auto"))
        assert (plain.plan.tuning, fast.plan.tuning is not None) == (None, True)
        # Last digits differ; of sixty examples, one may lie that near to the boundary.
        assert (plain.outcomes.fooled != fast.outcomes.fooled).sum() <= 1
    assert torch.get_num_threads() == threads


@pytest.mark.parametrize("tuning", [Tuning(), Tuning(folded=True), Tuning(folded=True, parts=2, threads=1)], ids=str)
def test_stage_costs_add_up_at_several_radii_on_a_copy_too(tuning: Tuning, monkeypatch: pytest.MonkeyPatch):
    """Two forms of queries count into one list."""
    monkeypatch.setattr(prepare, "choose", lambda *_, **__: tuning)
    attack, model = "+".join(["pgd(steps=2)", "gama(steps=2)", "apgd(steps=2)"]), network()
    asked = {"tune": "full", "checks": False, "batch_size": 8}
    found = evaluate(model, data(), Threat("linf", 0.02), attack, radii=[0.005, 0.01], **asked)
    assert found.robust > 0, "every stage has something to attack at every radius"
    assert len(found.stages) == 3
    assert sum(stage.forwards for stage in found.stages) + len(data()[0]) == found.tally.forwards
    assert sum(stage.backwards for stage in found.stages) == found.tally.backwards
    assert sum(stage.broken for stage in found.stages) == found.broken


def test_the_choice_is_recorded_and_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    chosen = Tuning(channels_last=True, folded=True, batch_size=4, gain=1.5, seconds=0.25)
    monkeypatch.setattr(prepare, "choose", lambda *_, **__: chosen)
    asked: dict[str, Any] = {"store": tmp_path, "shard_size": 8, "batch_size": 2, "tune": "auto"}

    def stop(step: Any) -> None:
        if step.done > 8:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        evaluate(network(), data(), Threat("linf", 0.05), PGD(steps=3), progress=stop, **asked)

    def refused(*_: Any, **__: Any) -> None:
        raise AssertionError("a resumed run goes on as it began")

    monkeypatch.setattr(prepare, "choose", refused)
    found = evaluate(network(), data(), Threat("linf", 0.05), PGD(steps=3), **asked)
    assert found.resumed == 8
    assert found.plan.tuning == chosen
    assert found.to_json()["tuning"] == dataclasses.asdict(chosen)
    (run,) = tmifpe.Store(tmp_path).runs()
    assert run.plan.tuning == chosen
    again = evaluate(network(), data(), Threat("linf", 0.05), PGD(steps=3), **asked | {"tune": "off"})
    assert (again.resumed, again.plan.tuning) == (0, None)


def test_off_and_array_jobs_choose_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    asked: list[str] = []
    monkeypatch.setattr(prepare, "choose", lambda *given, **_: asked.append(given[4]))
    attack, threat = PGD(steps=1), Threat("linf", 0.05)
    evaluate(network(), data(), threat, attack, tune="off")
    monkeypatch.setenv("TMIFPE_TUNE", "off")
    evaluate(network(), data(), threat, attack)
    evaluate(network(), data(), threat, attack, tune="auto", shard="1/2", shard_size=8, store=tmp_path)
    assert asked == []
    evaluate(network(), data(), threat, attack, tune="auto")
    evaluate(network(), data(), threat, attack, tune="full", shard="1/2", shard_size=8, store=tmp_path / "full")
    assert asked == ["auto", "full"]


def test_one_choice_serves_all_columns(monkeypatch: pytest.MonkeyPatch):
    asked: list[Tuning] = []

    def once(*_: Any, **__: Any) -> Tuning:
        asked.append(Tuning(folded=True))
        return asked[-1]

    monkeypatch.setattr(prepare, "choose", once)
    row = tmifpe.compare(network(), data(), Threat("linf", 0.05), ["ce", "cw"], PGD(steps=1), tune="auto")
    assert [runs[0].plan.tuning for runs in row.results.values()] == 2 * asked


def test_workers_are_told():
    job = Job(prepared(network()), tmifpe.data.as_data(data()), Threat("linf", 0.1), PGD(), tuning=Tuning(folded=True))
    assert Order.of(job).tuning == Tuning(folded=True)
    made = tuned(job.prepared, Order.of(job).tuning)
    assert made.fast is not None
    assert tuned(made, None).fast is None


def test_workers_run_the_model_alike(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(prepare, "choose", lambda *_, **__: Tuning(channels_last=True, folded=True))
    seen: list[Any] = []
    made = Order.of
    monkeypatch.setattr(Order, "of", lambda job: seen.append(made(job)) or seen[-1])
    asked: dict[str, Any] = {"tune": "auto", "shard_size": 12, "batch_size": 8}
    with using_threads(1):  # as many as a worker has
        here, there = (
            evaluate(network(), data(), Threat("linf", 0.3), PGD(steps=5), **asked, **engine)
            for engine in ({}, {"workers": 1})
        )
    assert [order.tuning for order in seen] == [here.plan.tuning]
    for name, values in here.outcomes.arrays.items():
        np.testing.assert_array_equal(values, there.outcomes.arrays[name], name)
    assert 0 < here.broken < 24


def test_full_finds_something(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(choosing, "_COMPILING", float("inf"))  # minutes
    found = evaluate(network(), data(), Threat("linf", 0.05), PGD(steps=2), tune="full")
    assert found.plan.tuning is not None
    # The first candidate may be that much slower, and whatever follows it must be faster.
    assert found.plan.tuning.gain > 1 / BETTER
    assert 0 < found.plan.tuning.seconds < time.perf_counter()


def test_threads_are_restored():
    before = torch.get_num_threads()
    with using_threads(1):
        assert torch.get_num_threads() == 1
    assert torch.get_num_threads() == before


@pytest.mark.parametrize(
    "odd",
    [
        {"folded": 1},
        {"threads": 0},
        {"parts": -1},
        {"threads": True},
        {"batch_size": 1e9},
        {"autocast": "int8"},
        {"gain": "inf"},
    ],
)
def test_a_stored_choice_is_not_trusted(odd: dict[str, Any]):
    with pytest.raises((ValueError, TypeError)):
        Tuning.from_dict(odd)


def test_plans_of_any_version_are_read():
    old = {"n": 4, "batch_size": 2, "shard_size": 2}
    assert Plan.from_dict(old).as_dict() == old
    plan = Plan(4, 2, 2, Tuning(threads=1))
    assert Plan.from_dict(plan.as_dict()).tuning == Tuning(threads=1)
    assert Plan.from_dict(old | {"tuning": {"threads": 1, "unheard": "of"}}).tuning == Tuning(threads=1)
    assert plan == Plan.from_dict(old)  # the same cut


def test_a_misspelt_mode_is_refused(monkeypatch: pytest.MonkeyPatch):
    with pytest.raises(InputError, match="tune must be auto, off or full, got 'on'"):
        Request(tune="on")
    monkeypatch.setenv("TMIFPE_TUNE", "full")
    assert (Request().tune, Request(tune="off").tune) == ("full", "off")


def test_a_choice_in_words():
    assert str(Tuning()) == "as it is"
    both = Tuning(True, True, True, "bf16", 2, batch_size=64, gain=1.25)
    assert str(both) == (
        "channels last, layers folded, compiled, attack in bf16, 2 threads, batches of 64: 1.25 times as fast"
    )
    assert str(Tuning(parts=2, threads=1, gain=2)) == "rows in 2 parts: 2.00 times as fast"
