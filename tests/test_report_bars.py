"""The bars of `report.bars`: any number of models, names of any length, nothing drawn over a number."""

from __future__ import annotations

import itertools
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tmifpe
from tmifpe import PGD, Comparison, Threat

pytest.importorskip("matplotlib")
from matplotlib.legend import Legend


@pytest.fixture(scope="module")
def comparison() -> Comparison:
    model, data = tmifpe.load_model("digits-robust"), tmifpe.load_data("digits", limit=24)
    losses = ["ce", "cw", "tmifpe", "mifpe(T=10)"]
    return tmifpe.compare(model, data, Threat("linf", 0.15), losses, PGD(steps=3), checks=False)


@pytest.fixture(scope="module")
def perfect() -> Comparison:
    """Nothing is broken, so that bars and whiskers reach as far as they can."""
    model, data = tmifpe.load_model("digits-robust"), tmifpe.load_data("digits", limit=24)
    losses = ["ce", "cw", "tmifpe", "mifpe(T=10)"]
    return tmifpe.compare(model, data, Threat("linf", 0.0), losses, PGD(steps=1), checks=False)


@pytest.mark.parametrize("models", [1, 7, 30])
def test_names_and_numbers_do_not_overlap(
    models: int, comparison: Comparison, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from matplotlib.figure import Figure

    from tmifpe.report.bars import save_bars

    drawn: list[Figure] = []
    kept = Figure.savefig
    monkeypatch.setattr(Figure, "savefig", lambda self, *a, **o: (drawn.append(self), kept(self, *a, **o)))
    names = [f"robustbench:cifar10/Linf/A_rather_long_name_of_{k}_$models_and_more" for k in range(models)]
    path = save_bars(dict.fromkeys(names, comparison), tmp_path / "bars.png", "PGD-3, linf 0.15, " + "and so on " * 12)
    assert path.stat().st_size > 0
    (axes,) = drawn[0].axes
    inside = drawn[0].bbox
    ticks = [label.get_window_extent() for label in axes.get_yticklabels()]
    numbers = [text.get_window_extent() for text in axes.texts]
    assert len(ticks) == models
    assert len(numbers) == 4 * models
    for box in [*ticks, *numbers, *(a.get_window_extent() for a in (*drawn[0].texts, *drawn[0].legends))]:
        assert inside.x0 <= box.x0 < box.x1 <= inside.x1
        assert inside.y0 <= box.y0 < box.y1 <= inside.y1
    for one, other in [*itertools.combinations(ticks, 2), *itertools.combinations(numbers, 2)]:
        assert not one.overlaps(other)


@pytest.mark.parametrize("models", [1, 7])
def test_no_whisker_touches_a_number(
    models: int, comparison: Comparison, perfect: Comparison, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Drawn apart, the ink of whiskers and the ink of numbers have no pixel in common, nor neighbouring ones."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.container import ErrorbarContainer
    from matplotlib.figure import Figure

    from tmifpe.report.bars import save_bars

    drawn: list[Figure] = []
    monkeypatch.setattr(Figure, "savefig", lambda self, *a, **o: drawn.append(self))
    save_bars({f"m{k}": (perfect, comparison)[k % 2] for k in range(models)}, tmp_path / "bars.png", "PGD")
    (figure,) = drawn
    figure.canvas.draw()
    figure.set_layout_engine("none")  # what is hidden below must not move the rest
    (axes,) = figure.axes
    bars = [found for found in axes.containers if isinstance(found, ErrorbarContainer)]
    whiskers = [artist for found in bars for part in found.lines[1:] for artist in part]
    numbers = list(axes.texts)

    def ink(shown: list[Any]) -> np.ndarray:
        for artist in (*figure.get_children(), *axes.get_children()):
            artist.set_visible(artist in shown or artist is axes)
        axes.patch.set_visible(False)
        canvas = figure.canvas
        assert isinstance(canvas, FigureCanvasAgg)
        canvas.draw()
        return np.asarray(canvas.buffer_rgba())[..., 3] > 0

    first, second = ink(whiskers), ink(numbers)
    assert first.any()
    assert second.any()
    near = second.copy()
    for axis, shift in ((0, 1), (0, -1), (1, 1), (1, -1)):
        near |= np.roll(second, shift, axis)
    assert not (first & near).any()


def test_a_format_has_one_colour_and_examples_are_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from matplotlib.colors import to_hex
    from matplotlib.figure import Figure

    from tmifpe.report.audit_files import draw_audit
    from tmifpe.report.curves import plot_analysis
    from tmifpe.theory import analyse

    drawn: list[Figure] = []
    monkeypatch.setattr(Figure, "savefig", lambda self, *a, **o: (self.canvas.draw(), drawn.append(self)))
    model, data = tmifpe.load_model("digits-distilled"), tmifpe.load_data("digits", limit=3)
    for formats in (["fp64", "fp32"], ["fp16", "bf16", "fp32"]):  # the same format at other places
        draw_audit(tmifpe.audit(model, data, ["ce"], formats), tmp_path / "audit.png")
    plot_analysis(analyse([2.5, -1.3, 0.8], 0, None, "fp16"), tmp_path / "curve.png")
    seen: dict[str, set[str]] = {}
    for figure in drawn:
        axes = [found for part in (figure, *figure.subfigs) for found in part.axes]
        legends = [found for part in (figure, *axes, *figure.subfigs) for found in part.findobj(Legend)]
        for legend in legends:
            for handle, text in zip(legend.legend_handles, legend.get_texts(), strict=True):
                name = re.match(r"[bf]p?f?\d+", text.get_text())
                if name and handle is not None:
                    colour = handle.get_facecolor() if hasattr(handle, "get_facecolor") else handle.get_color()
                    seen.setdefault(name[0], set()).add(to_hex(colour))
    assert set(seen) == {"fp16", "bf16", "fp32", "fp64"}
    assert all(len(colours) == 1 for colours in seen.values()), seen
    for figure in drawn[:2]:
        ticks = figure.axes[0].get_yticks()
        assert all(tick == round(tick) for tick in ticks), ticks
