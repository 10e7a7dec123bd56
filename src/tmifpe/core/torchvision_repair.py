"""The one place that knows of the torchvision trap.

A torchvision whose compiled operators were built for another torch (say, a CPU torch beside the torchvision of the
package registry) cannot load them, and then its own Python code asks for one: the import dies with
`RuntimeError: operator torchvision::nms does not exist`, and takes timm, onnx2torch, transformers and robustbench
down with it. None of these needs that operator to classify images. Declaring its signature, without any
implementation, lets the Python side import; calling it would still fail, honestly. This is done only after an
import has failed in exactly that way.
"""

from __future__ import annotations

__all__ = ["heal_torchvision", "healed", "quiet_import"]

import contextlib
import importlib
import importlib.util
import warnings
from collections.abc import Callable
from types import ModuleType
from typing import TypeVar

import torch

T = TypeVar("T")

_SYMPTOM = "operator torchvision::nms does not exist"
_SIGNATURE = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
_declared: list[torch.library.Library] = []  # torch forgets a declaration when its Library is collected


def heal_torchvision() -> None:
    """Make `import torchvision` work where it fails by the trap; without torchvision, do nothing.

    Any other failure is left for the import that needs torchvision to report.
    """
    if importlib.util.find_spec("torchvision") is None:
        return
    try:
        quiet_import("torchvision")
    except RuntimeError as error:
        if _SYMPTOM in str(error):
            if not _declared:
                library = torch.library.Library("torchvision", "FRAGMENT")
                library.define(f"nms{_SIGNATURE}")
                library.define(f"qnms{_SIGNATURE}")
                _declared.append(library)
            with contextlib.suppress(ImportError):  # for the import that needs it to report
                quiet_import("torchvision")
    except ImportError:
        return


def healed(action: Callable[[], T]) -> T:
    """The result of `action`, tried once more after healing torchvision if it fails by the trap."""
    try:
        return action()
    except RuntimeError as error:
        if _SYMPTOM not in str(error):
            raise
    heal_torchvision()
    return action()


def quiet_import(module: str) -> ModuleType:
    """Import without the warnings that the module gives on the way."""
    with warnings.catch_warnings():
        # Notices of other packages to their own developers; the caller can do nothing about them.
        warnings.simplefilter("ignore")
        return importlib.import_module(module)
