"""Losses on logits: one value per example, which the attacker ascends. To add one: a file and a catalogue line."""

from __future__ import annotations

from tmifpe.losses.catalogue import LOSSES as LOSSES
from tmifpe.losses.catalogue import get_loss as get_loss
from tmifpe.losses.catalogue import register_loss as register_loss
from tmifpe.losses.catalogue import spelling as spelling
from tmifpe.losses.loss import AnyLoss as AnyLoss
from tmifpe.losses.loss import Loss as Loss
from tmifpe.losses.reference import ReferenceGradient as ReferenceGradient

__all__ = ["LOSSES", "AnyLoss", "Loss", "ReferenceGradient", "get_loss", "register_loss", "spelling"]
