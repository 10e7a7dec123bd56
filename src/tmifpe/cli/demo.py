"""tmifpe demo: what the toolkit is about, on two bundled models, in less than a minute."""

from __future__ import annotations

__all__ = ["demo"]


def demo() -> None:
    """Placeholder until the weights exist."""
