"""The losses by name."""

from __future__ import annotations

__all__ = ["LOSSES", "get_loss"]

from tmifpe.core import options
from tmifpe.core.registry import Registry
from tmifpe.losses.loss import Loss

LOSSES: Registry[type[Loss]] = Registry("loss")
LOSSES.add("ce", "tmifpe.losses.ce:CE", "cross-entropy as everyone writes it")
LOSSES.add("ce-margin", "tmifpe.losses.ce_margin:CEMargin", "cross-entropy in a form without cancellation: the control")
LOSSES.add("cw", "tmifpe.losses.cw:CW", "Carlini and Wagner: the margin of the logits")
LOSSES.add("dlr", "tmifpe.losses.dlr:DLR", "difference of logits ratio, of AutoAttack (K >= 3; targeted K >= 4)")
LOSSES.add("mifpe", "tmifpe.losses.mifpe:MIFPE", "cross-entropy of T z/Delta with a fixed T (default 1)")
LOSSES.add("tmifpe", "tmifpe.losses.tmifpe:TMIFPE", "cross-entropy of t* z/Delta, t* by theory: the paper's loss")
LOSSES.add("tmifpe-naive", "tmifpe.losses.tmifpe_naive:TMIFPENaive", "the same as printed, to measure the difference")


def get_loss(text: str) -> Loss:
    """The loss that `text` spells, e.g. `ce`, `mifpe(T=10)`, `tmifpe(t_rule=one-step)`.

    >>> get_loss("mifpe(T=10)")
    MIFPE(T=10.0)
    """
    return options.build(LOSSES, text)
