"""Other libraries, for tests that run both on the same inputs. They are imported from the venv, from where `make peers`
put them, or from the folders in TMIFPE_PEERS."""

from __future__ import annotations

import importlib
import os
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest

from tmifpe.core.torchvision_repair import heal_torchvision

FOLDER = Path(sys.prefix) / "peers"


def peer(name: str) -> Any:
    """The module of that name; the test is skipped, with what to do, where it is missing."""
    for folder in os.environ.get("TMIFPE_PEERS", str(FOLDER)).split(os.pathsep):
        if folder and folder not in sys.path:
            sys.path.append(folder)  # behind the venv, whose packages come first
    heal_torchvision()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return importlib.import_module(name)
    except ImportError as error:
        pytest.skip(f"{name} cannot be imported ({error}); `make peers` installs it")
