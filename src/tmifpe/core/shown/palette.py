"""The colours of all figures: Okabe and Ito's, which stay apart for every kind of colour vision."""

from __future__ import annotations

__all__ = ["COLOURS", "FORMATS"]

from typing import Any

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00")

FORMATS: dict[str, tuple[str, Any]] = {
    "fp16": ("#D55E00", "--"),
    "bf16": ("#CC79A7", (0, (5, 1, 1, 1, 1, 1))),
    "fp32": ("#0072B2", ":"),
    "fp64": ("#009E73", "-."),
    "fp8-e4m3": ("#E69F00", "--"),
    "fp8-e5m2": ("#56B4E9", ":"),
}
"""A format has one colour in every figure, and dashes that tell it apart without colour."""
