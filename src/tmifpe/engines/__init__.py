"""Who computes the shards of a run: this process, several, or a Ray cluster; one protocol for all."""

from tmifpe.engines.engine import Engine
from tmifpe.engines.local import Local
from tmifpe.engines.parcel import Parcel
from tmifpe.engines.places import find_places
from tmifpe.engines.processes import Processes
from tmifpe.engines.ray_actors import RayActors
from tmifpe.engines.ray_connection import ray_cluster

__all__ = ["Engine", "Local", "Parcel", "Processes", "RayActors", "find_places", "ray_cluster"]
