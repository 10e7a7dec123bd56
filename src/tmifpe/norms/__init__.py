"""What a norm is for a first-order attack: how large a step is, where it may go, which way is steepest."""

from tmifpe.norms.catalogue import NORMS, Norm, get_norm, register_norm

__all__ = ["NORMS", "Norm", "get_norm", "register_norm"]
