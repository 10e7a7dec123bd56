"""From results to one HTML file: everything is inside, nothing is fetched, and only our own script runs."""

from __future__ import annotations

__all__ = ["report_html", "standalone"]

import base64
import hashlib
from collections.abc import Sequence
from functools import cache
from importlib import resources
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from tmifpe.core.shown.sheet import percent, visible
from tmifpe.report.page import facts
from tmifpe.report.page.charts import Standing, line_chart, ranking
from tmifpe.report.page.measured import Line, against_eps, against_steps
from tmifpe.report.page.reported import Reported, titled
from tmifpe.report.page.section import section_of
from tmifpe.run.result import Result
from tmifpe.version import __version__


def report_html(reports: Sequence[Reported]) -> str:
    """The report as the text of an HTML file."""
    reports = titled(reports)
    sections = [section_of(one, number) for number, one in enumerate(reports, start=1)]
    compared = _compared(reports) if len(reports) > 1 else None
    title = facts.name_of(reports[0]) if len(reports) == 1 else f"{len(reports)} runs compared"
    return standalone("report", ("report.js",), title=title, sections=sections, compared=compared)


def standalone(name: str, scripts: Sequence[str], **values: Any) -> str:
    """The template `name`.html with our style sheet and scripts inside, and a policy that admits only these."""
    style, script = _asset("style.css"), "".join(map(_asset, ("theme.js", *scripts)))
    policy = (
        f"default-src 'none'; img-src data:; style-src '{_hash(style)}'; script-src '{_hash(script)}'; "
        "base-uri 'none'; form-action 'none'"
    )
    page = _environment().get_template(f"{name}.html")
    return page.render(
        policy=policy,
        style=Markup(style),  # noqa: S704 - our own file
        script=Markup(script),  # noqa: S704 - our own file
        version=__version__,
        **values,
    )


@cache
def _environment() -> Environment:
    made = Environment(
        loader=PackageLoader("tmifpe.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=lambda value: value if isinstance(value, Markup) or not isinstance(value, str) else visible(value),
    )
    made.filters["percent"] = percent
    return made


@cache
def _asset(name: str) -> str:
    return (resources.files("tmifpe.report") / "templates" / name).read_text(encoding="utf-8")


def _hash(content: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()


def _compared(reports: Sequence[Reported]) -> dict[str, Any]:
    """Charts and tables over all runs."""
    names = facts.short_names_of(reports)
    rows = [
        Standing(name, *_ends(one.result), one.result.certified_accuracy)
        for name, one in zip(names, reports, strict=True)
    ]
    title = f"Robust accuracy of {len(rows)} runs"
    charts = [(title, ranking(rows, f"{title} with 95 % intervals"))]
    for lines, x, log in (
        ([(against_steps(one.result), name) for one, name in zip(reports, names, strict=True)], "steps", True),
        (
            [(next(iter(against_eps(one.result)), None), name) for one, name in zip(reports, names, strict=True)],
            "eps",
            False,
        ),
    ):
        drawn = [Line(name, line.x, line.y) for line, name in lines if line is not None]
        if drawn:
            said = f"Robust accuracy against {x}" + (f", the first 12 of {len(drawn)} runs" if len(drawn) > 12 else "")
            charts.append((said, line_chart(drawn[:12], f"{x}{' (log scale)' if log else ''}", said, log)))
    differ = facts.differences(reports)
    sheets = [facts.comparison_sheet(reports), *([differ] if differ else [])]
    return {"charts": charts, "sheets": sheets}


def _ends(result: Result) -> tuple[float | None, float | None, float, float]:
    """Clean and robust accuracy where they are known, and what the latter lies between."""
    if not result.complete:
        return None, None, *result.bounds
    return result.clean_accuracy, result.robust_accuracy, *result.interval
