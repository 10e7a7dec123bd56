"""Who computes the shards of a run: this process, or several; one protocol for all."""

from tmifpe.engines.engine import Engine
from tmifpe.engines.local import Local
from tmifpe.engines.parcel import Parcel
from tmifpe.engines.places import find_places
from tmifpe.engines.processes import Processes

__all__ = ["Engine", "Local", "Parcel", "Processes", "find_places"]
