"""The bars of `report.bars`: any number of models, names of any length, nothing drawn over a number."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

import tmifpe
from tmifpe import PGD, Comparison, Threat

pytest.importorskip("matplotlib")


@pytest.fixture(scope="module")
def comparison() -> Comparison:
    model, data = tmifpe.load_model("digits-robust"), tmifpe.load_data("digits", limit=24)
    losses = ["ce", "cw", "tmifpe", "mifpe(T=10)"]
    return tmifpe.compare(model, data, Threat("linf", 0.15), losses, PGD(steps=3), checks=False)


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
    whiskers = [
        segment for bars in axes.containers for segment in getattr(bars, "errorbar", bars).lines[2][0].get_segments()
    ]
    ends = [axes.transData.transform(segment)[:, 0].max() for segment in whiskers[: 4 * models]]
    assert all(number.x0 > end for number, end in zip(numbers, ends, strict=True)), "no whisker through a number"
