"""Models made of models: zero-shot classifiers, linear probes, ensembles."""

from __future__ import annotations

__all__ = ["Ensemble", "Probe", "ZeroShot"]

from tmifpe.models.composed.ensemble import Ensemble
from tmifpe.models.composed.probe import Probe
from tmifpe.models.composed.zero_shot import ZeroShot
