"""The Ray engine: what is said without Ray or without a cluster, and the same outcomes where there is one."""

from __future__ import annotations

import socket
import sys

import pytest
import torch

import tmifpe
from tests.stores import ask, same
from tmifpe.core.errors import InputError, MissingExtra
from tmifpe.engines.ray_actors import _reach
from tmifpe.run.request import Request

THREAT = tmifpe.Threat("linf", 0.1)


def test_without_ray_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(4, 3))
    with pytest.raises(MissingExtra, match=r"pip install 'tmifpe\[ray\]'"):
        tmifpe.evaluate(model, (torch.rand(4, 1, 2, 2), torch.zeros(4).long()), THREAT, engine="ray")


def test_an_address_where_nobody_listens():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound and not listening: refused
        with pytest.raises(InputError, match=r"no Ray cluster answers at ray://127\.0\.0\.1"):
            _reach(f"ray://127.0.0.1:{taken.getsockname()[1]}")
    with pytest.raises(InputError, match="HOST:PORT"):
        _reach("somewhere")


@pytest.mark.parametrize("options", [{"engine": "rya"}, {"engine": "local", "workers": 2}, {"address": "a:1"}])
def test_options_that_do_not_fit(options):
    with pytest.raises(InputError, match=r"did you mean 'ray'|takes no workers|needs the engine ray"):
        Request(**options)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::FutureWarning", "ignore::DeprecationWarning")
def test_ray_gives_the_outcomes_of_this_process(tmp_path):
    ray = pytest.importorskip("ray", reason="ray is not installed: pip install 'tmifpe[ray]'")
    local = ask()
    assert same(ask(tmp_path / "one", engine="ray", workers=2), local), "example by example"
    assert not ray.is_initialized()
    half = tmp_path / "half"
    ask(half, shard="1/2")
    store = half / "shard-1-of-2"
    assert ask(store, engine="ray", workers=1).resumed == 24, "half of it here, the rest by Ray"
    assert same(ask(store), local)


@pytest.mark.slow
def test_an_unreachable_cluster_is_said():
    pytest.importorskip("ray", reason="ray is not installed: pip install 'tmifpe[ray]'")
    with pytest.raises(InputError, match="no Ray cluster answers"):
        ask(engine="ray", address="203.0.113.1:6379")  # reserved for documentation: nobody is there
