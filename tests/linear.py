"""Linear classifiers, whose distance to the boundary is known exactly: the honest yardstick of an attack."""

from __future__ import annotations

__all__ = ["SHAPE", "Linear", "distance", "examples", "examples_at"]

from tmifpe.testing.linear import SHAPE, Linear, distance, examples, examples_at
