"""What the absence of a field or option in a stored run means. Plain literals, frozen on the day they were added.

A key leaves out whatever equals an entry of these tables. So a new option does not orphan old runs, and changing a
default does not revive them: the defaults of today play no part here. Entries are added and never changed.
"""

from __future__ import annotations

__all__ = ["ATTACK_OPTIONS", "OLD_COLUMNS", "OLD_WORDS", "SPEC_FIELDS"]

from collections.abc import Mapping
from typing import Any

SPEC_FIELDS: Mapping[str, Any] = {
    "cut": "",
    "straight_through": (),
    "certify": "none",
    "radii": (),
    "early_exit": False,
    "tune": "off",
    "model_options": (),
}
"""Fields that `RunSpec` gained after 0.1.0, with the value that their absence means."""

ATTACK_OPTIONS: Mapping[str, Mapping[str, Any]] = {
    "pgd": {"smooth": 0.0},
    "gama": {},
    "autoattack": {},
}
"""Options that an attack gained after 0.1.0, by the name of the attack. A new attack needs no entry."""

OLD_WORDS: Mapping[str, Mapping[str, str]] = {
    "verify": {"fp64": "float64"},
}
"""What 0.1.0 called a value that has another name today, by field of `RunSpec`; keys keep the old word."""

OLD_COLUMNS: Mapping[str, str] = {
    "index": "int64",
    "label": "int32",
    "target": "int32",
    "clean_pred": "int32",
    "adv_pred": "int32",
    "fooled": "bool",
    "stage": "int16",
    "steps_used": "int32",
    "margin": "float64",
    "size": "float64",
    "marks": "int32",
}
"""The columns of a shard that does not list its own: those of 0.1.0, in its order."""
