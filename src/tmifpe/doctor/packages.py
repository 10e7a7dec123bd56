"""The packages that tmifpe needs, and those of its extras: which version, new enough, and does it import?"""

from __future__ import annotations

__all__ = ["Requirement", "find_packages", "requirements"]

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata

from tmifpe.core.errors import first_line
from tmifpe.doctor.diagnosis import Diagnosis
from tmifpe.doctor.imports import ABSENT, import_problems

MODULES = {"mlflow-skinny": "mlflow", "pillow": "PIL", "scikit-learn": "sklearn"}
"""Modules that are not called like the distribution they come in."""
ALL = "all"
"""The extra that is made of all others."""
_LINE = re.compile(r"""([A-Za-z0-9._-]+) \s* ([^;\[]*) (?: ; \s* (.*))?""", re.VERBOSE)
_EXTRA = re.compile(r"""extra \s* == \s* ['"]([\w.-]+)['"]""", re.VERBOSE)


@dataclass(frozen=True)
class Requirement:
    """A distribution, the lowest version that will do, and the extra it belongs to, "" if tmifpe cannot do without."""

    name: str
    lowest: str = ""
    extra: str = ""

    @property
    def module(self) -> str:
        return MODULES.get(self.name.lower(), self.name.replace("-", "_"))


def requirements(lines: Sequence[str]) -> list[Requirement]:
    """What the metadata of a distribution asks for. What only some Pythons need is left out where it is not installed.

    >>> requirements(["numpy>=1.24", 'onnx<3,>=1.15; extra == "onnx"'])
    [Requirement(name='numpy', lowest='1.24', extra=''), Requirement(name='onnx', lowest='1.15', extra='onnx')]
    """
    found: list[Requirement] = []
    for line in lines:
        match = _LINE.fullmatch(line)
        if match is None:
            continue
        name, bounds, marker = match[1], match[2], match[3] or ""
        extra = _EXTRA.search(marker)
        if (extra and extra[1] == ALL) or ("python_version" in marker and _version(name) is None):
            continue
        lowest = re.search(r">=\s*([\w.]+)", bounds)
        found.append(Requirement(name, lowest[1] if lowest else "", extra[1] if extra else ""))
    return found


def find_packages() -> Iterator[Diagnosis]:
    """A diagnosis for every package that tmifpe needs and one for every extra. An extra that is not installed is
    `absent`, one of which something is installed that does not import or is too old is `broken`."""
    try:
        asked = requirements(metadata.requires("tmifpe") or [])
    except metadata.PackageNotFoundError:
        yield Diagnosis(
            "package", "tmifpe", "broken", "is not installed, so that nothing says what it needs; pip install ."
        )
        return
    problems = import_problems(list(dict.fromkeys(one.module for one in asked)))
    for one in (one for one in asked if not one.extra):
        problem = _problem(one, problems)
        yield Diagnosis(
            "package", one.name, "broken" if problem else "ok", f"{_version(one.name) or ''} {problem}".strip()
        )
    for extra in dict.fromkeys(one.extra for one in asked if one.extra):
        yield _extra(extra, [one for one in asked if one.extra == extra], problems)


def _extra(extra: str, asked: Sequence[Requirement], problems: Mapping[str, str]) -> Diagnosis:
    found = {one.name: _problem(one, problems) for one in asked}
    broken = [f"{name} {problem}" for name, problem in found.items() if problem not in ("", ABSENT)]
    absent = [name for name, problem in found.items() if problem == ABSENT]
    if broken:
        return Diagnosis("extra", extra, "broken", "; ".join(broken))
    if absent:
        return Diagnosis("extra", extra, "absent", f"{', '.join(absent)} not installed: pip install 'tmifpe[{extra}]'")
    return Diagnosis("extra", extra, "ok", ", ".join(f"{name} {_version(name) or ''}".strip() for name in found))


def _problem(one: Requirement, problems: Mapping[str, str]) -> str:
    version, problem = _version(one.name), problems[one.module]
    if problem == ABSENT and version is not None:
        return f"{version} is installed, but has no module {one.module}"
    if problem:
        return problem
    if version is not None and one.lowest and _numbers(version) < _numbers(one.lowest):
        return f"is older than {one.lowest}, which tmifpe needs"
    return ""


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None
    except Exception as error:  # metadata that cannot be read
        return first_line(error)


def _numbers(version: str) -> tuple[int, ...]:
    """The numbers that a version begins with; enough to tell 1.9 from 1.24."""
    plain = re.match(r"[0-9.]*", version)
    return tuple(int(part) for part in (plain[0] if plain else "").split(".") if part)
