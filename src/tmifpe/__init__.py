"""tmifpe: how robust is an image classifier to adversarial attack? Fast and honest.

>>> import torch, tmifpe
>>> model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(4, 3))
>>> x, y = torch.rand(8, 1, 2, 2), torch.zeros(8, dtype=torch.long)
>>> result = tmifpe.evaluate(model, (x, y), tmifpe.Threat("linf", 8 / 255))
>>> 0.0 <= result.robust_accuracy <= result.clean_accuracy <= 1.0
True
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from tmifpe.core.errors import InputError, MissingExtra
from tmifpe.version import __version__

if TYPE_CHECKING:
    from tmifpe import models, theory
    from tmifpe.attacks import (
        APGD,
        DDN,
        FAB,
        FMN,
        GAMA,
        PGD,
        Attack,
        MultiTargeted,
        Square,
        attack,
        bim,
        fgsm,
        get_attack,
        mim,
        register_attack,
    )
    from tmifpe.attacks.hooks.straight_through import straight_through
    from tmifpe.audits.audit import Audit, audit
    from tmifpe.certificates.certify import Certificates, certified_radius, certify
    from tmifpe.checks.attack import check_monotone
    from tmifpe.core.types import Classifier, Data, Threat
    from tmifpe.data import load_data, register_data
    from tmifpe.evaluation.compare import Comparison, compare
    from tmifpe.evaluation.curve import Curve, curve
    from tmifpe.evaluation.evaluate import evaluate
    from tmifpe.evaluation.minimal import Minimal, minimal
    from tmifpe.evaluation.verification import Verification, verify
    from tmifpe.losses import Loss, ReferenceGradient, get_loss, register_loss
    from tmifpe.models import Normalize, load_model, register_model
    from tmifpe.norms import Norm, register_norm
    from tmifpe.run.outcomes import Outcome, Outcomes
    from tmifpe.run.result import Flag, Result
    from tmifpe.run.shown.progress import Progress
    from tmifpe.store import Store

__all__ = [
    "APGD",
    "DDN",
    "FAB",
    "FMN",
    "GAMA",
    "PGD",
    "Attack",
    "Audit",
    "Certificates",
    "Classifier",
    "Comparison",
    "Curve",
    "Data",
    "Flag",
    "InputError",
    "Loss",
    "Minimal",
    "MissingExtra",
    "MultiTargeted",
    "Norm",
    "Normalize",
    "Outcome",
    "Outcomes",
    "Progress",
    "ReferenceGradient",
    "Result",
    "Square",
    "Store",
    "Threat",
    "Verification",
    "__version__",
    "attack",
    "audit",
    "bim",
    "certified_radius",
    "certify",
    "check_monotone",
    "compare",
    "curve",
    "evaluate",
    "fgsm",
    "get_attack",
    "get_loss",
    "load_data",
    "load_model",
    "mim",
    "minimal",
    "models",
    "register_attack",
    "register_data",
    "register_loss",
    "register_model",
    "register_norm",
    "straight_through",
    "theory",
    "verify",
]

# Resolved on first use, so that `tmifpe --help` does not wait for torch.
_HOMES = {
    "tmifpe.attacks": [
        "APGD",
        "DDN",
        "FAB",
        "FMN",
        "GAMA",
        "PGD",
        "Attack",
        "MultiTargeted",
        "Square",
        "attack",
        "bim",
        "fgsm",
        "get_attack",
        "mim",
        "register_attack",
    ],
    "tmifpe.attacks.hooks.straight_through": ["straight_through"],
    "tmifpe.core.types": ["Classifier", "Data", "Threat"],
    "tmifpe.data": ["load_data", "register_data"],
    "tmifpe.audits.audit": ["Audit", "audit"],
    "tmifpe.certificates.certify": ["Certificates", "certified_radius", "certify"],
    "tmifpe.checks.attack": ["check_monotone"],
    "tmifpe.evaluation.compare": ["Comparison", "compare"],
    "tmifpe.evaluation.curve": ["Curve", "curve"],
    "tmifpe.evaluation.evaluate": ["evaluate"],
    "tmifpe.evaluation.minimal": ["Minimal", "minimal"],
    "tmifpe.evaluation.verification": ["Verification", "verify"],
    "tmifpe.run.outcomes": ["Outcome", "Outcomes"],
    "tmifpe.run.result": ["Flag", "Result"],
    "tmifpe.run.shown.progress": ["Progress"],
    "tmifpe.store": ["Store"],
    "tmifpe.losses": ["Loss", "ReferenceGradient", "get_loss", "register_loss"],
    "tmifpe.models": ["Normalize", "load_model", "register_model"],
    "tmifpe.norms": ["Norm", "register_norm"],
}
_HOME = {name: home for home, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(importlib.import_module(_HOME[name]), name)
    if name in ("models", "theory"):
        return importlib.import_module(f"tmifpe.{name}")
    raise AttributeError(f"module 'tmifpe' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
