"""What tests share: the folder of real data and weights, and small models with known answers."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import typer.main
import typer.testing
from hypothesis import settings
from hypothesis.internal.conjecture import providers
from torch import Tensor, nn

import tmifpe
from tests.browser import chromium
from tests.cases import CASES
from tests.stores import copy_stored
from tmifpe.checks import attack as survivor_checks
from tmifpe.checks.checks import Checks
from tmifpe.core import numerics
from tmifpe.evaluation import prepare
from tmifpe.run.result import Result

typer.testing._get_command = cache(typer.main.get_command)  # to build it takes as long as a short command

# The same cases on every machine and in every order of the tests, unless new ones are searched for (`make fuzz`).
# Hypothesis would mix in the constants of whatever modules have been imported by then.
settings.register_profile("steady", derandomize="TMIFPE_FUZZ" not in os.environ, deadline=None, database=None)
settings.load_profile("steady")
if "TMIFPE_FUZZ" not in os.environ:
    providers._get_local_constants = lambda: providers._local_constants

LEAST_FUZZ_CASES = 10_000
"""In a whole `make test-slow` or `make test SLOW=1`; the quick ones of `make test` come on top."""
WHOLE = ("slow", "not long")
"""What these two select."""


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of real weights, data and the oracle. Under CI (TMIFPE_SHARED set) a missing one is a failure."""
    named = os.environ.get("TMIFPE_SHARED")
    if named is None:
        pytest.skip("TMIFPE_SHARED is not set: no real weights, data or oracle on this machine")
    folder = Path(named).resolve()
    if not folder.is_dir():
        pytest.fail(f"TMIFPE_SHARED={named} is not a folder")
    return folder


@pytest.fixture(autouse=True)
def _same_draws() -> None:
    """What a test draws without a seed of its own does not depend on the tests before it."""
    torch.manual_seed(0)
    np.random.seed(0)
    random.seed(0)


@pytest.fixture(autouse=True)
def _convolves_only_if_marked(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """`make test-portable` runs only `convolutional` tests where a setting changes the bits of convolutions alone."""
    marked = request.node.get_closest_marker
    if marked("numerical") and not marked("convolutional"):

        def refused(*_: object, **__: object) -> None:
            raise AssertionError("a numerical test of a network that convolves must be marked convolutional")

        for name in ("conv1d", "conv2d", "conv3d"):
            monkeypatch.setattr(torch.nn.functional, name, refused)
            monkeypatch.setattr(torch, name, refused)


@pytest.fixture(params=["numpy", "torch"])
def either_library(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is computed of few classes in numpy on a CPU and in torch elsewhere, in each of them."""
    if request.param == "torch":
        monkeypatch.setattr(numerics, "FEW", 0)


@pytest.fixture
def unchecked(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Evaluations without checks, which cost ten times as much as a short attack, whatever the test asks for: for files
    on other subjects. A test that is marked `checked` keeps them; test_flags.py and test_trust.py are about them."""
    if not request.node.get_closest_marker("checked"):
        monkeypatch.setattr(prepare, "Checks", lambda _, *rest: Checks(False, *rest))


@pytest.fixture
def not_led_in(monkeypatch: pytest.MonkeyPatch) -> None:
    """The checks without the attack from larger balls, which takes nine tenths of their time and can only raise
    `found-from-outside`: for tests of other flags."""
    monkeypatch.setattr(survivor_checks, "_from_outside", lambda *_: ())


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """Chromium. Not for the whole session: while it is open, Playwright's event loop runs in this thread."""
    with chromium() as made:
        yield made


@pytest.fixture(scope="session")
def robust_digits() -> tuple[nn.Module, Tensor, Tensor]:
    """The bundled robust model, and sixty images with their labels."""
    model = tmifpe.load_model("digits-robust").module
    assert isinstance(model, nn.Module)
    x, y = tmifpe.load_data("digits", limit=60).fetch(range(60))
    return model, x, y


@pytest.fixture(scope="session")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Path], Result]:
    """What `tests.stores.ask` computes and stores in a folder, without computing it again."""
    return partial(copy_stored, tmp_path_factory.mktemp("stored"))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The slow ones first: one that begins last would keep a single core busy at the end. Backwards, so that those that
    wait for other processes begin early, and the fuzzing, of many short tests, is left to be shared out at the end."""
    slow = [item for item in items if item.get_closest_marker("slow")]
    items[:] = slow[::-1] + [item for item in items if not item.get_closest_marker("slow")]


def _fuzz_cases(config: pytest.Config) -> int:
    """How many fuzz cases passed."""
    return sum(_told(config, CASES))


def _told(config: pytest.Config, name: str) -> list[Any]:
    """What tests that passed recorded under this name, from the reports, which come from all workers."""
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    passed = reporter.stats.get("passed", []) if reporter else []
    return [value for report in passed for key, value in report.user_properties if key == name]


def _too_few(config: pytest.Config) -> bool:
    """Whether this was a whole slow run that tried too few cases."""
    whole = config.getoption("markexpr") in WHOLE and config.args_source is pytest.Config.ArgsSource.TESTPATHS
    worker = hasattr(config, "workerinput")
    return whole and not worker and not config.getoption("keyword") and _fuzz_cases(config) < LEAST_FUZZ_CASES


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    if not exitstatus and _too_few(session.config):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    count = _fuzz_cases(config)
    if _too_few(config):
        terminalreporter.write_line(f"FAILED: {count} fuzz cases, at least {LEAST_FUZZ_CASES} are wanted", red=True)
    elif count:
        terminalreporter.write_line(f"{count} fuzz cases")
    for line in _told(config, "code blocks"):
        terminalreporter.write_line(line)
