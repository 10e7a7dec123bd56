"""tmifpe report: stored runs as one HTML file, or as text."""

from __future__ import annotations

__all__ = ["find_run", "report", "reported"]

from typing import TYPE_CHECKING, Annotated

import typer

from tmifpe.cli.options import STORE
from tmifpe.cli.pages.gallery import Gallery
from tmifpe.cli.pages.gallery import gallery as pictures_of
from tmifpe.core.errors import InputError, did_you_mean

if TYPE_CHECKING:
    from tmifpe.report.page.reported import Reported
    from tmifpe.store import Store, StoredRun

_FORMATS = ("html", "md", "latex", "json", "csv")


def report(
    runs: Annotated[
        list[str],
        typer.Argument(metavar="RUN...", help="Keys of runs, their first digits, or latest; several are compared."),
    ],
    store: Annotated[str, typer.Option("--store", envvar="TMIFPE_STORE", help="The folder of the run store.")] = STORE,
    out: Annotated[
        str | None, typer.Option(help="The file to write.  [default: report.html; stdout for other formats]")
    ] = None,
    format: Annotated[str, typer.Option(help="html, md, latex, json or csv.")] = "html",
    open_it: Annotated[bool, typer.Option("--open", help="Open the report in the browser.")] = False,
    data: Annotated[
        str | None,
        typer.Option(help="Where the images are, if not where the run found them (runs a file.py of yours)."),
    ] = None,
    model: Annotated[
        str | None, typer.Option(help="The model, for the probabilities in the gallery; bundled models are found.")
    ] = None,
    gallery: Annotated[int, typer.Option(min=0, max=500, help="Examples in the gallery, at most.")] = 500,
) -> None:
    """Write a report of stored runs: numbers, flags, charts, a gallery, and the command to repeat each."""
    from tmifpe.cli import parse
    from tmifpe.cli.console import harmless
    from tmifpe.store import Store

    if format not in _FORMATS:
        raise did_you_mean("format", format, _FORMATS)
    target = out or ("report.html" if format == "html" else None)
    parse.check_output(target)
    if open_it and target is None:
        raise InputError("--open needs a file: add --out FILE")
    kept = Store(store)
    found = list(dict.fromkeys(find_run(kept, name).name for name in runs))
    asked = Gallery(gallery if format == "html" else 0, data, model, len(found))
    told = [reported(kept, kept.find(name), asked) for name in found]
    text = _text(told, format)
    if target is None:
        typer.echo(text, nl=False)
        return
    parse.write_file(target, text.encode(errors="replace"))
    typer.echo(harmless(f"wrote {target} ({len(text.encode(errors='replace')) / 1e6:.1f} MB)"))
    if open_it:
        _show(target)


def find_run(store: Store, name: str) -> StoredRun:
    """The run of that name; `latest` is the last one that was begun and has outcomes."""
    if name != "latest":
        return store.find(name)
    begun = [run for run in store.runs(superseded=False) if run.done]
    if not begun:
        raise InputError(f"there is no run in {store.folder} yet; tmifpe evaluate makes one")
    return begun[-1]


def reported(store: Store, run: StoredRun, asked: Gallery) -> Reported:
    """A stored run with its gallery."""
    from dataclasses import replace

    from tmifpe.cli.console import in_cli_words
    from tmifpe.report.page.reported import Reported

    if not run.done:
        raise InputError(f"run {run.name} has no finished shard yet; run the same command again to resume it")
    result = in_cli_words(store.result(run))
    sessions = tuple(
        f"{one.started}, {one.shards} shards: "
        + ", ".join(f"{name} {v}" for name, v in (one.versions | one.machine).items())
        for one in store.sessions(run)
    )
    plain = Reported(result, run.name, run.started, run.finished or "", sessions)
    if not asked.most:
        return plain
    pictures, note = pictures_of(store, run, result, asked)
    return replace(plain, pictures=pictures, pictures_note=note)


def _text(told: list[Reported], format: str) -> str:
    if format == "html":
        from tmifpe.report.page.render import report_html

        return report_html(told)
    from tmifpe.report.page.texts import as_text

    return as_text(told, format)


def _show(path: str) -> None:
    import webbrowser
    from pathlib import Path

    if not webbrowser.open(Path(path).expanduser().resolve().as_uri()):
        typer.echo("no browser could be opened; open the file yourself", err=True)
