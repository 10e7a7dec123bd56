"""What every norm promises, for authors of norms outside the package."""

from __future__ import annotations

__all__ = ["check_norm"]


def check_norm(norm: object) -> None:
    raise NotImplementedError
