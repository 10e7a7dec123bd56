"""How many cases a property-based test tries: its own number, or `TMIFPE_FUZZ` times that under `make fuzz`."""

from __future__ import annotations

__all__ = ["cases"]

import os


def cases(count: int) -> int:
    return count * int(os.environ.get("TMIFPE_FUZZ", "1"))
