"""A Ray cluster: one that is there, or one on this machine for as long as it is needed."""

from __future__ import annotations

__all__ = ["cores_each", "import_ray", "ray_cluster", "share_out"]

import os
import signal
import socket
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from tmifpe.core.errors import InputError, first_line, shown
from tmifpe.core.extras import import_extra
from tmifpe.engines.places import count_cores

_REACH_SECONDS = 10.0
_HTTP2 = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0\4\0\0\0\0\0"
"""How a gRPC client begins: the preface of HTTP/2 and empty settings. A server answers with its own settings."""
_SETTINGS = 4
_FOR_ONE_COMMAND: dict[str, Any] = {"include_dashboard": False, "_system_config": {"worker_niceness": 0}}
"""Nobody opens the dashboard of a cluster that lives for one command. By default Ray gives its workers the lowest
priority but a few, and on a busy machine they would hardly run at all."""


def import_ray() -> Any:
    return import_extra("ray", "Runs on Ray", "ray")


@contextmanager
def ray_cluster(address: str = "", workers: int | None = None) -> Iterator[Any]:
    """Ray, connected. Within this, and where the caller has connected already, further calls change nothing.

    address: HOST:PORT, or `auto` for a cluster of which this machine is a node; without it RAY_ADDRESS, or a new
        cluster on this machine, whose processes end with this one.
    workers: how many a new cluster must have room for.
    """
    ray = import_ray()
    if ray.is_initialized():
        yield ray
        return
    address = address or os.environ.get("RAY_ADDRESS", "")
    if address:
        _reach(address)
    new: dict[str, Any] = {"num_cpus": max(count_cores(), workers or 1), **_FOR_ONE_COMMAND}
    try:
        with _own_signals():
            # What workers print goes to Ray's log: it must not spoil the JSON on stdout.
            ray.init(address=address or "local", log_to_driver=False, logging_level="ERROR", **({} if address else new))
    except Exception as error:  # Ray raises whatever its parts raise
        ray.shutdown()
        told = f"cannot connect to Ray at {shown(address)}" if address else "cannot start Ray on this machine"
        raise InputError(f"{told}: {first_line(error)}") from error
    try:
        yield ray
    finally:
        ray.shutdown()


@contextmanager
def _own_signals() -> Iterator[None]:
    """Ray puts its own handler in the place of ours, which lets a run stop between two steps."""
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, before)


def _reach(address: str) -> None:
    """`InputError` if nobody answers there, which Ray itself would take minutes to find out."""
    if address == "auto":
        return
    host, colon, port = address.rpartition(":")
    if not colon or not port.isdigit() or not host or "/" in host:
        raise InputError(f"the address of a Ray cluster is HOST:PORT or auto, got {shown(address)}")
    try:
        with socket.create_connection((host.strip("[]"), int(port)), timeout=_REACH_SECONDS) as connection:
            if os.environ.get("RAY_USE_TLS", "0") not in ("", "0"):
                return
            connection.settimeout(_REACH_SECONDS)
            connection.sendall(_HTTP2)
            head = connection.recv(9)
    except (OSError, OverflowError) as error:
        raise InputError(f"no Ray cluster answers at {shown(address)}: {first_line(error)}") from error
    if len(head) < 4 or head[3] != _SETTINGS:
        raise InputError(f"what answers at {shown(address)} is not a Ray cluster; its port is 6379 by default")


def share_out(nodes: Sequence[Mapping[str, float]], workers: int | None, *, on_gpu: bool) -> tuple[int, int, int]:
    """So many workers, with so many cores and GPUs each; without a number, as many as there are GPUs or cores.

    >>> share_out([{"CPU": 8.0}, {"CPU": 4.0, "GPU": 2.0}], None, on_gpu=True)
    (2, 0, 1)
    >>> share_out([{"CPU": 8.0}, {"CPU": 4.0, "GPU": 2.0}], 3, on_gpu=False)
    (3, 4, 0)
    """
    if on_gpu:  # no cores: the GPUs are what is scarce, and some node may have fewer cores than GPUs
        return workers or max(1, int(sum(node.get("GPU", 0) for node in nodes))), 0, 1
    cores = [int(node.get("CPU", 0)) for node in nodes]
    count = workers or max(1, sum(cores))
    return count, cores_each(cores, count), 0


def cores_each(nodes: Sequence[int], workers: int) -> int:
    """The most cores that every one of so many workers can have on nodes with so many cores; at least one.

    >>> cores_each([8, 8], 2), cores_each([8, 4], 3), cores_each([2], 5)
    (8, 4, 1)
    """
    return max([k for k in range(1, max(nodes, default=1) + 1) if sum(n // k for n in nodes) >= workers], default=1)
