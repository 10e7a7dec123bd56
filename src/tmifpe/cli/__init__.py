"""The command line: one file per verb, heavy imports inside them so that --help is fast."""

from __future__ import annotations

__all__ = ["app", "main"]

from functools import partial
from typing import Annotated, Any

import typer

from tmifpe.cli.command import THE_PAPER, Command, Verbs
from tmifpe.cli.options import with_options
from tmifpe.core.errors import InputError, as_options, first_line, is_out_of_memory
from tmifpe.version import __version__

EXIT_CODES = (
    "Exit codes: 0 done; 1 a gate was missed (--fail-below and its like); 2 a mistake, said in one sentence; 3 flags "
    "were raised (--strict); 4 shards failed, and the run is incomplete; 70 a bug of tmifpe; 130 interrupted."
)


class _Group(Verbs):
    """Turns user errors into one sentence on stderr and exit code 2."""

    def invoke(self, ctx: Any) -> Any:
        from rich.console import Console

        from tmifpe.cli.console import harmless

        try:
            return super().invoke(ctx)
        except (InputError, MemoryError, RuntimeError) as error:
            sentence = str(error) if isinstance(error, InputError) else _out_of_memory(error)
            if sentence is None:
                raise
            said = harmless(f"error: {as_options(sentence)}")
            Console(stderr=True, soft_wrap=True).print(said, style="red", markup=False, highlight=False)
            raise typer.Exit(2) from error


def _out_of_memory(error: BaseException) -> str | None:
    """What to do when memory runs out; None for any other error, which is a bug of ours."""
    return f"out of memory: try a smaller --batch-size ({first_line(error)})" if is_out_of_memory(error) else None


app = typer.Typer(
    cls=_Group,
    name="tmifpe",
    help="How robust is an image classifier to adversarial attack? Fast and reliable.",
    epilog=EXIT_CODES,
    context_settings={"help_option_names": ["-h", "--help"]},
    no_args_is_help=True,
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
    from tmifpe.cli import (
        audit,
        compare,
        curve,
        demo,
        doctor,
        evaluate,
        figure1,
        listing,
        merge,
        runs,
        table1,
        table_targeted,
        theory,
        verify,
    )
    from tmifpe.cli.pages import board, report
    from tmifpe.cli.plans import verbs as plans

    verb = partial(app.command, cls=Command)
    verb("evaluate", epilog=EXIT_CODES)(with_options(evaluate.evaluate))
    verb("compare", epilog=EXIT_CODES)(with_options(compare.compare))
    verb("curve", epilog=EXIT_CODES)(with_options(curve.curve))
    verb("verify")(with_options(verify.verify))
    verb("audit")(with_options(audit.audit))
    verb("run", epilog=EXIT_CODES)(with_options(plans.run))
    app.add_typer(plans.plan)
    runs.runs.command("merge", cls=Command)(merge.merge)
    app.add_typer(runs.runs)
    verb("report")(report.report)
    verb("board")(board.board)
    verb("list")(listing.listing)
    verb("demo")(with_options(demo.demo))
    verb("doctor", epilog=doctor.EXIT_CODES)(doctor.doctor)
    paper = partial(verb, rich_help_panel=THE_PAPER)
    paper("table1")(with_options(table1.table1))
    paper("table-targeted")(with_options(table_targeted.table_targeted))
    # A row of logits may start with a minus sign, which must not be taken for an option.
    paper("theory", context_settings={"ignore_unknown_options": True})(theory.theory)
    paper("figure1")(figure1.figure1)


_register()


def main() -> None:
    """The `tmifpe` command."""
    import sys
    import traceback

    from tmifpe.core.process import keep_freed_memory, wait_briefly

    wait_briefly()
    keep_freed_memory()
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):  # a terminal that cannot show a character shows another, not a traceback
            stream.reconfigure(errors="replace")  # pyright: ignore[reportAttributeAccessIssue]
    try:
        app(prog_name="tmifpe")  # also as `python -m tmifpe`: completion belongs to the command
    except Exception:  # not with 1, as Python would: to a CI that is a missed gate
        for line in traceback.format_exc().splitlines():
            sys.stderr.write("".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in line) + "\n")
        sys.exit(70)
