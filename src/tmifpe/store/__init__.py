"""The run store: results that survive anything, in one SQLite database with the adversarial examples beside it."""

from __future__ import annotations

__all__ = ["Session", "Store", "StoreError", "StoredRun"]

from tmifpe.store.errors import StoreError
from tmifpe.store.rows import Session, StoredRun
from tmifpe.store.store import Store
