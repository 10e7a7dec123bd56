"""Settings of the whole process that make it faster, which the commands make and the library does not: freed memory is
kept, and threads wait briefly."""

from __future__ import annotations

__all__ = ["keep_freed_memory", "wait_briefly"]

import ctypes
import os

# glibc's names for what mallopt sets, from malloc.h.
_TRIM_THRESHOLD, _TOP_PAD, _MMAP_THRESHOLD = -1, -2, -3
_MIB = 1 << 20
_SPINS = 4_000


def keep_freed_memory() -> bool:
    """Ask the C library to keep the memory of freed tensors for the next ones; return whether it agreed.

    By default glibc hands large blocks back to the system as soon as they are free, and an attack frees and
    allocates the same activations at every step: the page faults took an eighth of a step on `cifar10_resnet4b`
    (256 images, 4,000 faults a step; none with this). It is a setting of the whole process, so the commands of
    `tmifpe` make it and the library does not.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):  # not glibc
        return False
    # Older ones refuse a threshold above 32 MiB; tensors larger than that are then still handed back.
    large = mallopt(_MMAP_THRESHOLD, 1024 * _MIB) == 1 or mallopt(_MMAP_THRESHOLD, 32 * _MIB) == 1
    rest = [mallopt(name, value) == 1 for name, value in ((_TRIM_THRESHOLD, 2047 * _MIB), (_TOP_PAD, 64 * _MIB))]
    return large and all(rest)


def wait_briefly() -> None:
    """Let threads that wait for each other give up their core soon; to be called before torch is imported.

    They go round and round for a while first, to be quick when it is their turn again. GNU's default is so long that
    with both cores busy they keep those that they wait for from running: 128 images of `cifar10_resnet4b` took 6.8 s
    with the default and 4.2 s with a fifteenth of it. Small networks suffer most, whose threads meet every few
    microseconds: the losses of the demo took 69 s with the default, 14 s with a fifteenth, 10 s with this, and 4 s on
    a quiet machine with any of them; with an eighth of this a quiet machine is 10 % slower. It is a setting of the
    whole process, so the commands of `tmifpe` make it and the library does not; whoever has chosen keeps their choice.
    """
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", str(_SPINS))
