"""The board: a leaderboard of all runs of a store, with a link to the report of each."""

from __future__ import annotations

__all__ = ["BoardRow", "board_html", "board_row"]

from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

from tmifpe.report.page.charts import line_chart
from tmifpe.report.page.measured import Line
from tmifpe.report.page.render import standalone
from tmifpe.report.page.reported import Reported
from tmifpe.run.shown.sheets import checks_said

_LINES = 12  # in one chart


@dataclass(frozen=True)
class BoardRow:
    """One run. Shares in [0, 1]; an incomplete one has bounds only, and does not compete."""

    model: str
    data: str
    norm: str
    eps: float
    threat: str
    attack: str
    n: int
    clean: float | None
    robust: float | None
    low: float
    high: float
    certified: float | None
    flags: tuple[str, ...]
    checks: str
    """What `checks_said` says of it."""
    seconds: float
    finished: str
    complete: bool
    href: str
    """Where its report is, from the board."""

    @property
    def contest(self) -> tuple[object, ...]:
        """Runs that answer the same question: the lowest of their numbers is the one to believe."""
        return self.model, self.data, self.norm, self.eps, self.n, round(self.clean or 0.0, 9)


def board_row(reported: Reported, href: str) -> BoardRow:
    """A run as a line of the board."""
    result, spec = reported.result, reported.result.spec
    low, high = result.interval if result.complete else result.bounds
    return BoardRow(
        model=reported.model,
        data=spec.data,
        norm=spec.threat.norm,
        eps=spec.threat.eps,
        threat=reported.threat + (f" to {spec.targets}" if spec.targets != "none" else ""),
        attack=reported.attack,
        n=result.n + result.missing,
        clean=result.clean_accuracy if result.complete else None,
        robust=result.robust_accuracy if result.complete else None,
        low=low,
        high=high,
        certified=result.certified_accuracy,
        flags=tuple(dict.fromkeys(flag.name for flag in result.flags)),
        checks=checks_said(result),
        seconds=result.seconds,
        finished=reported.finished,
        complete=result.complete,
        href=href,
    )


def board_html(rows: Sequence[BoardRow], title: str) -> str:
    """The index of the board: the most robust first."""
    ordered = sorted(rows, key=lambda row: (row.threat, row.data, -_standing(row), row.model))
    strongest: dict[tuple[object, ...], BoardRow] = {}
    for row in ordered:
        if row.complete and (row.contest not in strongest or _standing(row) < _standing(strongest[row.contest])):
            strongest[row.contest] = row
    best = {id(row) for row in strongest.values()}
    return standalone(
        "board",
        ("board.js",),
        title=title,
        rows=[(row, id(row) in best) for row in ordered],
        threats=sorted({row.threat for row in rows}),
        sources=sorted({row.data for row in rows}),
        charts=_charts(list(strongest.values())),
    )


def _standing(row: BoardRow) -> float:
    """Where a run stands among others: an incomplete one by its lower bound."""
    return row.low if row.robust is None else row.robust


def _charts(rows: Sequence[BoardRow]) -> list[tuple[str, Markup]]:
    """For every data set and norm, robust accuracy against eps: a line per model that was measured at two or more."""
    places: dict[tuple[str, str], dict[str, dict[float, float]]] = {}
    for row in rows:
        line = places.setdefault((row.data, row.norm), {}).setdefault(row.model, {0.0: row.clean or 0.0})
        line[row.eps] = min(_standing(row), line.get(row.eps, 1.0))
    drawn = []
    for (data, norm), models in places.items():
        lines = [
            Line(model, tuple(eps for eps, _ in sorted(found.items())), tuple(y for _, y in sorted(found.items())))
            for model, found in models.items()
            if len(found) > 1
        ]
        if lines:
            more = f", the first {_LINES} of {len(lines)} models" if len(lines) > _LINES else ""
            title = f"Robust accuracy against eps: {data}, {norm}{more}"
            drawn.append((title, line_chart(lines[:_LINES], f"eps ({norm})", title, stairs=False)))
    return drawn
