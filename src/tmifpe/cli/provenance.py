"""Where a committed number comes from: the command, the versions, the machine."""

from __future__ import annotations

__all__ = ["provenance"]

import shlex
import sys
from typing import Any


def provenance(device: str = "cpu") -> dict[str, Any]:
    """What a result file carries besides its numbers, so that it can be reproduced."""
    from tmifpe.run.environment import machine, versions
    from tmifpe.version import __version__

    return {
        "command": shlex.join(["tmifpe", *sys.argv[1:]]),
        "version": __version__,
        "versions": versions(),
        "machine": machine(device),
    }
