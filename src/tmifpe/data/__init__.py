"""Data sources, by name: labelled images in [0, 1], in a stable order, read lazily where they are many."""

from __future__ import annotations

__all__ = [
    "DATA",
    "as_data",
    "coverage",
    "in_box",
    "load_data",
    "read_indices",
    "read_numbers",
    "register_data",
    "stratified",
    "subset",
]

from tmifpe.data.catalogue import DATA, register_data
from tmifpe.data.load import load_data
from tmifpe.data.stratified import coverage, stratified
from tmifpe.data.subset import in_box, read_indices, read_numbers, subset
from tmifpe.data.wrap import as_data
