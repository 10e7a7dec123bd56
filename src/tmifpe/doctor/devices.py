"""Python, the processor and the devices that torch can compute on."""

from __future__ import annotations

__all__ = ["find_devices", "find_python"]

import platform
import sys
from collections.abc import Iterator

from tmifpe.core.errors import InputError
from tmifpe.doctor.diagnosis import Diagnosis
from tmifpe.version import __version__

OLDEST = (3, 10)


def find_python() -> Iterator[Diagnosis]:
    """tmifpe and Python themselves."""
    yield Diagnosis("version", "tmifpe", "ok", __version__)
    new_enough = sys.version_info >= OLDEST
    told = f"{platform.python_version()} ({platform.python_implementation()}, {platform.platform()})"
    yield Diagnosis("version", "python", "ok" if new_enough else "broken", told)


def find_devices() -> Iterator[Diagnosis]:
    """The CPU, every CUDA device and Apple's MPS: a device that is there must add one and one."""
    import torch

    from tmifpe.run.environment import machine

    cpu = machine("cpu")
    yield _tried("cpu", f"{cpu['processor']}, {cpu['cores']} cores, {cpu['threads']} threads")
    for number in range(torch.cuda.device_count()):
        yield _tried(f"cuda:{number}", torch.cuda.get_device_name(number))
    if not torch.cuda.is_available():
        why = "no GPU is found" if torch.backends.cuda.is_built() else f"torch {torch.__version__} has no CUDA"
        yield Diagnosis("device", "cuda", "absent", why)
    if torch.backends.mps.is_available():
        yield _tried("mps", "Apple's GPU")
    else:
        yield Diagnosis("device", "mps", "absent", "not on this machine")


def _tried(name: str, told: str) -> Diagnosis:
    from tmifpe.run.prepared_model import pick_device

    try:
        pick_device(name)
    except InputError as error:
        return Diagnosis("device", name, "broken", f"{told}: {error}")
    return Diagnosis("device", name, "ok", told)
