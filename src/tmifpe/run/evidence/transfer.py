"""Transfer: what the gradients of another model find in what an attack left standing."""

from __future__ import annotations

__all__ = ["Transfer"]

import dataclasses
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Transfer:
    """`broken` of `survivors` fell to the same attack on the gradients of `model`, judged by the evaluated one."""

    model: str
    identity: str
    survivors: int
    broken: int
    n: int
    """Examples that the robust accuracy counts."""
    indices: tuple[int, ...] = ()
    """The broken ones."""
    forwards: int = 0
    backwards: int = 0
    seconds: float = 0.0

    @property
    def robust_accuracy(self) -> float:
        """Against the union of both attacks."""
        return (self.survivors - self.broken) / self.n if self.n else 0.0

    def to_json(self) -> dict[str, Any]:
        return dataclasses.asdict(self) | {"indices": list(self.indices), "robust_accuracy": self.robust_accuracy}

    @classmethod
    def from_json(cls, plain: dict[str, Any]) -> Transfer:
        """As a store has it; `KeyError`, `TypeError` or `ValueError` where that is no transfer."""
        found = cls(
            str(plain["model"]),
            str(plain["identity"]),
            survivors=int(plain["survivors"]),
            broken=int(plain["broken"]),
            n=int(plain["n"]),
            indices=tuple(map(int, plain["indices"])),
            forwards=int(plain["forwards"]),
            backwards=int(plain["backwards"]),
            seconds=float(plain["seconds"]),
        )
        if not 0 <= found.broken <= found.survivors <= found.n:
            raise ValueError("no transfer")
        return found

    def __str__(self) -> str:
        return f"{self.broken} of {self.survivors} survivors broken: united {self.robust_accuracy:.2%}"
