"""What the contract tests have in common: something under a name, and a list of promises to try it on."""

from __future__ import annotations

__all__ = ["Trial", "try_all"]

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TypeVar


@dataclass(frozen=True)
class Trial:
    """What is under test, by the name that its author knows it by."""

    name: str

    def fail(self, said: str) -> AssertionError:
        return AssertionError(f"{self.name} {said}")


AnyTrial = TypeVar("AnyTrial", bound=Trial)


def try_all(trial: AnyTrial, checks: Iterable[Callable[[AnyTrial], None]]) -> None:
    """Each check raises the trial's `AssertionError` if a promise is not kept."""
    for check in checks:
        check(trial)
