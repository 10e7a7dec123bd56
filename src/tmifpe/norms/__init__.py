"""What a norm is for a first-order attack: how large a step is, where it may go, which way is steepest."""

from tmifpe.norms.ball import Ball, column
from tmifpe.norms.catalogue import NORMS, Norm, get_norm, register_norm

__all__ = ["NORMS", "Ball", "Norm", "column", "get_norm", "register_norm"]
