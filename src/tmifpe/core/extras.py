"""Optional packages: imported when they are needed, and named with their extra when they are missing."""

from __future__ import annotations

__all__ = ["import_extra"]

from types import ModuleType

from tmifpe.core.errors import MissingExtra
from tmifpe.core.torchvision_repair import heal_torchvision, quiet_import


def import_extra(module: str, what: str, extra: str, *, uses_torchvision: bool = False) -> ModuleType:
    """An optional package, or `MissingExtra`: one sentence that says how to install it."""
    if uses_torchvision:
        heal_torchvision()
    try:
        return quiet_import(module)
    except ImportError as error:
        missing = error.name or ""
        cause = "" if missing == module.partition(".")[0] else str(error).partition("\n")[0]
        raise MissingExtra(what, extra, cause) from error
    except (RuntimeError, OSError, AttributeError) as error:  # installed, but not for this torch or Python
        raise MissingExtra(what, extra, f"{module} does not import: {str(error).partition(chr(10))[0]}") from error
