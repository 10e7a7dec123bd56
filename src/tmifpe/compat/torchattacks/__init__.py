"""`from tmifpe.compat import torchattacks`: its classes, defaults and call style, answered by tmifpe's attacks.

Every attack returns the strongest point that it saw, where torchattacks returns the last one. `TMIFPE` is the
paper's own. An attack that tmifpe does not have raises a sentence when it is made.

>>> import torch
>>> from tmifpe.compat import torchattacks
>>> model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(4, 3))
>>> attack = torchattacks.PGD(model, eps=8 / 255, alpha=2 / 255, steps=10, random_start=True)
>>> attack(torch.rand(8, 1, 2, 2), torch.zeros(8, dtype=torch.long)).shape
torch.Size([8, 1, 2, 2])
>>> attack
PGD(device=cpu, attack_mode=default, targeted=False, normalization_used=False, eps=0.03137, alpha=0.007843, steps=10, random_start=True)
"""  # noqa: E501 - the line is what it prints

from __future__ import annotations

from typing import Any, NoReturn

from tmifpe.compat.torchattacks.attack import Attack
from tmifpe.compat.torchattacks.composed import AutoAttack, MultiAttack
from tmifpe.compat.torchattacks.gradient import APGD, BIM, EOTPGD, FAB, FFGSM, FGSM, MIFGSM, PGD, PGDL2, TMIFPE, Square
from tmifpe.core.errors import InputError

__all__ = [
    "APGD",
    "BIM",
    "EOTPGD",
    "FAB",
    "FFGSM",
    "FGSM",
    "MIFGSM",
    "PGD",
    "PGDL2",
    "TMIFPE",
    "Attack",
    "AutoAttack",
    "MultiAttack",
    "Square",
]

_MINIMAL = "for the smallest perturbation use tmifpe.minimal"
_INSTEAD = {
    "APGDT": "for many target classes in turn use tmifpe.MultiTargeted or AutoAttack",
    "CW": _MINIMAL,
    "CWL0": _MINIMAL,
    "DeepFool": _MINIMAL,
    "EADEN": _MINIMAL,
    "EADL1": _MINIMAL,
    "TPGD": "for training use tmifpe.attack with a loss of your own",
}
_OTHERS = [
    "DIFGSM",
    "GN",
    "JSMA",
    "Jitter",
    "LGV",
    "NIFGSM",
    "OnePixel",
    "PGDRS",
    "PGDRSL2",
    "PIFGSM",
    "PIFGSMPP",
    "Pixle",
    "RFGSM",
    "SINIFGSM",
    "SPSA",
    "SparseFool",
    "TIFGSM",
    "UPGD",
    "VANILA",
    "VMIFGSM",
    "VNIFGSM",
]


def __getattr__(name: str) -> Any:
    """torchattacks' other attacks: importing one works, making one raises what to use instead."""
    if name not in _INSTEAD and name not in _OTHERS:
        raise AttributeError(f"module 'tmifpe.compat.torchattacks' has no attribute {name!r}")

    def refuse(*_: object, **__: object) -> NoReturn:
        instead = _INSTEAD.get(name, f"those that it has are {', '.join(__all__)}")
        raise InputError(f"tmifpe does not have torchattacks' {name}; {instead}")

    return refuse
