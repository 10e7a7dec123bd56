"""What a page shows of one run: charts, tables, gallery, in the order of reading."""

from __future__ import annotations

__all__ = ["Block", "Card", "Section", "section_of"]

from dataclasses import dataclass

from markupsafe import Markup

from tmifpe.core.shown.sheet import Sheet
from tmifpe.report.page import charts, facts, measured
from tmifpe.report.page.reported import Picture, Reported
from tmifpe.run.outcomes import Mark
from tmifpe.run.result import Flag, Result
from tmifpe.run.shown.sheets import checks_said, clean_said, headline, stage_name, stages_sheet
from tmifpe.theory.formats import FORMATS


@dataclass(frozen=True)
class Block:
    """A chart with its heading, a sentence on how to read it, and the numbers behind it."""

    title: str
    chart: Markup
    said: str
    sheet: Sheet | None = None


@dataclass(frozen=True)
class Card:
    """One example of the gallery: the picture, and what the filters look at."""

    picture: Picture
    index: str
    label: str
    before: str
    after: str
    stage: str
    broken: bool
    fragile: bool
    steps: int
    margin: float
    clean_margin: float


@dataclass(frozen=True)
class Section:
    """One run."""

    number: int
    name: str
    reported: Reported
    headline: Sheet
    flags: tuple[Flag, ...]
    stages: Sheet
    blocks: tuple[Block, ...]
    layers: Sheet
    provenance: Sheet
    cards: tuple[Card, ...]

    @property
    def result(self) -> Result:
        return self.reported.result

    @property
    def interval(self) -> tuple[float, float]:
        return self.result.interval if self.result.complete else self.result.bounds

    @property
    def clean(self) -> str:
        return clean_said(self.result)

    @property
    def checks(self) -> str:
        return checks_said(self.result)

    @property
    def labels(self) -> list[str]:
        """Of the gallery, for its filter."""
        return sorted({card.label for card in self.cards})

    @property
    def stage_names(self) -> list[str]:
        return sorted({card.stage for card in self.cards})

    @property
    def most_steps(self) -> int:
        return max((card.steps for card in self.cards), default=0)


def section_of(reported: Reported, number: int = 1) -> Section:
    """Everything that the page shows of this run."""
    result = reported.result
    return Section(
        number,
        facts.name_of(reported),
        reported,
        headline(result),
        tuple(flag.on_command_line() for flag in result.flags),
        stages_sheet(result),
        tuple(_blocks(result)),
        facts.layers_sheet(result),
        facts.provenance_sheet(reported),
        tuple(_card(result, picture) for picture in reported.pictures),
    )


def _blocks(result: Result) -> list[Block]:
    found = []
    if (line := measured.against_steps(result)) is not None:
        sheet = facts.line_sheet("Robust accuracy against steps", "steps", [line])
        log = line.x[-1] > 50
        said = "How many steps the attack needs, all stages counted. A curve that still falls at its end asks for more."
        chart = charts.line_chart([line], f"steps{' (log scale)' if log else ''}", sheet.title, log)
        found.append(Block(sheet.title, chart, said, sheet))
    if lines := measured.against_eps(result):
        sheet = facts.line_sheet("Robust accuracy against eps", "eps", lines)
        said = "An upper bound: an adversarial example of some size breaks its example at every larger eps, too."
        found.append(
            Block(sheet.title, charts.line_chart(lines, f"eps ({result.spec.threat.norm})", sheet.title), said, sheet)
        )
    shares = measured.per_class(result)
    if len(shares) > 1:
        sheet = facts.classes_sheet(result, shares)
        names = {one.label: result.class_name(one.label) for one in shares}
        chart, cut = charts.class_chart(shares, names, sheet.title)
        said = "Weakest first; the line is the 95 % interval." + (
            f" The {cut} classes between are left out." if cut else ""
        )
        found.append(Block(sheet.title, chart, said, sheet))
    if (moves := measured.confusion(result)) is not None:
        sheet = facts.confusion_sheet(result, moves)
        names = {label: result.class_name(label) for label in moves.labels}
        said = "Outlined cells withstood; the darker a cell, the larger its share of the row."
        found.append(Block(sheet.title, charts.confusion_chart(moves, names, sheet.title), said, sheet))
    if (margins := measured.margins(result)) is not None:
        said = "The largest other logit less that of the label: below 0 classified correctly, above 0 broken."
        title = "Margins before and after"
        found.append(Block(title, charts.histogram(margins, "margin", title), said))
    if (gaps := measured.gaps(result)) is not None:
        limits = {name: FORMATS[name].ce_dies for name in ("bf16", "fp16", "fp32", "fp64")}
        title = "Gap Δ between the two largest logits"
        said = "Right of a line, cross-entropy in that precision has lost the label's gradient (two classes)."
        found.append(Block(title, charts.histogram(gaps, "gap Δ (log scale)", title, limits), said))
    return found


def _card(result: Result, picture: Picture) -> Card:
    row, called = result.outcomes[picture.row], result.class_name
    stage = "withstood"
    if 0 <= row.stage < len(result.spec.attacks):
        stage = stage_name(result.spec.attacks[row.stage])
    elif row.stage >= 0:
        stage = "repair"
    index = result.files[picture.row] if result.files else str(row.index)
    return Card(
        picture,
        index,
        called(row.label),
        called(row.clean_pred),
        called(row.adv_pred),
        stage if row.fooled else "withstood",
        row.fooled,
        bool(row.marks & Mark.FRAGILE),
        row.steps_used,
        row.margin,
        row.clean_margin,
    )
