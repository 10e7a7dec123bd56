"""What the stages of an attack cost, as plain values in a shard's file and its row."""

from __future__ import annotations

__all__ = ["plain_stages", "read_stages"]

from collections.abc import Iterable
from dataclasses import asdict
from typing import Any

from tmifpe.attacks.loop.queries import StageCost


def plain_stages(stages: Iterable[StageCost]) -> list[dict[str, Any]]:
    """For JSON."""
    return [asdict(stage) for stage in stages]


def read_stages(plain: Any) -> tuple[StageCost, ...]:
    """From JSON; none where an older version wrote it. What makes no sense raises KeyError, TypeError or ValueError."""
    return tuple(
        StageCost(
            examples=int(each["examples"]),
            broken=int(each["broken"]),
            forwards=int(each["forwards"]),
            backwards=int(each["backwards"]),
            seconds=float(each["seconds"]),
        )
        for each in plain or ()
    )
