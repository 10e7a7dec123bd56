"""How many cases a property-based test tries: its own number, or `TMIFPE_FUZZ` times that under `make fuzz`."""

from __future__ import annotations

__all__ = ["CASES", "cases"]

import os

CASES = "fuzz cases"
"""The property under which a test reports how many it tried."""


def cases(count: int) -> int:
    return count * int(os.environ.get("TMIFPE_FUZZ", "1"))
