"""Every figure with 1, 7 and 30 models and names of sixty characters: no text is cut, and none runs into another."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

import tmifpe
from tests.pages import long_name, made_up, made_up_curve
from tmifpe import Audit, Comparison
from tmifpe.evaluation.minimal import Minimal

pytest.importorskip("matplotlib")
from matplotlib.figure import Figure
from matplotlib.text import Text

COUNTS = pytest.mark.parametrize("count", [1, 7, 30])


def texts(figure: Any) -> Iterator[Text]:
    """Everything that is written in it, but the tick labels that matplotlib keeps beyond the ends of an axis."""
    for text in figure.findobj(Text):
        if text.get_visible() and text.get_text().strip() and text.get_window_extent().width:
            yield text


def check(figure: Any) -> None:
    """All text is inside the figure, and no two lines of it overlap; where lines are turned, their boxes may."""
    figure.set_dpi(72)
    figure.draw_without_rendering()
    hidden = {id(tick.label2) for axes in figure.axes for tick in (*axes.xaxis.majorTicks, *axes.yaxis.majorTicks)}
    for axes in figure.axes:
        for axis in (axes.xaxis, axes.yaxis):
            low, high = sorted(axis.get_view_interval())
            for tick in (*axis.majorTicks, *axis.minorTicks):
                if not low <= tick.get_loc() <= high:
                    hidden.add(id(tick.label1))
    seen = [text for text in texts(figure) if id(text) not in hidden]
    boxes = [(text.get_text(), text.get_window_extent(), text.get_rotation()) for text in seen]
    width, height = figure.bbox.width, figure.bbox.height
    for said, box, _ in boxes:
        assert box.x0 >= -0.5 and box.x1 <= width + 0.5, f"{said!r} is cut at a side"  # noqa: PT018
        assert box.y0 >= -0.5 and box.y1 <= height + 0.5, f"{said!r} is cut above or below"  # noqa: PT018
    level = [(said, box) for said, box, turned in boxes if turned == 0]
    for (one, a), (other, b) in itertools.combinations(level, 2):
        common = min(a.x1, b.x1) - max(a.x0, b.x0), min(a.y1, b.y1) - max(a.y0, b.y0)
        assert min(common) < 0.5, f"{one!r} runs into {other!r}"  # half a point is the rim of a letter's box


def comparison(count: int, seed: int = 0, plain: bool = False) -> Comparison:
    names = [f"loss{k}" if plain else long_name(k) for k in range(count)]
    return Comparison({name: (made_up(60, seed=seed + k),) for k, name in enumerate(names)}, (0,))


@cache
def audited() -> Audit:
    model, data = tmifpe.load_model("digits-distilled"), tmifpe.load_data("digits", limit=4)
    return tmifpe.audit(model, data, ["ce"], ["fp16", "bf16", "fp32"])


def test_the_check_can_fail() -> None:
    figure = Figure(figsize=(3, 3))
    figure.text(0.2, 0.5, "one word")
    check(figure)
    figure.text(0.3, 0.5, "another")
    with pytest.raises(AssertionError, match="runs into"):
        check(figure)
    figure = Figure(figsize=(3, 3))
    figure.text(0.9, 0.5, "beyond the edge")
    with pytest.raises(AssertionError, match="cut at a side"):
        check(figure)


@COUNTS
def test_comparisons(count: int) -> None:
    made = comparison(count)
    ((_, (first,)), *_) = made.results.items()
    spec = replace(first.spec, model=long_name(1), data=long_name(0))
    made.results[long_name(0)] = (replace(first, spec=spec),)
    check(made.plot())


@COUNTS
def test_results_by_class(count: int) -> None:
    classes = max(2, count)
    made = made_up(400, classes, class_names=tuple(map(long_name, range(classes))))
    check(replace(made, spec=replace(made.spec, model=long_name(1), data=long_name(0))).plot())


@COUNTS
def test_curves(count: int) -> None:
    from tmifpe.evaluation.shown_radii import plot_curves

    figure = plot_curves({long_name(k): made_up_curve(k, certify=True) for k in range(count)}, "A title, " * 30)
    check(figure)
    (legend,) = figure.legends
    (axes,) = figure.axes
    assert len({text.get_text() for text in legend.get_texts()}) == 2 * count, "names stay apart"
    assert not legend.get_window_extent().overlaps(axes.get_window_extent()), "no curve is covered"


@pytest.mark.parametrize("count", [1, 30])
def test_audits(count: int) -> None:
    made = audited()
    cells = [replace(cell, loss=long_name(k)) for k in range(count) for cell in made.cells]
    check(replace(made, cells=tuple(cells), model=long_name(1), data=long_name(0)).plot())


def test_smallest_perturbations() -> None:
    size = torch.linspace(0, 1, 40, dtype=torch.float64)
    size[-9:] = torch.inf
    check(Minimal(torch.zeros(40, 1, 2, 2), size).plot())
    check(Minimal(torch.zeros(2, 1, 2, 2), torch.full((2,), torch.inf, dtype=torch.float64)).plot())


@pytest.mark.parametrize(
    ("what", "count"), [("models", 30), ("losses", 7), ("losses", 30), ("curves", 1), ("curves", 7)]
)
def test_bars(what: str, count: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from tmifpe.report.bars import save_bars

    drawn: list[Figure] = []
    monkeypatch.setattr(Figure, "savefig", lambda self, *_: drawn.append(self))
    models = count if what == "models" else 2
    losses = comparison(count) if what == "losses" else comparison(6, plain=True)
    curves = {long_name(k): made_up_curve(k, certify=True) for k in range(count)} if what == "curves" else None
    save_bars({long_name(k): losses for k in range(models)}, tmp_path / "bars.png", "A title, " * 20, curves)
    check(drawn[0])
