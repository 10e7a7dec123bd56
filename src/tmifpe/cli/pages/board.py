"""tmifpe board: a static site over a run store."""

from __future__ import annotations

__all__ = ["board"]

import re
from dataclasses import replace
from typing import Annotated

import typer

from tmifpe.core.errors import InputError, shown


def board(
    store: Annotated[str, typer.Argument(help="The folder of the run store.")],
    out: Annotated[str, typer.Option(help="The folder to write the site to; made if need be.")] = "board",
    title: Annotated[str | None, typer.Option(help="The heading.  [default: the name of the store]")] = None,
    gallery: Annotated[int, typer.Option(min=0, max=500, help="Examples in the gallery of each report.")] = 40,
) -> None:
    """Write a leaderboard of all runs of a store, with a report of each: a site that needs no server."""
    from tmifpe.cli import parse
    from tmifpe.cli.console import harmless
    from tmifpe.cli.pages.gallery import Gallery
    from tmifpe.cli.pages.report import reported
    from tmifpe.report.page.board import board_html, board_row
    from tmifpe.report.page.render import report_html
    from tmifpe.run.shown.titles import model_titles
    from tmifpe.store import Store

    kept = Store(store)
    runs = [run for run in kept.runs(superseded=False) if run.done]
    if not runs:
        raise InputError(f"there is no run in {store} yet; tmifpe evaluate makes one")
    folder = parse.folder_from(out)
    try:
        (folder / "reports").mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"cannot make the folder {out}: {error.strerror or error}") from error
    rows, titles = [], model_titles([run.spec for run in runs])
    for run, title_of_model in zip(runs, titles, strict=True):
        if not re.fullmatch("[0-9a-f]{16}", run.key):  # it names a file, and a store may come from anybody
            raise InputError(f"{shown(run.key)} is not the key of a run; the run store {store} is damaged")
        told, href = reported(kept, run, Gallery(gallery)), f"reports/{run.key}.html"
        parse.write_file(str(folder / href), report_html([told]).encode(errors="replace"))
        rows.append(board_row(replace(told, title=title_of_model), href))
    name = title or kept.folder.resolve().name
    parse.write_file(str(folder / "index.html"), board_html(rows, name).encode(errors="replace"))
    typer.echo(harmless(f"wrote {folder / 'index.html'}: {len(rows)} runs"))
