"""tmifpe doctor: is this installation well?"""

from __future__ import annotations

__all__ = ["EXIT_CODES", "doctor"]

from typing import TYPE_CHECKING, Annotated

import typer

from tmifpe.cli.options import STORE

if TYPE_CHECKING:
    from rich.console import Console

    from tmifpe.doctor.diagnosis import Diagnosis

EXIT_CODES = "Exit codes: 0 all is well, whatever extras are installed; 1 something is broken."
_STYLES = {"ok": "green", "absent": "dim", "broken": "bold red", "not tried": "yellow"}


def doctor(
    store: Annotated[
        str, typer.Option("--store", envvar="TMIFPE_STORE", help="The folder of the run store to look at.")
    ] = STORE,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout.")] = False,
) -> None:
    """Look at versions, devices, extras and the run store, and attack a bundled model whose outcome is known."""
    from dataclasses import asdict

    from rich.console import Console

    from tmifpe.cli.console import print_json
    from tmifpe.doctor.examine import examine

    found: list[Diagnosis] = []
    shown = Console(soft_wrap=True)
    for diagnosis in examine(store):
        if not json:
            _show(shown, diagnosis, title=not found or found[-1].about != diagnosis.about)
        found.append(diagnosis)
    broken = [f"{diagnosis.about} {diagnosis.name}" for diagnosis in found if diagnosis.state == "broken"]
    if json:
        print_json({"well": not broken, "diagnoses": [asdict(diagnosis) for diagnosis in found]})
    else:
        shown.print(f"Broken: {', '.join(broken)}." if broken else "All is well.", highlight=False, markup=False)
    if broken:
        raise typer.Exit(1)


def _show(shown: Console, diagnosis: Diagnosis, title: bool) -> None:
    from rich.text import Text

    from tmifpe.cli.console import harmless
    from tmifpe.core.errors import as_options

    if title:
        shown.print(Text(diagnosis.about, style="bold"))
    line = Text("  ")
    line.append(f"{diagnosis.state:10}", _STYLES[diagnosis.state])
    line.append(harmless(f"{diagnosis.name:16} {as_options(diagnosis.told)}".rstrip()))
    shown.print(line)
