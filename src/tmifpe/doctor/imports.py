"""Whether modules really import: tried in another process, which any of them may end."""

from __future__ import annotations

__all__ = ["ABSENT", "import_problems", "tell_imports"]

import importlib
import importlib.util
import json
import os
import subprocess
import sys
import warnings
from collections.abc import Sequence

from tmifpe.core.errors import first_line

ABSENT = "is not installed"
SECONDS = 180.0
"""For one process; what has not ended by then hangs."""

_OUR_WAY = {"robustbench": "tmifpe.models.robustbench_zoo:import_zoo"}
"""Modules that tmifpe imports with some help."""

# With the path of this process: the doctor looks at the packages that tmifpe would find here.
_CHILD = """
import json, sys
given = json.load(sys.stdin)
sys.path[:] = given["path"]
from tmifpe.doctor.imports import tell_imports
tell_imports(given["modules"])
"""


def import_problems(modules: Sequence[str]) -> dict[str, str]:
    """By module what is wrong with it, "" if nothing.

    One process imports them all, as a program that uses them would. If it dies or hangs, the module at which it did is
    the one to name, and another process goes on with the rest.

    >>> import_problems(["json", "no_such_module"])
    {'json': '', 'no_such_module': 'is not installed'}
    """
    found: dict[str, str] = {}
    while waiting := [module for module in modules if module not in found]:
        said, end = _run(waiting)
        found |= said
        if len(said) < len(waiting):
            found[waiting[len(said)]] = end
    return found


def tell_imports(modules: Sequence[str]) -> None:
    """In the other process: import one after the other, and say on stdout what comes of it."""
    told = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what the modules themselves print goes elsewhere
    for module in modules:
        print(json.dumps([module, _problem(module)]), file=told, flush=True)


def _run(modules: Sequence[str]) -> tuple[dict[str, str], str]:
    """What the process said of the modules, and how it ended."""
    given = json.dumps({"path": sys.path, "modules": list(modules)}).encode()
    words = [sys.executable, "-c", _CHILD]
    try:
        done = subprocess.run(words, input=given, capture_output=True, timeout=SECONDS, check=False)  # noqa: S603
        out, end = done.stdout, f"ends the process that imports it (exit code {done.returncode})"
    except subprocess.TimeoutExpired as error:
        out, end = error.stdout or b"", f"does not import within {SECONDS:.0f} s"
    lines = out.decode(errors="replace").splitlines(keepends=True)
    return dict(json.loads(line) for line in lines if line.endswith("\n")), end


def _problem(module: str) -> str:
    try:
        _import(module)
    except ModuleNotFoundError as error:
        return ABSENT if error.name == module else f"does not import: {first_line(error)}"
    except (Exception, SystemExit) as error:  # it is anybody's code
        return f"does not import: {type(error).__name__}: {first_line(error)}"
    return ""


def _import(module: str) -> None:
    if importlib.util.find_spec(module) is None:
        raise ModuleNotFoundError(name=module)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            if module in _OUR_WAY:
                place, _, name = _OUR_WAY[module].partition(":")
                getattr(importlib.import_module(place), name)()
            else:
                importlib.import_module(module)
        except RuntimeError:
            from tmifpe.core.torchvision_repair import healed  # one failure that tmifpe knows a way around

            healed(lambda: importlib.import_module(module))
