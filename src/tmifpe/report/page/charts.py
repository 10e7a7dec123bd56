"""The charts of a report. Colours never stand alone: dashes, outlines or numbers say the same."""

from __future__ import annotations

__all__ = ["Standing", "class_chart", "confusion_chart", "histogram", "line_chart", "ranking"]

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from tmifpe.report.page.measured import Bins, Confusion, Line, Shares
from tmifpe.report.page.svg import WIDTH, Axes, Scale, picture, shape, wide, within, words

DASHES = ("", "7 3", "2 3", "9 3 2 3", "5 2", "1 2")
_LEFT, _RIGHT = 54.0, WIDTH - 14.0
_ROW = 17.0
_CLASSES = 30  # more bars than that are cut to the weakest and the strongest


def _dashes(k: int) -> str | None:
    """Of the k-th line: colours come back after six, with other dashes."""
    return DASHES[(k + k // 6) % 6] or None


def line_chart(lines: Sequence[Line], x_title: str, label: str, log: bool = False, stairs: bool = True) -> Markup:
    """Shares that fall in steps, in percent; the key is below. Without `stairs` they are points, joined by lines."""
    high = max((line.x[-1] for line in lines), default=1.0) or 1.0
    low = 0.0
    if log:  # the first step above zero
        low = min((x for line in lines for x in line.x if x > 0), default=high / 10)
        low = min(low, high / 2)
    axes = Axes(Scale(low, high, _LEFT, _RIGHT, log), Scale(0, 100, 222, 12), x_title, "robust accuracy, %")
    parts = axes.drawn()
    for k, line in enumerate(lines):
        at = _staircase(line, axes, high) if stairs else _joined(line, axes)
        parts.append(shape("polyline", points=at, cls=f"line c{k % 6}", stroke_dasharray=_dashes(k)))
        if not stairs:
            parts += [
                shape("circle", cx=axes.x(x), cy=axes.y(100 * y), r=3.5, cls=f"fill c{k % 6}")
                for x, y in zip(line.x, line.y, strict=True)
            ]
    key = _key([line.name for line in lines], 278) if len(lines) > 1 else []
    return picture([*parts, *key], 264 + (14 + 16 * len(lines) if len(lines) > 1 else 0), label)


def _staircase(line: Line, axes: Axes, high: float) -> str:
    points, last = [], None
    for x, y in zip(line.x, line.y, strict=True):
        place = axes.x(x)
        if last is not None:
            points.append(f"{place:.1f},{last:.1f}")
        last = axes.y(100 * y)
        points.append(f"{place:.1f},{last:.1f}")
    points.append(f"{axes.x(high):.1f},{last:.1f}")
    return " ".join(points)


def _joined(line: Line, axes: Axes) -> str:
    return " ".join(f"{axes.x(x):.1f},{axes.y(100 * y):.1f}" for x, y in zip(line.x, line.y, strict=True))


def _key(names: Sequence[str], top: float) -> list[Markup]:
    parts = []
    for k, name in enumerate(names):
        y = top + 16 * k
        parts += [
            shape(
                "line", x1=_LEFT, x2=_LEFT + 30, y1=y - 4, y2=y - 4, cls=f"line c{k % 6}", stroke_dasharray=_dashes(k)
            ),
            words(_LEFT + 38, y, within(name, WIDTH - _LEFT - 42)),
        ]
    return parts


def histogram(found: Bins, x_title: str, label: str, limits: Mapping[str, float] | None = None) -> Markup:
    """Two histograms over one another: before the attack filled, after it outlined; thresholds with their names."""
    limits = limits or {}
    low, high = found.edges[0], found.edges[-1]
    if found.log and limits:
        low, high = min(low, *limits.values()) / 1.3, max(high, *limits.values()) * 1.3
    top = 12.0 + 13 * len(limits)
    tallest = max(*found.before, *found.after, 1)
    axes = Axes(Scale(low, high, _LEFT, _RIGHT, found.log), Scale(0, tallest, 222, top), x_title, "examples")
    parts = axes.drawn()
    for k, count in enumerate(found.before):
        if count:
            x, end, y = axes.x(found.edges[k]), axes.x(found.edges[k + 1]), axes.y(count)
            parts.append(shape("rect", x=x, width=max(end - x - 0.5, 0.5), y=y, height=222 - y, cls="before"))
    outline = [f"{axes.x(low):.1f},222"]
    for k, count in enumerate(found.after):
        y = axes.y(count)
        outline += [f"{axes.x(found.edges[k]):.1f},{y:.1f}", f"{axes.x(found.edges[k + 1]):.1f},{y:.1f}"]
    outline += [f"{axes.x(found.edges[-1]):.1f},222"]
    parts.append(shape("polyline", points=" ".join(outline), cls="line after"))
    ordered = sorted(limits.items(), key=lambda pair: pair[1])
    for k, (_, value) in enumerate(ordered):
        x, y = axes.x(value), 4.0 + 13 * k
        parts.append(shape("line", x1=x, x2=x, y1=y, y2=222, cls=f"line t{k}", stroke_dasharray=DASHES[1 + k % 5]))
    for k, (name, value) in enumerate(ordered):  # after all lines, so that none crosses a name
        x, y = axes.x(value), 12.0 + 13 * k
        side = "end" if x > (_LEFT + _RIGHT) / 2 else "start"
        parts.append(words(x + (5 if side == "start" else -5), y, f"{name}: {value:.3g}", side, "small halo"))
    key = [
        shape("rect", x=_LEFT, y=263, width=24, height=9, cls="before"),
        words(_LEFT + 30, 272, "before the attack"),
        shape("line", x1=_LEFT + 160, x2=_LEFT + 186, y1=268, y2=268, cls="line after"),
        words(_LEFT + 192, 272, "after it"),
    ]
    return picture([*parts, *key], 280, label)


def class_chart(shares: Sequence[Shares], names: Mapping[int, str], label: str) -> tuple[Markup, int]:
    """Bars of robust accuracy with their intervals, inside those of clean accuracy, and how many classes were cut."""
    ordered = sorted(shares, key=lambda one: (one.robust, one.clean, one.label))
    cut = max(0, len(ordered) - _CLASSES)
    if cut:
        ordered = [*ordered[: _CLASSES // 2], *ordered[-_CLASSES // 2 :]]
    called = [within(names[one.label], 150) for one in ordered]
    left, bottom = 12 + max(map(wide, called)), 14 + _ROW * len(ordered)
    x = Scale(0, 100, left, WIDTH - 52.0)
    parts = []
    for value in x.ticks(5):
        parts += [
            shape("line", x1=x(value), x2=x(value), y1=8, y2=bottom, cls="grid"),
            words(x(value), bottom + 15, f"{value:g}", "middle"),
        ]
    for k, one in enumerate(ordered):
        y = 10 + _ROW * k
        parts += [
            words(left - 6, y + 11, called[k], "end"),
            shape("rect", x=left, y=y, width=x(100 * one.clean) - left, height=_ROW - 4, cls="before"),
            shape("rect", x=left, y=y + 2, width=x(100 * one.robust) - left, height=_ROW - 8, cls="fill c0"),
            shape("line", x1=x(100 * one.low), x2=x(100 * one.high), y1=y + 6.5, y2=y + 6.5, cls="axis"),
            words(WIDTH - 4, y + 11, f"{100 * one.robust:.1f}", "end"),
        ]
    parts.append(words((left + WIDTH - 52) / 2, bottom + 32, "robust (blue) within clean accuracy (grey), %", "middle"))
    return picture(parts, bottom + 40, label), cut


def confusion_chart(found: Confusion, names: Mapping[int, str], label: str) -> Markup:
    """Rows: the prediction before; columns: after. Cells are shaded by their share of the row, and counted."""
    size = len(found.labels)
    called = [within(names[label], 90) for label in found.labels]
    longest = max(map(wide, called))
    left, top = 28 + longest, 20 + 0.71 * longest  # the names of the columns rise by 45 degrees
    room = 0.71 * max(wide(name) * (k + 1) / size for k, name in enumerate(called))
    cell = (WIDTH - left - max(8, room)) / size
    numbers = size <= 12
    parts = []
    for i, row in enumerate(found.counts):
        whole = max(1, sum(row))
        y = top + cell * i
        parts.append(words(left - 5, y + cell / 2 + 4, called[i], "end"))
        for j, count in enumerate(row):
            x = left + cell * j
            shade = 0 if not count else 1 + min(5, int(6 * count / whole * 0.999))
            kind = f"cell h{shade}" + (" stayed" if i == j else "")
            parts.append(shape("rect", x=x, y=y, width=cell - 1, height=cell - 1, cls=kind))
            if count and numbers:
                parts.append(words(x + cell / 2 - 0.5, y + cell / 2 + 4, count, "middle", f"on{shade} small"))
    for j, name in enumerate(called):
        x = left + cell * (j + 0.5)
        turned = f"rotate(-45 {x:.1f} {top - 6:.1f})"
        parts.append(words(x, top - 6, name, "start", transform=turned))
    bottom = top + cell * size
    parts.append(words((left + WIDTH) / 2, bottom + 16, "prediction on the adversarial example", "middle", "title"))
    middle = (top + bottom) / 2
    turned = f"rotate(-90 13 {middle:.1f})"
    parts.append(words(13, middle, "prediction on the clean image", "middle", "title", transform=turned))
    return picture(parts, bottom + 24, label)


@dataclass(frozen=True)
class Standing:
    """One line of a ranking: shares in [0, 1]."""

    name: str
    clean: float | None
    robust: float | None
    """None of an incomplete run, which has the bounds alone."""
    low: float
    high: float
    certified: float | None = None


def ranking(rows: Sequence[Standing], label: str) -> Markup:
    """A dot with its interval per run; a bar for clean accuracy, a tick for what is certified."""
    bottom = 12.0 + 40 * len(rows)
    x = Scale(0, 100, 14.0, WIDTH - 60.0)
    parts = []
    for value in x.ticks(5):
        parts += [
            shape("line", x1=x(value), x2=x(value), y1=4, y2=bottom, cls="grid"),
            words(x(value), bottom + 15, f"{value:g}", "middle"),
        ]
    for k, row in enumerate(rows):
        y = 34 + 40 * k
        parts += [
            words(14, y - 13, within(row.name, WIDTH - 18)),
            shape("line", x1=x(100 * row.low), x2=x(100 * row.high), y1=y, y2=y, cls="line c0"),
        ]
        if row.clean is not None:
            parts.append(shape("line", x1=x(100 * row.clean), x2=x(100 * row.clean), y1=y - 7, y2=y + 7, cls="axis"))
        if row.robust is not None:
            parts.append(shape("circle", cx=x(100 * row.robust), cy=y, r=4.5, cls="fill c0"))
        parts.append(words(WIDTH - 4, y + 4, "incomplete" if row.robust is None else f"{100 * row.robust:.2f}", "end"))
        if row.certified is not None:
            points = f"{x(100 * row.certified):.1f},{y - 6} {x(100 * row.certified):.1f},{y + 6}"
            parts.append(shape("polyline", points=points, cls="line c1"))
    proved = ", thick tick: certified" if any(row.certified is not None for row in rows) else ""
    parts.append(words(14, bottom + 34, f"Dot: robust %, 95 % interval; thin tick: clean{proved}.", cls="small"))
    return picture(parts, bottom + 44, label)
