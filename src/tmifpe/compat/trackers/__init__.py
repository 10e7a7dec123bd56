"""A finished run in the tracker that you have: MLflow, Weights & Biases or TensorBoard, each an extra of its own."""

from tmifpe.compat.trackers.track import TRACKERS, check_tracker, track

__all__ = ["TRACKERS", "check_tracker", "track"]
