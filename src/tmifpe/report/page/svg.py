"""The few shapes that our charts are made of, as SVG inside the page: no script, and it prints as it shows.

Colours are classes (`c0` ... `c5`, `t0` ... for thresholds), which the style sheet fills for light and dark.
"""

from __future__ import annotations

__all__ = ["Axes", "Scale", "decades", "picture", "shape", "steps_of", "wide", "within", "words"]

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from tmifpe.core.shown.sheet import fitted, visible

WIDTH = 440
_EM = 12.5  # the size of letters in the style sheet
_SHARES = dict.fromkeys("fijlrtI.,:;'!|()[]/\\ -", 0.42) | dict.fromkeys("mwMW@%…", 1.0)


def shape(name: str, **attributes: object) -> Markup:
    """An element without content; `cls` is its class, and `_` in a name stands for `-`."""
    return Markup("<{}{}/>").format(name, _attributes(attributes))


def words(x: float, y: float, text: object, anchor: str = "start", cls: str = "", **more: object) -> Markup:
    """Text at a place; names from files among it, escaped."""
    given = {"x": f"{x:.1f}", "y": f"{y:.1f}", "text_anchor": anchor, "cls": cls or None, **more}
    return Markup("<text{}>{}</text>").format(_attributes(given), visible(str(text)))


def wide(text: str) -> float:
    """How wide the text is at most, in the widest of the fonts that browsers take: DejaVu Sans."""
    return sum(_EM * _SHARES.get(c, 0.73 if c.isupper() else 0.65 if c.isascii() else 1.0) for c in text)


def within(text: str, most: float) -> str:
    """The text without its middle where it would be wider than that.

    >>> within("robustbench:cifar10/Linf/Wong2020Fast", 200.0)
    'robustbench…Wong2020Fast'
    """
    flat, count = " ".join(text.split()), len(text)
    while wide(flat) > most and count > 2:
        count -= 1
        flat = fitted(text, count)
    return flat


def picture(parts: Iterable[Markup], height: float, label: str, width: float = WIDTH) -> Markup:
    """A chart that scales with the page; `label` says in a sentence what it shows."""
    inside = Markup("\n").join(parts)
    return Markup('<svg viewBox="0 0 {:.0f} {:.0f}" role="img" aria-label="{}">{}</svg>').format(
        width, height, visible(label), inside
    )


def _attributes(values: dict[str, object]) -> Markup:
    def written(value: object) -> object:
        return f"{value:.2f}".rstrip("0").rstrip(".") if isinstance(value, float) else value

    named = {("class" if key == "cls" else key.replace("_", "-")): value for key, value in values.items()}
    return Markup("").join(
        Markup(' {}="{}"').format(key, written(value)) for key, value in named.items() if value is not None
    )


@dataclass(frozen=True)
class Scale:
    """From values to places on the page, evenly or by their logarithm."""

    low: float
    high: float
    start: float
    end: float
    log: bool = False

    def __call__(self, value: float) -> float:
        low, high = self.low, self.high
        if self.log:
            value, low, high = (math.log(max(v, 1e-300)) for v in (value, low, high))
        share = (value - low) / (high - low) if high > low else 0.5
        return self.start + min(1.0, max(0.0, share)) * (self.end - self.start)

    def ticks(self, most: int = 6) -> list[float]:
        return decades(self.low, self.high, most) if self.log else steps_of(self.low, self.high, most)


def steps_of(low: float, high: float, most: int = 6) -> list[float]:
    """Round numbers from low to high.

    >>> steps_of(0, 100)
    [0.0, 20.0, 40.0, 60.0, 80.0, 100.0]
    """
    if not high > low or not math.isfinite(high - low):
        return [low]
    raw = (high - low) / most
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(power * k for k in (1, 2, 2.5, 5, 10) if power * k >= raw * (1 - 1e-9))
    first = math.ceil(low / step - 1e-9)
    return [k * step + 0.0 for k in range(first, math.floor(high / step + 1e-9) + 1)]


def decades(low: float, high: float, most: int = 6) -> list[float]:
    """Powers of ten within; where there are fewer than two, round numbers."""
    first, last = math.ceil(math.log10(low) - 1e-9), math.floor(math.log10(high) + 1e-9)
    if last - first < 1:
        return [value for value in steps_of(low, high, most) if value > 0]
    every = math.ceil((last - first + 1) / most)
    return [10.0**k for k in range(first, last + 1, every)]


@dataclass(frozen=True)
class Axes:
    """A frame with ticks, grid lines and titles."""

    x: Scale
    y: Scale
    x_title: str
    y_title: str

    def drawn(self, x_ticks: Sequence[float] | None = None) -> list[Markup]:
        left, right, bottom, top = self.x.start, self.x.end, self.y.start, self.y.end
        parts = []
        for value in self.y.ticks(5):
            y = self.y(value)
            parts += [
                shape("line", x1=left, x2=right, y1=y, y2=y, cls="grid"),
                words(left - 6, y + 4, f"{value:g}", "end"),
            ]
        for value in self.x.ticks() if x_ticks is None else x_ticks:
            x = self.x(value)
            parts += [shape("line", x1=x, x2=x, y1=bottom, y2=bottom + 4, cls="axis")]
            parts.append(words(x, bottom + 17, f"{value:g}", "middle"))
        parts.append(shape("line", x1=left, x2=right, y1=bottom, y2=bottom, cls="axis"))
        parts.append(words((left + right) / 2, bottom + 34, self.x_title, "middle", "title"))
        middle = (bottom + top) / 2
        turned = f"rotate(-90 12 {middle:.1f})"
        return [*parts, words(12, middle, self.y_title, "middle", "title", transform=turned)]
