"""Last of its folder by name: how many cases were tried."""

from __future__ import annotations

import pytest

from tests.fuzz.fuzzing import PROPERTIES, TRIED

LEAST = 10_000


@pytest.mark.slow
def test_at_least_ten_thousand_cases_were_tried() -> None:
    """In `make test-slow` alone; the quick ones of `make test` come on top."""
    missing = [name for name in PROPERTIES if not TRIED[f"{name}[slow]"]]
    if missing or not PROPERTIES:
        pytest.skip(f"only a part of the fuzzing was run: not {', '.join(missing[:3]) or 'any of it'}")
    assert sum(count for name, count in TRIED.items() if name.endswith("[slow]")) >= LEAST, TRIED
