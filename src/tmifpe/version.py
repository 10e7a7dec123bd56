"""The version of the package, and of its numbers."""

__all__ = ["RESULTS_VERSION", "__version__"]

__version__ = "0.2.0"

RESULTS_VERSION = 2
"""Raised whenever a change of numerics could change an outcome: stored runs of another version are not resumed."""
