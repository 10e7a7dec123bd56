"""What a number was computed with: the versions of everything that could change it, and the machine."""

from __future__ import annotations

__all__ = ["machine", "versions"]

import os
import platform
import re
from functools import cache
from importlib import metadata
from pathlib import Path

import torch

from tmifpe.version import RESULTS_VERSION, __version__


def versions() -> dict[str, str]:
    """Python, torch, this package, and every dependency of it that is installed.

    >>> sorted({"python", "tmifpe", "torch"} & set(versions()))
    ['python', 'tmifpe', 'torch']
    """
    found = {"python": platform.python_version(), "tmifpe": __version__, "results": str(RESULTS_VERSION)}
    return found | _installed() | {"torch": torch.__version__}


def machine(device: str) -> dict[str, str]:
    """The operating system, the processor, and the device the model runs on. No host or user name."""
    found = {
        "os": platform.platform(),
        "processor": _processor(),
        "cores": str(os.cpu_count()),
        "threads": str(torch.get_num_threads()),
        "device": device,
    }
    if device.startswith("cuda"):
        found["gpu"] = torch.cuda.get_device_name(device)
    return found


@cache
def _installed() -> dict[str, str]:
    """The version of every dependency. Twenty files are read for it, and a process imports each package once."""
    found: dict[str, str] = {}
    for name in sorted(_dependencies()):
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def _dependencies() -> set[str]:
    try:
        asked = metadata.requires("tmifpe") or []
    except metadata.PackageNotFoundError:  # run from a source tree that is not installed
        asked = ["numpy", "safetensors"]
    return {match.group() for line in asked if (match := re.match(r"[A-Za-z0-9_.-]+", line))} - {"tmifpe"}


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, "") or platform.machine()
