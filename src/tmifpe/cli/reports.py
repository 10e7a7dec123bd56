"""The files that a CI reads: written whatever becomes of the run."""

from __future__ import annotations

__all__ = ["Reports"]

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import typer

from tmifpe.cli import parse

if TYPE_CHECKING:
    from tmifpe.report.gates import Gates
    from tmifpe.run.result import Result


@dataclass(frozen=True)
class Reports:
    """JUnit XML and a summary in Markdown, each if a file is named for it."""

    junit: str | None
    summary: str | None

    def check(self) -> None:
        """`InputError` if one of them cannot be written."""
        parse.check_output(self.junit)
        parse.check_output(self.summary)

    def write(self, result: Result, gates: Gates) -> None:
        from tmifpe.report.junit import junit_xml
        from tmifpe.report.summary import summary

        self._write(junit_xml(result, gates), summary(result, gates))

    @contextmanager
    def also_on_failure(self, model: str) -> Iterator[None]:
        """While inside, whatever ends the run without a result is reported too."""
        from tmifpe.report.junit import junit_error
        from tmifpe.report.summary import summary_of_error

        try:
            yield
        except Exception as error:
            said = "interrupted" if isinstance(error, typer.Exit) else f"{error}" or type(error).__name__
            self._write(junit_error(model, said), summary_of_error(model, said))
            raise

    def _write(self, junit: str, summary: str) -> None:
        for path, text in ((self.junit, junit), (self.summary, summary)):
            if path is not None:
                parse.write_file(path, text.encode(errors="replace"))
