"""What the doctor found out about one thing."""

from __future__ import annotations

__all__ = ["Diagnosis", "State"]

from dataclasses import dataclass
from typing import Literal, TypeAlias

State: TypeAlias = Literal["ok", "absent", "broken", "not tried"]
"""`absent` is an optional package that is not installed, `not tried` what needs something that is broken."""


@dataclass(frozen=True)
class Diagnosis:
    """One thing that was looked at, e.g. the extra `onnx`: how it is, and in a line why."""

    about: str
    name: str
    state: State
    told: str = ""
