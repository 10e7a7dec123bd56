"""The files that a CI reads, written whatever becomes of the run, and the trackers that are told of its numbers."""

from __future__ import annotations

__all__ = ["Reports", "check_trackers", "tell_trackers"]

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import typer

from tmifpe.cli import parse
from tmifpe.cli.console import prints_on_stderr, remark, wrote
from tmifpe.cli.options import EngineOptions
from tmifpe.core.errors import InputError

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
                wrote(path)


def check_trackers(track: Sequence[str] | None, engine: EngineOptions) -> None:
    """`InputError` if one of --track cannot be told anything: before the run, not after it."""
    from tmifpe.compat.trackers import check_tracker

    if track and engine.shard is not None:
        raise InputError("--track is for whole runs; leave it out here, merge the parts, and give it without --shard")
    for to in track or ():
        check_tracker(to)


def tell_trackers(track: Sequence[str] | None, results: Iterable[Result]) -> None:
    """A run in the tracker for every result."""
    from tmifpe.compat.trackers import track as tell

    told = list(results) if track else []
    for to in track or ():
        with prints_on_stderr():
            for result in told:
                tell(result, to)
        remark(f"logged {len(told)} {'run' if len(told) == 1 else 'runs'} to {to}")
