"""The evidence beside a number, out of the JSON of a result."""

from __future__ import annotations

__all__ = ["STATED", "Evidence", "evidence_of"]

from collections.abc import Mapping
from typing import Any, NamedTuple

from tmifpe.attacks.hooks.layer_gradient import LayerGradient
from tmifpe.run.evidence.spot_check import SpotCheck
from tmifpe.run.evidence.transfer import Transfer

STATED = ("spot_check", "from_model")
"""What is stated only where it was asked for, and kept in the store once it is known."""


class Evidence(NamedTuple):
    """See the fields of `Result`."""

    layers: tuple[LayerGradient, ...] = ()
    spot_check: SpotCheck | None = None
    from_model: Transfer | None = None


def evidence_of(plain: Mapping[str, Any]) -> Evidence:
    """As a store has it; `KeyError`, `TypeError` or `ValueError` where it holds something else."""
    spot, led = (plain.get(name) for name in STATED)
    return Evidence(
        tuple(LayerGradient.from_json(layer) for layer in plain.get("layers", ())),
        None if spot is None else SpotCheck.from_json(spot),
        None if led is None else Transfer.from_json(led),
    )
