"""What makes a run fast, by counting: passes, operators, full batches, imports; and what it does without memory."""

from __future__ import annotations

import platform
import subprocess
import sys
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from tmifpe import PGD, Threat, evaluate
from tmifpe.attacks import Loop, Problem, Queries
from tmifpe.attacks.loop.loop import _Run

FULL = 0.95
MOST_OPERATORS = 78
"""Of torch, at one look of PGD with T-MIFPE at a linear model: what was counted, so that it can only fall."""


class Operators(TorchDispatchMode):
    """Counts what torch is asked to compute."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += 1
        return func(*args, **(kwargs or {}))


def linear(n: int, seed: int = 0) -> tuple[nn.Module, Tensor, Tensor]:
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Flatten(), nn.Linear(48, 10)).requires_grad_(False)
    x = torch.rand(n, 3, 4, 4)
    return model, x, model(x).argmax(dim=1)


def problem(n: int, eps: float) -> tuple[nn.Module, Problem]:
    model, x, y = linear(n)
    return model, Problem(x, y, None, torch.arange(n), Threat("linf", eps))


@pytest.mark.parametrize("mode", ["verdict", "strongest"])
def test_a_look_takes_so_many_operators(mode: str):
    counts = []
    for steps in (5, 9, 5, 9):  # the first runs make what the others look up
        model, given = problem(16, 0.0)  # nothing moves, so that every look is like the next
        with Operators() as seen:
            PGD(steps=steps).run(given, Queries(model), Loop(16, mode))
        counts.append(seen.count)
    assert (counts[3] - counts[2]) / 4 <= MOST_OPERATORS, counts


def test_a_run_takes_its_passes_and_no_more():
    model, x, y = linear(32)
    asked: list[int] = []
    model.register_forward_hook(lambda _, given, __: asked.append(len(given[0])))
    found = evaluate(model, (x, y), Threat("linf", 0.0), PGD(steps=10), checks=False, batch_size=8)
    # A clean pass, ten steps and a last look for each example; no gradient where only judging is left.
    assert found.tally.forwards == sum(asked) == 32 * 12
    assert found.tally.backwards == 32 * 10


@pytest.mark.parametrize("size", [16, 64])
def test_batches_are_full_until_the_queue_is_empty(size: int):
    model, given = problem(400, 0.03)
    queries, seats, early = Queries(model), [], []

    def tick(*_: int) -> None:
        if run.next < len(given) or len(run.waiting):
            seats.append(len(run.batch))

    def verify(adv: Tensor, rows: Problem) -> Tensor:
        early.append(len(adv))
        return rows.succeeded(model(adv).argmax(dim=1))

    run = _Run(PGD(steps=20), given, queries, Loop(size, "verdict", verify, tick))
    broken = int(run.go().fooled.sum())
    assert 40 < broken < 360  # some leave early, some late
    assert len(seats) > 20
    assert sum(seats) >= FULL * size * len(seats)


class Greedy(nn.Module):
    """Wants 2 MiB for every image."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(48, 10)
        self.sizes: list[int] = []

    def forward(self, x: Tensor) -> Tensor:
        self.sizes.append(len(x))
        wide = x.flatten(1)[:, :1, None].expand(-1, 1024, 512).contiguous()
        return self.linear(x.flatten(1)) + 0 * wide.mean(dim=(1, 2))[:, None]


LIMITED = """
import resource, os, torch, tmifpe
from tests.test_speed import Greedy
torch.manual_seed(0)
torch.set_num_threads(1)
model, x = Greedy(), torch.rand(96, 3, 4, 4)
with torch.no_grad():
    y = model.linear(x.flatten(1)).argmax(dim=1)
def asked(n):
    how = dict(checks=False, batch_size=64, shard_size=64)
    return tmifpe.evaluate(model, (x[:n], y[:n]), tmifpe.Threat("linf", 0.0), tmifpe.PGD(steps=2), **how)
asked(2)  # whatever is imported or set up takes no part in what follows
pages = int(open("/proc/self/statm").read().split()[0])
limit = pages * os.sysconf("SC_PAGE_SIZE") + (100 << 20)
resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
model.sizes.clear()
found = asked(96)
print(found.robust, max(model.sizes), model.sizes.count(64), *found.notes)
"""


@pytest.mark.skipif(platform.system() != "Linux", reason="only Linux limits the address space of a process")
def test_out_of_memory_halves_the_batch_and_finishes():
    done = subprocess.run([sys.executable, "-c", LIMITED], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    robust, most, at_64, note = done.stdout.split(maxsplit=3)
    # 64 images want 128 MiB, more than there are.
    assert (robust, most, at_64) == ("96", "64", "1"), done.stdout  # tried once, and not again in the second shard
    assert "memory ran out" in note


LOADED = """
import sys
from tmifpe.cli import app
for words in (["--help"], ["evaluate", "--help"], ["runs", "--help"], ["list", "--help"]):
    try:
        app(words)
    except SystemExit as ended:
        assert ended.code == 0, words
    heavy = {"torch", "numpy", "scipy", "matplotlib"} & set(sys.modules)
    assert not heavy, (words, heavy)
"""


def test_help_imports_nothing_heavy():
    done = subprocess.run([sys.executable, "-c", LOADED], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]


BRIEF = """
import sys, tmifpe
model, data = tmifpe.load_model("digits-robust"), tmifpe.load_data("digits", limit=8)
found = tmifpe.evaluate(model, data, tmifpe.Threat("linf", 0.05), tmifpe.PGD(steps=3))
assert found.n == 8
heavy = {"sympy", "sklearn", "pandas", "matplotlib", "scipy.stats", "torch._dynamo"} & set(sys.modules)
assert not heavy, heavy
"""


def test_a_short_evaluation_imports_nothing_that_takes_longer_than_it():
    done = subprocess.run([sys.executable, "-c", BRIEF], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
