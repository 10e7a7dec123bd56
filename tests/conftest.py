"""What tests share: the folder of real data and weights, and small models with known answers."""

from __future__ import annotations

import os
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of real weights, data and the oracle. Under CI (TMIFPE_SHARED set) a missing one is a failure."""
    named = os.environ.get("TMIFPE_SHARED")
    if named is None:
        pytest.skip("TMIFPE_SHARED is not set: no real weights, data or oracle on this machine")
    folder = Path(named).resolve()
    if not folder.is_dir():
        pytest.fail(f"TMIFPE_SHARED={named} is not a folder")
    return folder
