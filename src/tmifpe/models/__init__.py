"""Model sources, by name: classifiers to logits, in eval mode, frozen, with their normalisation inside."""

from __future__ import annotations

__all__ = [
    "MODELS",
    "Ensemble",
    "Normalize",
    "Probe",
    "ZeroShot",
    "check_compatible",
    "load_model",
    "model_identity",
    "read_tensors",
    "read_weights",
    "register_model",
    "whole_steps",
]

from tmifpe.models.catalogue import MODELS, register_model
from tmifpe.models.check import check_compatible
from tmifpe.models.composed import Ensemble, Probe, ZeroShot
from tmifpe.models.identity import model_identity
from tmifpe.models.load import load_model
from tmifpe.models.normalize import Normalize
from tmifpe.models.onnx_bytes import whole_steps
from tmifpe.models.weights import read_tensors, read_weights
