"""Losses on logits: one value per example, which the attacker ascends. To add one: a file and a catalogue line."""

from __future__ import annotations

from tmifpe.losses.catalogue import LOSSES as LOSSES
from tmifpe.losses.catalogue import get_loss as get_loss
from tmifpe.losses.loss import Loss as Loss
from tmifpe.losses.loss import spelling as spelling

__all__ = ["LOSSES", "Loss", "get_loss", "spelling"]
