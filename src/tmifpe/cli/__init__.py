"""The command line: one file per verb, heavy imports inside them so that --help is fast."""

from __future__ import annotations

__all__ = ["app", "main"]

from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from tmifpe.cli.options import with_options
from tmifpe.core.errors import InputError
from tmifpe.version import __version__


class _Group(TyperGroup):
    """Turns the errors of the user's making into one sentence on stderr and exit 2."""

    def invoke(self, ctx: Any) -> Any:
        from rich.console import Console

        try:
            return super().invoke(ctx)
        except InputError as error:
            Console(stderr=True, soft_wrap=True).print(f"error: {error}", style="red", markup=False, highlight=False)
            raise typer.Exit(2) from error


app = typer.Typer(
    cls=_Group,
    name="tmifpe",
    help="How robust is an image classifier to adversarial attack? Fast and honest.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(__version__)
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    pass


def _register() -> None:
    from tmifpe.cli import audit, compare, demo, evaluate, listing, runs, table1, table_targeted

    app.command("evaluate")(with_options(evaluate.evaluate))
    app.command("compare")(with_options(compare.compare))
    app.command("table1")(with_options(table1.table1))
    app.command("table-targeted")(with_options(table_targeted.table_targeted))
    app.command("audit")(with_options(audit.audit))
    app.add_typer(runs.runs)
    app.command("list")(listing.listing)
    app.command("demo")(demo.demo)


_register()


def main() -> None:
    """The `tmifpe` command."""
    app()
