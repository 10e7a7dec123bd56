"""Run the numerical tests as other processors would compute: once for every processor that this machine can imitate.

Libraries choose their code by the instruction set, and each adds and rounds in another order. A setting that gives
the very bits of one that was tested before (a probe compares them), or of none at all, which `make test` has tested,
is named and not run again.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import Executor, ThreadPoolExecutor
from itertools import repeat
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
# No workers, each of which would collect everything: the settings run side by side instead.
PARTS = 2  # of the files, for each setting: with halves to hand out, no core is idle while the last setting runs
PYTEST = [sys.executable, "-m", "pytest", "-q", "-p", "no:xdist", "-p", "no:cacheprovider"]

# Sizes with and without a rest after whole vectors, as the tests have them: a few rows, 10 classes, 8 x 8 pixels.
PROBE = """
import hashlib, math, numpy, torch
found, convolved, generator = hashlib.sha256(), hashlib.sha256(), torch.Generator().manual_seed(0)
def note(*tensors, to=found):
    for tensor in tensors:
        to.update(tensor.detach().contiguous().numpy().tobytes())
for dtype in (torch.float32, torch.float64):
    def draw(*shape):
        return torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype)
    for rows, inner, columns in ((1, 20, 3), (11, 20, 3), (64, 64, 10), (65, 129, 77), (256, 784, 512)):
        a, b = draw(rows, inner), draw(inner, columns)
        note(a @ b, torch.addmm(draw(columns), a, b), a @ b[:, 0], a.sum(1), a.norm(dim=1))
    for size in (8, 28):
        x, w = draw(5, 3, size, size).requires_grad_(), draw(16, 3, 3, 3)
        y = torch.conv2d(x, w, padding=1)
        note(y, torch.autograd.grad(y.square().sum(), x)[0], torch.conv2d(x, w, stride=2), to=convolved)
    x = draw(37, 11)
    note(x.exp(), x.abs().log(), x.tanh(), x.cos(), x.softmax(1), x.log_softmax(1), x.abs().pow(1.3))
    for short in (torch.bfloat16, torch.float16):
        note((draw(64, 64).to(short) @ draw(64, 10).to(short)).float())
    z = x.numpy()
    note(*(torch.from_numpy(v) for v in (numpy.exp(z), numpy.log(abs(z)), z @ z.T, z.sum(0), z.sum(1))))
found.update(repr([f(v / 64) for v in range(1, 999) for f in (math.exp, math.log, math.sin)]).encode())
print(found.hexdigest(), convolved.hexdigest())
"""


def flags() -> set[str]:
    """What the processor can do; nothing where the system does not say, and then only the plainest code is tried."""
    info = Path("/proc/cpuinfo")
    found = re.search(r"^flags\s*:(.*)$", info.read_text(), re.MULTILINE) if info.exists() else None
    return set(found[1].split()) if found else set()


def settings() -> Iterator[dict[str, str]]:
    """A whole processor at a time, with what each library does there: every value that a library knows is in one of
    them. MKL heeds MKL_ENABLE_INSTRUCTIONS on Intel's processors only, and MKL_CBWR on all."""
    has = flags()
    avx2, avx512 = "avx2" in has, {"avx512f", "avx512bw", "avx512dq", "avx512vl"} <= has
    names = ("MKL_ENABLE_INSTRUCTIONS", "MKL_CBWR", "ATEN_CPU_CAPABILITY", "ONEDNN_MAX_CPU_ISA")
    for needed, *values in (
        (True, "SSE4_2", None, "default", "SSE41"),
        # The oldest with AVX had no AVX2, for which ATen has the code without either.
        (avx2, None, "SSE4_2", "default", "AVX"),
        (not avx2, None, "SSE4_2", "default", "SSE41"),
        (avx2, None, "AVX2", "avx2", "AVX2"),
        (avx2, "AVX2", None, "avx2", "AVX2"),
        (avx512, None, "AVX512", "avx512", "AVX512_CORE"),
        (avx512, "AVX512", None, "avx512", "AVX512_CORE_VNNI"),
    ):
        if needed:
            yield {name: value for name, value in zip(names, values, strict=True) if value}
    # The plainest code of what is left, at once: each by itself reaches few tests.
    plain = {"MKL_CBWR": "COMPATIBLE", "GLIBC_TUNABLES": "glibc.cpu.hwcaps=-AVX2,-FMA,-FMA4"}
    simd = "import numpy; print(*numpy.show_config(mode='dicts')['SIMD Extensions'].get('found', []))"
    if found := output(simd, {}):
        plain["NPY_DISABLE_CPU_FEATURES"] = found
    yield plain
    # Passive: threads that spin while they wait would keep the other settings from the cores.
    yield {"OMP_NUM_THREADS": "2", "OMP_WAIT_POLICY": "PASSIVE"}


def output(code: str, setting: dict[str, str]) -> str:
    """What some code prints under a setting."""
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment(setting), stdout=subprocess.PIPE, text=True, check=True
    )
    return done.stdout.strip()


def environment(setting: dict[str, str]) -> dict[str, str]:
    return os.environ | {"OMP_NUM_THREADS": "1"} | setting


def selection(mark: str, part: int) -> list[str]:
    """The numerical tests of a mark in one part of the files, for pytest: only the files that hold some, since to
    collect the others would take as long as to run these."""
    files = [path for path in sorted((ROOT / "tests").glob("test_*.py")) if f"mark.{mark}" in path.read_text()]
    return [
        *map(str, files[part::PARTS]),
        "-m",
        f"numerical and {mark} and not slow and not long",
    ]


def tested(setting: dict[str, str], mark: str, part: int) -> tuple[bool, str]:
    """Whether these tests passed, and what pytest said: its last line, and everything where one failed."""
    command = [*PYTEST, *selection(mark, part)]
    done = subprocess.run(command, cwd=ROOT, env=environment(setting), capture_output=True, text=True, check=False)
    summary = done.stdout.strip().rpartition("\n")[2]
    return not done.returncode, summary if not done.returncode else f"FAILED\n{done.stdout}{done.stderr}"


def distinct(pool: Executor) -> Iterator[tuple[dict[str, str], str]]:
    """The settings that give bits of their own, with the mark of the tests that can notice: `tests/conftest.py` sees to
    it that only `convolutional` ones convolve. The other settings are named, with the one that tests for them."""
    candidates = list(settings())
    bare, *probed = pool.map(output, repeat(PROBE), [{}, *candidates])
    seen = {bare: "make test"}
    for setting, bits in zip(candidates, probed, strict=True):
        # Threads change who adds what in ways that depend on the load as well, so they are always tried.
        if "OMP_NUM_THREADS" in setting:
            yield setting, "numerical"
        elif bits in seen:
            print(f"{named(setting)}: the same bits as '{seen[bits]}'", flush=True)
        else:
            only_convolutions = bits.split()[0] in {other.split()[0] for other in seen}
            seen[bits] = named(setting)
            yield setting, "convolutional" if only_convolutions else "numerical"


def named(setting: dict[str, str]) -> str:
    return " ".join(f"{key}={value}" for key, value in setting.items())


def main() -> int:
    failed = 0
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        jobs = [(setting, mark, part) for setting, mark in distinct(pool) for part in range(PARTS)]
        for (setting, _, part), (passed, said) in zip(jobs, pool.map(tested, *zip(*jobs, strict=True)), strict=True):
            failed += not passed
            print(f"{named(setting)}, part {part + 1} of {PARTS}: {said}", flush=True)
    print(f"{failed} parts failed" if failed else "every setting passed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
