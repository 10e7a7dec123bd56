"""`import tmifpe.compat.foolbox as fb`: foolbox's `PyTorchModel`, `attacks`, criteria and `accuracy` for PyTorch.

>>> import torch
>>> import tmifpe.compat.foolbox as fb
>>> model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(4, 3)).eval()
>>> fmodel = fb.PyTorchModel(model, bounds=(0, 1))
>>> images, labels = torch.rand(8, 1, 2, 2), torch.zeros(8, dtype=torch.long)
>>> raw, clipped, success = fb.attacks.LinfPGD(steps=5)(fmodel, images, labels, epsilons=[0.0, 0.1])
>>> len(raw), clipped[1].shape, success.shape, success.dtype
(2, torch.Size([8, 1, 2, 2]), torch.Size([2, 8]), torch.bool)
"""

from __future__ import annotations

from tmifpe.compat.foolbox import attacks
from tmifpe.compat.foolbox.criteria import Misclassification, TargetedMisclassification
from tmifpe.compat.foolbox.model import PyTorchModel, accuracy

__all__ = ["Misclassification", "PyTorchModel", "TargetedMisclassification", "accuracy", "attacks"]
