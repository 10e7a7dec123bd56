"""Who computes the shards of a run: here, in process; one protocol for all."""

from tmifpe.engines.engine import Engine
from tmifpe.engines.local import Local

__all__ = ["Engine", "Local"]
