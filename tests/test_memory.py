"""Freed memory is kept: in a process of its own, since the setting is one of the whole process."""

from __future__ import annotations

import os
import platform
import subprocess
import sys

import pytest

FAULTS = """
import resource, sys, torch
from tmifpe.core.process import keep_freed_memory
if sys.argv[1] == "kept":
    assert keep_freed_memory()
torch.set_num_threads(1)
def use():
    kept = [torch.ones(10 << 20) for _ in range(4)]  # 40 MiB each, beyond what glibc learns to keep
for _ in range(5):
    use()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
use()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the setting is one of glibc")
def test_freed_memory_is_used_again_without_page_faults():
    faults = {}
    for kind in ("kept", "given back"):
        done = subprocess.run([sys.executable, "-c", FAULTS, kind], capture_output=True, check=True, text=True)
        faults[kind] = int(done.stdout)
    assert faults["kept"] < faults["given back"] / 10, faults


@pytest.mark.parametrize(
    ("given", "spins"),
    [({}, "4000"), ({"GOMP_SPINCOUNT": "7"}, "7"), ({"OMP_WAIT_POLICY": "ACTIVE"}, None)],
)
def test_threads_wait_briefly_unless_someone_chose(monkeypatch, given, spins):
    from tmifpe.core.process import wait_briefly

    for name in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY"):
        monkeypatch.setenv(name, "")  # so that what is set below is undone as well
        monkeypatch.delenv(name)
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    wait_briefly()
    assert os.environ.get("GOMP_SPINCOUNT") == spins
