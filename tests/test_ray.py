"""Ray without a cluster: what is said when it is not installed or not reachable. The rest is in test_ray_cluster.py."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import threading
from contextlib import suppress

import pytest
import torch

import tmifpe
from tests.trouble import THREAT
from tmifpe.core.errors import InputError, MissingExtra
from tmifpe.engines import ray_connection as cluster
from tmifpe.engines.ray_connection import ray_cluster
from tmifpe.run.request import Request

MODEL = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(4, 3))
DATA = (torch.rand(4, 1, 2, 2), torch.zeros(4, dtype=torch.long))


def test_without_ray_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(MissingExtra, match=r"pip install 'tmifpe\[ray\]'"):
        tmifpe.evaluate(MODEL, DATA, THREAT, engine="ray")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"engine": "rya"}, "did you mean 'ray'"),
        ({"engine": 3}, "unknown engine"),
        ({"engine": "local", "workers": 2}, "takes no workers"),
        ({"engine": "processes:host:1"}, "only ray takes an address"),
        ({"engine": "ray:"}, "only ray takes an address"),
    ],
)
def test_engines_that_do_not_fit(options, said):
    with pytest.raises(InputError, match=said):
        Request(**options)


@pytest.fixture
def answering(monkeypatch):
    """A server that gives this answer to whoever connects; silence lasts half a second and not ten."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def started(answer: bytes) -> str:
            monkeypatch.setattr(cluster, "_REACH_SECONDS", 60.0 if answer else 0.5)

            def serve() -> None:
                with suppress(OSError):  # the other side hangs up, or has done so before it is accepted
                    connection, _ = server.accept()
                    with connection:
                        connection.sendall(answer)
                        while connection.recv(64):
                            pass

            threading.Thread(target=serve, daemon=True).start()
            return f"127.0.0.1:{server.getsockname()[1]}"

        yield started


@pytest.mark.parametrize(
    ("answer", "said"), [(b"", "timed out"), (b"HTTP/1.1 400 Bad Request", "is not a Ray cluster")]
)
def test_an_address_where_no_ray_answers(answering, answer, said):
    pytest.importorskip("ray")
    with pytest.raises(InputError, match=said), ray_cluster(answering(answer)):
        pass


def test_an_address_that_never_answers_is_given_up_within_30_seconds(monkeypatch):
    """To connect and to be answered may each take as long as there is patience for, as if all of it were taken."""
    patience = []

    class Silent:
        def __enter__(self):
            return self

        def __exit__(self, *_: object) -> None:
            pass

        def settimeout(self, seconds: float) -> None:
            patience.append(seconds)

        def sendall(self, _: bytes) -> None:
            pass

        def recv(self, _: int) -> bytes:
            raise TimeoutError("timed out")

    def connected(_: object, timeout: float) -> Silent:
        patience.append(timeout)
        return Silent()

    monkeypatch.delenv("RAY_USE_TLS", raising=False)
    monkeypatch.setattr(socket, "create_connection", connected)
    with pytest.raises(InputError, match="no Ray cluster answers"):
        cluster._reach("10.0.0.5:6379")
    assert len(patience) == 2
    assert 0 < sum(patience) <= 30


def test_an_address_where_nobody_listens(monkeypatch):
    pytest.importorskip("ray")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound and not listening: refused
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(InputError, match=f"no Ray cluster answers at '{address}': .*refused"):
            tmifpe.evaluate(MODEL, DATA, THREAT, engine=f"ray:{address}")
        monkeypatch.setenv("RAY_ADDRESS", address)
        with pytest.raises(InputError, match="no Ray cluster answers"), ray_cluster():
            pass
    for bad in ("somewhere", "ray://host:10001", "host:port", ":6379"):
        with pytest.raises(InputError, match="HOST:PORT"), ray_cluster(bad):
            pass


def test_the_handler_of_signals_stays_ours():
    """Ray sets its own, which would end the program in the middle of a step."""
    handler = signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        with cluster._own_signals():
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
        assert signal.getsignal(signal.SIGTERM) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGTERM, handler)


def test_nobody_imports_ray_who_does_not_use_it():
    code = "import sys, tmifpe.engines; assert tmifpe.engines.RayActors; assert 'ray' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
