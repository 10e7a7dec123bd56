"""Write constraints.txt: the versions installed in this environment, as tested.

Run it with the environment's own interpreter (`make constraints`). A package whose pinned version no longer
supports the oldest Python of pyproject.toml is pinned only for the Pythons that it supports; for the others pip
chooses.
"""

from __future__ import annotations

import re
from importlib.metadata import distributions
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
OLDEST = (3, 10)
NOT_PINNED = {"pip", "setuptools", "wheel", "tmifpe"}
HEADER = "# The versions that the tests were run with. Written by `make constraints`; do not edit by hand.\n"


def pin(name: str, version: str, requires_python: str) -> str:
    """One line of constraints; a local build tag such as +cpu is dropped, so that any build of it will do."""
    line = f"{name}=={version.partition('+')[0]}"
    found = re.search(r">=\s*(3\.(\d+)(\.[1-9]\d*)?)", requires_python)
    if found and (3, int(found[2])) > OLDEST:
        # python_version knows only two numbers: 3.11.4 is 3.11 to it.
        name = "python_full_version" if found[3] else "python_version"
        line += f' ; {name} >= "{found[1] if found[3] else f"3.{found[2]}"}"'
    return line


def main() -> None:
    names = {}
    for dist in distributions():
        name = re.sub(r"[-_.]+", "-", dist.name).lower()
        if name not in NOT_PINNED:
            names[name] = pin(name, dist.version, dist.metadata["Requires-Python"] or "")
    (ROOT / "constraints.txt").write_text(HEADER + "\n".join(names[name] for name in sorted(names)) + "\n")
    print(f"constraints.txt: {len(names)} packages")


if __name__ == "__main__":
    main()
